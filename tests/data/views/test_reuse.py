"""XLNet's rows against its data code, written out token by token."""

import numpy as np
import pytest
from helpers.stores import (
    CLS,
    END,
    FIRST,
    IDS,
    SEP,
    joined,
    plain_line,
    positions,
    random_documents,
    same,
    store_of,
)
from helpers.views import streams

DOCUMENTS = random_documents(0, 60)
STORE = store_of(DOCUMENTS)
ALL = {"end_id": END, **IDS}
every_end = pytest.mark.parametrize("ends", ["document", "sentence", "none"])


def reference_cut(sentences, begin, budget):
    """(cuts that A may have, the first border at or after `budget`): their code, token by token."""
    cuts = []
    for end in range(begin + 1, len(sentences)):
        if sentences[end] != sentences[end - 1]:
            if end - begin >= budget:
                return cuts, end
            cuts.append(end)
    return cuts, len(sentences)


def reference_trim(a, b, budget):
    while a + b > budget:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


def check_row(row, line, sentences, begin, length, reuse):
    """Assert that this is one of the rows that XLNet's code could make here."""
    budget = length - reuse - 3
    text, segments = row["tokens"].tolist(), row["segments"].tolist()
    seps = [n for n, token in enumerate(text) if token == SEP]
    assert len(seps) == 2 and seps[1] == length - 2 and text[-1] == CLS
    front = seps[0]
    a, b = front - reuse, length - 3 - front
    assert segments == [0] * (front + 1) + [1] * (b + 1) + [2]
    assert a >= 1 and b >= 1 and a + b == budget
    start = begin - reuse
    assert text[:front] == line[start : start + front]
    cuts, stop = reference_cut(sentences, begin, budget)
    b_text = text[front + 1 : -2]
    if not row["next"]:
        assert cuts
        fits = [cut for cut in cuts if reference_trim(cut - begin, stop - cut, budget) == (a, b)]
        assert any(line[cut : cut + b] == b_text for cut in fits)
        return
    size = len(line)
    for cut in cuts or [stop]:
        wanted = max(1, budget - (cut - begin))
        for drawn in range(size - wanted):
            b_begin, b_end = drawn, drawn + wanted
            while b_begin > 0 and sentences[b_begin - 1] == sentences[b_begin]:
                b_begin -= 1
            while b_end < size - 1 and sentences[b_end - 1] == sentences[b_end]:
                b_end += 1
            trimmed = reference_trim(cut - begin, b_end - b_begin, budget)
            if trimmed == (a, b) and line[b_begin : b_begin + b] == b_text:
                return
    raise AssertionError("no choice of the code gives this row")


def both_ways(**options):
    return streams(STORE, 64, reuse=32, bidirectional=True, **ALL, **options)


@every_end
@pytest.mark.parametrize("bidirectional", [False, True])
def test_reuse_rows_are_those_of_the_plain_algorithm(ends, bidirectional):
    documents = [*random_documents(4, 12, longest=14, sentences=8), [70], [1, 1, 1, 2]]
    store, length, reuse, batch_size = store_of(documents), 32, 16, 2
    view = streams(
        store, length, ends=ends, reuse=reuse, bidirectional=bidirectional, shuffle=False, **ALL
    )
    line, sentences = plain_line(documents, ends)
    number = 1 if bidirectional else 2
    size = len(line) // number
    steps = view.steps(batch_size)
    assert steps == len(range(0, size - length + 1, reuse)) and steps > 5
    texts = [
        (line[n * size : (n + 1) * size], sentences[n * size : (n + 1) * size])
        for n in range(number)
    ]
    if bidirectional:
        texts += [(text[::-1], ids[::-1]) for text, ids in texts]
    kinds, without_cut = [], 0
    for step in range(2 * steps):
        batch = view.batch(step, batch_size)
        for n, (text, ids) in enumerate(texts):
            row = {name: batch[name][n] for name in batch}
            begin = (step % steps) * reuse + reuse
            check_row(row, text, ids, begin, length, reuse)
            cuts, _ = reference_cut(ids, begin, length - reuse - 3)
            without_cut += not cuts
            kinds.append(int(row["next"]))
    assert 0 < sum(kinds) < len(kinds) and without_cut


def test_the_last_token_of_a_stream_is_never_drawn():
    documents = [[7, 1, 6, 2, 2, 2, 2, 2]]
    view = streams(store_of(documents), 18, ends="none", reuse=4, **ALL)
    line, sentences = plain_line(documents, "none")
    for step in range(300 * view.steps(1)):
        row = {name: values[0] for name, values in view.batch(step, 1).items()}
        check_row(row, line, sentences, (step % view.steps(1) + 1) * 4, 18, 4)


def test_random_and_continuing_segments_are_balanced():
    documents = [[7] * 30 for _ in range(200)]
    view = streams(store_of(documents), 64, reuse=32, shuffle=False, **ALL)
    rows = joined([view.batch(step, 4) for step in range(view.steps(4))])
    total = len(rows["next"])
    assert total > 1000 and abs(rows["next"].mean() - 0.5) < 4 * 0.5 / total**0.5
    front = (rows["segments"] == 0).sum(-1) - 1 - 32  # |A|
    a, b = rows["tokens"][:, 32], rows["tokens"][np.arange(total), 33 + front]
    plain = (a >= FIRST) & (b >= FIRST)
    on = ((b - FIRST) // 7 - (a - FIRST) // 7)[plain]  # sentences from A to B
    real = rows["next"][plain] == 0
    assert set(on[real]) <= {1, 2, 3, 4, 5} and np.isin(on[~real], range(1, 6)).mean() < 0.05
    shares = [np.mean(on[real] == n) for n in (1, 2, 3, 4)]  # the cuts of most rows
    assert min(shares) > 0.17 and max(shares) < 0.33
    begins = positions(b[plain])
    assert np.mean(begins % 7 == 0) > 0.98  # sentence borders; the heads of streams apart
    # Where a random B begins has nothing to do with where A was cut.
    assert abs(np.corrcoef(front[plain][~real], begins[~real])[0, 1]) < 4 / (~real).sum() ** 0.5
    thirds = np.histogram(begins[~real], 3, (0, 42_000))[0] / (~real).sum()
    assert np.all(np.abs(thirds - 1 / 3) < 0.1)
    other = joined([view.batch(step + view.steps(4), 4) for step in range(view.steps(4))])
    assert not np.array_equal(other["next"], rows["next"])
    view = streams(store_of(documents), 64, reuse=32, shuffle=False, seed=1, **ALL)
    other = joined([view.batch(step, 4) for step in range(view.steps(4))])
    assert not np.array_equal(other["next"], rows["next"])  # of the same text


def test_rows_read_backwards_are_the_same_streams_reversed():
    view = both_ways(shuffle=False)
    line, _ = plain_line(DOCUMENTS, "document")
    size = len(line) // 2
    streams_ = [line[:size], line[size : 2 * size]]
    streams_ += [stream[::-1] for stream in streams_]
    for step in range(view.steps(4)):
        tokens = view.batch(step, 4)["tokens"]
        for row, stream in zip(tokens.tolist(), streams_, strict=True):
            assert row[:33] == stream[step * 32 : step * 32 + 33]


def test_the_two_directions_draw_on_their_own():
    view = both_ways()
    rows = np.stack([view.batch(step, 4)["next"] for step in range(view.steps(4))])
    forward, backward = rows[:, :2].reshape(-1), rows[:, 2:].reshape(-1)
    agree = np.mean(forward == backward)
    assert abs(agree - 0.5) < 4 * 0.5 / np.sqrt(forward.size) and forward.size > 100


def test_reuse_rows_for_evaluation_are_in_stored_order():
    view, stored = both_ways(seed=3), both_ways(seed=3, shuffle=False)
    batches = list(view.sequential(4))
    assert len(batches) == view.steps(4)
    for step, batch in enumerate(batches):
        assert same(batch, stored.batch(step, 4))
