"""Pairs against the algorithm of Devlin et al. 2018 (appendix A.2, their code) in plain Python."""

import random
from itertools import pairwise

import numpy as np
import pytest
from helpers.stores import CLS, FIRST, IDS, PAD, SEP, positions, random_documents, store_of
from helpers.views import pairs
from scipy import stats

from firth.data.views import selection
from firth.data.views.selection import split_documents
from firth.errors import FirthError
from firth.tokenizers.special_tokens import truncation


def plain_truncate(a, b, limit, rng):
    while len(a) + len(b) > limit:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def plain_instances(documents, number, length, rng, short_seq_prob=0.1):
    """[(a, b, is_random)] of one document; sentences are lists of tokens."""
    document, limit = documents[number], length - 3
    target = rng.randint(2, limit) if rng.random() < short_seq_prob else limit
    instances, chunk, total, i = [], [], 0, 0
    while i < len(document):
        chunk.append(document[i])
        total += len(document[i])
        if i == len(document) - 1 or total >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:a_end] for token in sentence]
            b, is_random = [], len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != number:
                        break
                wanted = target - len(a)
                for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
                    b += sentence
                    if len(b) >= wanted:
                        break
                i -= len(chunk) - a_end
            else:
                b = [token for sentence in chunk[a_end:] for token in sentence]
            plain_truncate(a, b, limit, rng)
            instances.append((a, b, int(is_random)))
            chunk, total = [], 0
        i += 1
    return instances


def as_sentences(documents):
    token, result = FIRST, []
    for document in documents:
        starts = np.cumsum([token, *document]).tolist()
        result.append([list(range(start, stop)) for start, stop in pairwise(starts)])
        token = starts[-1]
    return result


def plan_rows(view, epoch=0):
    """[(positions of a, positions of b, label)] of a plan, in plan order, read from batches."""
    size, first = view.epoch_size(epoch), sum(view.epoch_size(e) for e in range(epoch))
    rows = [view.batch(first + n, 1) for n in range(size)]
    rows.sort(key=lambda row: row["example"][0])
    assert [int(row["example"][0]) for row in rows] == list(range(size))
    result = []
    for row in rows:
        tokens, segment = row["tokens"][0], row["segments"][0]
        a, b = positions(tokens[segment == 0]), positions(tokens[segment == 1])
        result.append((a, b, int(row["next"][0])))
    return result


def test_layout_of_a_row():
    view = pairs(store_of(random_documents(0, 30)), 64, **IDS)
    for step in range(20):
        batch = view.batch(step, 8)
        assert np.array_equal(batch["mask"], batch["tokens"] != PAD)
        for tokens, segments in zip(batch["tokens"], batch["segments"], strict=True):
            real = tokens[tokens != PAD].tolist()
            first, second = (n for n, token in enumerate(real) if token == SEP)
            assert real[0] == CLS and second == len(real) - 1 and 1 < first < second - 1
            assert real.count(CLS) == 1
            expected = [0] * (first + 1) + [1] * (second - first) + [0] * (64 - len(real))
            assert segments.tolist() == expected


@pytest.mark.parametrize("epoch", [0, 3])
def test_every_instance_is_one_that_the_algorithm_can_make(epoch):
    """Short sentences and targets leave nothing to truncate, so each decision can be read off."""
    documents = random_documents(1, 40, longest=5, sentences=300)
    store, length = store_of(documents), 400
    border = set(store.sentences.tolist())
    document_starts = store.sentences[store.documents]

    def document_of(position):
        return int(np.searchsorted(document_starts, position, side="right")) - 1

    def sentence_before(stop):
        return int(stop - store.sentences[np.searchsorted(store.sentences, stop) - 1])

    view = pairs(store, length, short_seq_prob=1.0, **IDS)
    cursor = {number: int(document_starts[number]) for number in range(40)}
    low, high, seen = dict.fromkeys(cursor, 2), dict.fromkeys(cursor, length - 3), [0, 0]
    for a, b, label in plan_rows(view, epoch):
        number, total = document_of(a[0]), len(a) + len(b)
        seen[label] += 1
        assert a[0] == cursor[number]  # A begins where the previous instance left off
        for part in (a, b):
            assert np.array_equal(part, np.arange(part[0], part[-1] + 1))
            assert part[0] in border and part[-1] + 1 in border
            assert document_of(part[0]) == document_of(part[-1])
        stop = int(b[-1]) + 1
        end = int(document_starts[document_of(b[0]) + 1])
        if label == 0:
            assert b[0] == a[-1] + 1
            cursor[number] = stop
        else:
            assert document_of(b[0]) != number
            cursor[number] = int(a[-1]) + 1
        single = len(b) == sentence_before(stop)
        if label == 0 or not single:  # without its last sentence B did not reach the target
            low[number] = max(low[number], total - sentence_before(stop) + 1)
        if stop < end:  # it ended because the target was reached
            high[number] = min(high[number], total)
    assert cursor == {n: int(document_starts[n + 1]) for n in range(40)}  # all sentences consumed
    assert all(low[n] <= high[n] for n in range(40))  # one target explains the whole document
    assert min(seen) > 100


@pytest.mark.parametrize(("longest", "length"), [(12, 32), (40, 64), (150, 64)])
def test_statistics_are_those_of_the_plain_algorithm(longest, length):
    documents = random_documents(2, 50, longest=longest, sentences=25)
    view = pairs(store_of(documents), length, seed=1, **IDS)
    rng, text = random.Random(0), as_sentences(documents)
    ours, theirs, counts = [], [], ([], [])
    for epoch in range(12):
        plan = view._planner.plan(epoch)
        ours.append(np.stack([plan.a_length, plan.b_length, plan.label, plan.a_start], 1))
        plain = [i for n in range(50) for i in plain_instances(text, n, length, rng)]
        theirs.append([(len(a), len(b), label, a[0] - FIRST) for a, b, label in plain])
        counts[0].append(len(plan))
        counts[1].append(len(plain))
    ours, theirs = np.concatenate(ours), np.concatenate(theirs)
    assert stats.ttest_ind(*counts).pvalue > 1e-3
    for get in (
        lambda rows: rows[:, 0],
        lambda rows: rows[:, 1],
        lambda rows: rows[:, 0] + rows[:, 1],
        lambda rows: rows[rows[:, 2] == 0][:, 0],
        lambda rows: rows[rows[:, 2] == 1][:, 1],
        lambda rows: rows[:, 3],
    ):
        assert stats.ks_2samp(get(ours), get(theirs)).pvalue > 1e-3
    labels = [[(rows[:, 2] == label).sum() for label in (0, 1)] for rows in (ours, theirs)]
    assert stats.chi2_contingency(labels).pvalue > 1e-3


def test_short_targets_are_uniform():
    """Sentences of one token: an instance that goes on to the next text is as long as its target.

    BERT's code draws it uniformly from 2 to length - 3, both included.
    """
    view = pairs(store_of([[1] * 20] * 3000), 10, short_seq_prob=1.0, next_prob=1.0, **IDS)
    plan = view._planner.plan(0)
    first = plan.a_start % 20 == 0
    assert first.sum() == 3000 and not plan.label[first].any()
    sizes = (plan.a_length + plan.b_length)[first]
    assert set(sizes) == set(range(2, 8))
    assert stats.chisquare(np.bincount(sizes)[2:]).pvalue > 1e-4
    # The share that is short is what was asked for.
    view = pairs(store_of([[1] * 20] * 3000), 10, short_seq_prob=0.25, next_prob=1.0, **IDS)
    plan = view._planner.plan(0)
    first = plan.a_start % 20 == 0
    sizes = (plan.a_length + plan.b_length)[first]
    counts = np.bincount(sizes)[2:]
    expected = np.full(6, 3000 * 0.25 / 6)
    expected[-1] += 3000 * 0.75
    assert stats.chisquare(counts, expected).pvalue > 1e-4


def test_where_a_is_cut_says_nothing_of_the_label():
    plan = pairs(store_of([[2] * 8] * 4000), 19, short_seq_prob=0.0, **IDS)._planner.plan(0)
    first = plan.a_start % 16 == 0  # eight sentences for 16 places: seven cuts
    table = np.zeros((7, 2), int)
    np.add.at(table, (plan.a_length[first] // 2 - 1, plan.label[first]), 1)
    assert table.sum() == 4000 and stats.chi2_contingency(table).pvalue > 1e-4
    assert stats.chisquare(table.sum(1)).pvalue > 1e-4


def test_seeds_and_epochs_make_other_pairs():
    store = store_of(random_documents(9, 40))

    def instances(seed, epoch):
        plan = pairs(store, 40, seed=seed, **IDS)._planner.plan(epoch)
        return set(zip(plan.a_start, plan.a_length, plan.b_start, plan.b_length, strict=True))

    base = instances(0, 0)
    for other in (instances(1, 0), instances(0, 1)):
        assert len(base & other) < 0.5 * len(base)


def test_random_segments_come_evenly_from_the_other_documents():
    view = pairs(store_of([[5] * 10] * 8), 33, next_prob=0.0, **IDS)
    drawn = np.zeros((8, 8), int)
    sentence = np.zeros(10, int)
    for epoch in range(150):
        plan = view._planner.plan(epoch)
        np.add.at(drawn, (plan.a_start // 50, plan.b_start // 50), 1)
        whole = plan.a_length + plan.b_length < 30
        np.add.at(sentence, plan.b_start[whole] % 50 // 5, 1)
    assert np.all(drawn.diagonal() == 0)
    assert all(stats.chisquare(np.delete(drawn[n], n)).pvalue > 1e-4 for n in range(8))
    assert (sentence > 0).sum() > 1


def test_labels_are_balanced_where_there_is_a_choice():
    documents = [[10] * 40] * 30
    for next_prob in (0.5, 0.2, 0.0, 1.0):
        plan = pairs(store_of(documents), 128, next_prob=next_prob, **IDS)._planner.plan(0)
        whole = plan.a_start % 400 < 280  # further on a single sentence may be left: always random
        expected, sizes = 1 - next_prob, whole.sum()
        spread = 4 * np.sqrt(expected * (1 - expected) / sizes)
        assert abs(plan.label[whole].mean() - expected) <= spread


def test_truncation_lengths_are_those_of_the_loop():
    rng = random.Random(1)
    cases = [(rng.randint(1, 60), rng.randint(1, 60), rng.randint(5, 70)) for _ in range(2000)]
    for a, b, limit in cases:
        left, right = list(range(a)), list(range(b))
        plain_truncate(left, right, limit, rng)
        cut = truncation(np.array([a]), np.array([b]), limit)
        assert (a - cut[0][0], b - cut[1][0]) == (len(left), len(right))


def test_truncation_takes_from_both_ends_at_random():
    """Two sentences of 40 for 30 places: each keeps 15 and loses Binomial(25, 1/2) in front."""
    view = pairs(store_of([[40, 40]] * 200), 33, short_seq_prob=0.0, next_prob=1.0, **IDS)
    fronts = []
    for epoch in range(10):
        plan = view._planner.plan(epoch)
        assert set(plan.a_length) == set(plan.b_length) == {15}
        fronts.append([plan.a_start % 40, plan.b_start % 40])
    fronts = np.concatenate(fronts, axis=1)
    # Neither what A loses nor which pair it is says anything of what B loses.
    assert abs(np.corrcoef(fronts)[0, 1]) < 4 / np.sqrt(fronts.shape[1])
    fronts = fronts.reshape(-1)
    assert abs(fronts.mean() - 12.5) < 4 * 2.5 / np.sqrt(len(fronts))
    assert abs(fronts.var() - 6.25) < 0.6
    assert fronts.min() < 7 and fronts.max() > 18


@pytest.mark.parametrize("order", ["nsp", "sop"])
def test_plans_do_not_depend_on_the_chunks(monkeypatch, order):
    store = store_of(random_documents(4, 50))
    whole = plan_rows(pairs(store, 48, order=order, **IDS), 1)
    monkeypatch.setattr(selection, "CHUNK_SENTENCES", 7)
    chunked = plan_rows(pairs(store, 48, order=order, **IDS), 1)
    assert [(a.tolist(), b.tolist(), n) for a, b, n in whole] == [
        (a.tolist(), b.tolist(), n) for a, b, n in chunked
    ]


def test_selected_documents_are_the_only_source():
    store = store_of(random_documents(5, 60))
    borders = store.sentences[store.documents]
    train, heldout = split_documents(store, 0.2, minimum=2)
    for chosen in (train, heldout):
        own = np.concatenate([np.arange(borders[d], borders[d + 1]) for d in chosen])
        rows = plan_rows(pairs(store, 40, documents=chosen, **IDS))
        assert np.isin(np.concatenate([part for a, b, _ in rows for part in (a, b)]), own).all()


def test_empty_documents_change_nothing():
    documents = random_documents(6, 20)
    empty = [e for d in documents for e in ([], d, [0])]
    holes = [[s for size in d for s in (0, size)] for d in documents]
    expected = pairs(store_of(documents), 40, **IDS).batch(3, 16)
    for variant in (empty, holes):
        batch = pairs(store_of(variant), 40, **IDS).batch(3, 16)
        assert all(np.array_equal(batch[name], expected[name]) for name in expected)


def test_duplicated_plans_repeat_and_others_do_not():
    store = store_of(random_documents(7, 30))
    static = pairs(store, 40, dupe_factor=2, **IDS)
    sizes = [static.epoch_size(epoch) for epoch in range(4)]
    assert sizes[:2] == sizes[2:]

    def examples(view, epoch):
        first = sum(view.epoch_size(e) for e in range(epoch))
        rows = [view.batch(first + n, 1) for n in range(view.epoch_size(epoch))]
        assert {int(r["copy"][0]) for r in rows} == {epoch % 2 if view is static else epoch}
        return [int(r["example"][0]) for r in rows], {r["tokens"].tobytes() for r in rows}

    (order_0, rows_0), (_, rows_1), (order_2, rows_2) = (examples(static, e) for e in range(3))
    assert rows_0 == rows_2 and rows_0 != rows_1
    assert order_0 != order_2  # the same instances in another order
    dynamic = pairs(store, 40, **IDS)
    assert examples(dynamic, 0)[1] == rows_0
    assert examples(dynamic, 2)[1] != rows_0


def test_sentence_order_pairs_are_swapped_half_of_the_time():
    store = store_of(random_documents(8, 60, longest=6, sentences=60))
    document_starts = store.sentences[store.documents]
    used, counts = [], [0, 0]
    for a, b, label in plan_rows(pairs(store, 200, order="sop", **IDS)):
        same = np.searchsorted(document_starts, [a[0], b[0]], side="right")
        if label == 0:
            assert 0 <= b[0] - a[-1] - 1 <= 6  # truncation may take from the inner ends
        elif same[0] == same[1]:
            assert 0 <= a[0] - b[-1] - 1 <= 6
        counts[label] += same[0] == same[1]
        used += [a] if same[0] != same[1] else [a, b]
    used = np.concatenate(used)
    assert len(np.unique(used)) == len(used) > 0.98 * len(store.tokens)  # nothing is pushed back
    assert stats.binomtest(counts[1], sum(counts)).pvalue > 1e-3 and min(counts) > 20


def test_corpora_without_meaningful_labels_are_refused():
    for documents in ([[4, 4, 4]], [[], [4, 4], [0]]):
        with pytest.raises(FirthError, match=r"at least two documents.*label would be noise"):
            pairs(store_of(documents), 32, **IDS)
    with pytest.raises(FirthError, match="1 is selected"):
        pairs(store_of([[4, 4], [4, 4]]), 32, documents=np.array([1]), **IDS)
    with pytest.raises(FirthError, match=r"each of the 3 selected ones is a single sentence"):
        pairs(store_of([[9], [8], [7]]), 32, **IDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "rsp"}, "unknown pair order 'rsp'"),
        ({"short_seq_prob": 1.5}, "short_seq_prob=1.5 is no probability"),
        ({"next_prob": -0.1}, "next_prob=-0.1 is no probability"),
        ({"dupe_factor": -1}, "dupe_factor=-1"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(FirthError, match=message):
        pairs(store_of([[4, 4], [4, 4]]), 32, **arguments, **IDS)
