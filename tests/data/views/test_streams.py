"""Streams: text that goes on from batch to batch, each token predicted once."""

import itertools
import math
import random

import numpy as np
import pytest
from helpers.stores import (
    END,
    FIRST,
    IDS,
    PAD,
    joined,
    plain_line,
    positions,
    random_documents,
    read_at_once,
    same,
    store_of,
)
from helpers.views import streams

from firth.errors import FirthError

DOCUMENTS = random_documents(0, 60)
STORE = store_of(DOCUMENTS)
ALL = {"end_id": END, **IDS}
MAKERS = {
    "plain": lambda **options: streams(STORE, 16, **ALL, **options),
    "backward": lambda **options: streams(STORE, 16, backward=True, **ALL, **options),
    "sentences": lambda **options: streams(STORE, 16, ends="sentence", **ALL, **options),
    "reuse": lambda **options: streams(STORE, 64, reuse=32, **ALL, **options),
    "both ways": lambda **options: streams(
        STORE, 64, reuse=32, bidirectional=True, **ALL, **options
    ),
}
every_kind = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
every_end = pytest.mark.parametrize("ends", ["document", "sentence", "none"])


@every_kind
def test_fields_are_as_promised(make):
    view = make()
    batch = view.batch(1, 4)
    assert list(batch) == list(view.fields)
    for name, (shape, dtype) in view.fields.items():
        assert batch[name].shape == (4, *shape) and batch[name].dtype == dtype
    assert ("next" in batch) != ("following" in batch)
    assert batch["mask"].all() and view.length == batch["tokens"].shape[1]


@every_kind
@pytest.mark.parametrize("count", [1, 2, 4])
def test_slices_of_any_count_add_up_to_the_same_batch(make, count):
    whole, view = make(seed=3), make(seed=3)
    for step in range(2 * whole.steps(8) + 2):  # across two epoch ends
        slices = [view.batch(step, 8, index, count) for index in range(count)]
        assert same(joined(slices), whole.batch(step, 8))
    for limit in (None, 2):
        slices = [list(view.sequential(8, index, count, limit)) for index in range(count)]
        assert len({len(part) for part in slices}) == 1
        expected = list(whole.sequential(8, limit=limit))
        for parts, batch in zip(zip(*slices, strict=True), expected, strict=True):
            assert same(joined(list(parts)), batch)


@every_kind
def test_batches_are_pure(make):
    straight, view = make(seed=5), make(seed=5)
    steps = list(range(4 * straight.steps(8)))
    expected = [straight.batch(step, 8) for step in steps]
    random.Random(0).shuffle(steps)
    assert all(same(view.batch(step, 8), expected[step]) for step in steps)
    step = len(steps) - 2
    assert same(make(seed=5).batch(np.int32(step), 8), expected[step])  # resume in a new process
    assert not same(make(seed=6).batch(step, 8), expected[step])
    assert not read_at_once(view, expected, batch_size=8, threads=3)


def test_resume_far_away_needs_no_history():
    view = MAKERS["plain"]()
    batch = view.batch(10**9, 8)
    assert set(batch["copy"].tolist()) == {10**9 // view.steps(8)}
    assert set(batch["example"] // 8) == {10**9 % view.steps(8)}


@every_kind
def test_examples_are_numbered_and_resets_are_at_the_head_of_epochs(make):
    view = make()
    steps = view.steps(8)
    batches = [view.batch(step, 8) for step in range(2 * steps)]
    examples = joined(batches)["example"]
    assert examples.tolist() == [*range(8 * steps)] * 2 and view.epoch_size(0, 8) == 8 * steps
    for step, batch in enumerate(batches):
        assert batch["reset"].tolist() == [step % steps == 0] * 8
        assert batch["copy"].tolist() == [step // steps] * 8


@every_end
def test_backward_streams_are_those_of_the_text_read_from_its_end(ends):
    """The reference: the whole line, turned; training batches and the whole text in order."""
    line, _ = plain_line(DOCUMENTS, ends)
    back = np.array(line[::-1])
    view = streams(STORE, 7, ends=ends, shuffle=False, backward=True, **ALL)
    size = len(line) // 3
    grid = back[: size * 3].reshape(3, size)
    for step in range(min(view.steps(3), 50)):
        batch = view.batch(step, 3)
        np.testing.assert_array_equal(batch["tokens"], grid[:, step * 7 : step * 7 + 7])
        np.testing.assert_array_equal(batch["following"], grid[:, step * 7 + 7])
    read = [[] for _ in range(3)]
    for batch in view.sequential(3):
        for row in range(3):
            real = batch["mask"][row]
            read[row] += batch["tokens"][row, real].tolist()
            assert (batch["tokens"][row, ~real] == PAD).all()
            if real.any():
                begin = row * (len(line) - 1) // 3
                assert batch["following"][row] == back[begin + len(read[row])]
    assert [*itertools.chain(*read)] == back[:-1].tolist()


def test_backward_streams_are_plain_ones():
    with pytest.raises(FirthError, match="backward=True is made for plain rows"):
        streams(STORE, 64, reuse=32, backward=True, **ALL)


@every_end
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("length", [1, 7, 64])
def test_stored_streams_are_the_classical_ones(ends, batch_size, length):
    """The reference: an array [B, T // B], read in windows, targets shifted by one."""
    line, _ = plain_line(DOCUMENTS, ends)
    size = len(line) // batch_size
    grid = np.array(line[: size * batch_size]).reshape(batch_size, size)
    view = streams(STORE, length, ends=ends, shuffle=False, **ALL)
    assert view.steps(batch_size) == (size - 1) // length
    for step in range(min(view.steps(batch_size), 200)):
        batch = view.batch(step, batch_size)
        begin = step * length
        assert np.array_equal(batch["tokens"], grid[:, begin : begin + length])
        assert np.array_equal(batch["following"], grid[:, begin + length])
        assert not batch["segments"].any()
    first = view.batch(view.steps(batch_size), batch_size)
    assert np.array_equal(first["tokens"], grid[:, :length]) and set(first["copy"].tolist()) == {1}


@every_end
def test_shuffled_epochs_hold_whole_documents_in_other_orders(ends):
    documents = random_documents(3, 20, sentences=8)
    begins = FIRST + np.cumsum([0, *map(sum, documents[:-1])])
    view = streams(store_of(documents), 5, ends=ends, seed=2, **ALL)
    lines = []
    for epoch in range(3):
        steps = range(epoch * view.steps(1), (epoch + 1) * view.steps(1))
        rows = [view.batch(step, 1) for step in steps]
        for before, after in itertools.pairwise(rows):
            assert after["tokens"][0, 0] == before["following"][0]
        read = [*joined(rows)["tokens"].reshape(-1), rows[-1]["following"][0]]
        order = sorted(range(20), key=lambda d: read.index(begins[d]))
        line, _ = plain_line(documents, ends, order)
        assert read == line[: len(read)] and len(line) - len(read) < 5
        lines.append(line)
        halves = [view.batch(epoch * view.steps(2) + step, 2) for step in range(view.steps(2))]
        for row, begin in enumerate((0, len(line) // 2)):
            read = np.concatenate([batch["tokens"][row] for batch in halves]).tolist()
            assert read == line[begin : begin + len(read)]
    assert lines[0] != lines[1] != lines[2] != lines[0]
    assert lines[0] != plain_line(documents, ends)[0]


def predictions(batches):
    """(token, the one predicted from it) at every real place, and whether streams go on."""
    pairs, last = [], None
    for batch in batches:
        for row in range(len(batch["tokens"])):
            real = batch["mask"][row].sum()
            assert batch["mask"][row, :real].all()
            text = [*batch["tokens"][row, :real].tolist(), int(batch["following"][row])]
            if real:
                pairs += itertools.pairwise(text)
            else:
                assert text == [PAD]
            assert np.all(batch["tokens"][row, real:] == PAD)
        if last is not None:
            goes_on = batch["mask"].any(-1)
            assert np.array_equal(batch["tokens"][goes_on, 0], last["following"][goes_on])
        last = batch
    return pairs


@pytest.mark.parametrize("length", [1, 7, 20])
def test_epochs_that_begin_at_random_places(length):
    """All rows of an epoch begin as much further on; every place of a row comes."""
    line, _ = plain_line(DOCUMENTS, "sentence")
    size = len(line) // 3
    grid = np.array(line[: 3 * size]).reshape(3, size)
    view = streams(STORE, length, ends="sentence", shuffle=False, random_start=True, **ALL)
    steps, places = view.steps(3), set()
    assert steps == (size - length) // length
    for epoch in range(60):
        first = view.batch(epoch * steps, 3)
        found = [
            p for p in range(length) if np.array_equal(first["tokens"], grid[:, p : p + length])
        ]
        assert len(found) == 1
        last, begin = view.batch((epoch + 1) * steps - 1, 3), found[0] + (steps - 1) * length
        assert np.array_equal(last["tokens"], grid[:, begin : begin + length])
        assert np.array_equal(last["following"], grid[:, begin + length])
        places |= set(found)
    assert len(places) > 0.8 * length


@pytest.mark.parametrize("ends", ["document", "none"])
@pytest.mark.parametrize("batch_size", [1, 4, 20, 80])
@pytest.mark.parametrize("length", [1, 5, 16, 100])
def test_sequential_predicts_every_token_once(ends, batch_size, length):
    documents = [[9, 14], [3], [28, 1, 1], [5]]
    view = streams(store_of(documents), length, ends=ends, **ALL)
    line, _ = plain_line(documents, ends)
    batches = list(view.sequential(batch_size))
    assert sorted(predictions(batches)) == sorted(itertools.pairwise(line))
    assert [batch["reset"].all() for batch in batches] == [True] + [False] * (len(batches) - 1)
    assert len(batches) == math.ceil((len(line) - 1) / (batch_size * length))
    assert not any(batch["copy"].any() for batch in batches)
    examples = joined(batches)["example"]
    assert examples.tolist() == [*range(len(examples))]
    if batch_size == 80:
        assert any(not batch["mask"].any(-1).all() for batch in batches)


def test_limited_sequential_begins_everywhere():
    view = MAKERS["plain"]()
    line, _ = plain_line(DOCUMENTS, "document")
    whole, limited = list(view.sequential(8)), list(view.sequential(8, limit=3))
    assert len(limited) == 3
    assert all(same(a, b) for a, b in zip(limited, whole[:3], strict=True))
    starts = [line.index(token) for token in limited[0]["tokens"][:, 0]]
    assert starts == [row * (len(line) - 1) // 8 for row in range(8)]
    assert len(list(view.sequential(8, limit=10**6))) == len(whole)


def test_ptb_has_as_many_steps_as_in_the_tutorial():
    store = store_of([[22] * 42067 + [887_521 - 22 * 42067]])
    view = streams(store, 20, ends="sentence", **ALL)
    assert (view.steps(20), streams(store, 35, ends="sentence", **ALL).steps(20)) == (2323, 1327)


def test_selected_documents_only():
    chosen = np.array([3, 7, 20])
    view = streams(STORE, 4, documents=chosen, **ALL)
    borders = STORE.sentences[STORE.documents]
    expected = np.concatenate([np.arange(borders[d], borders[d + 1]) for d in chosen])
    rows = joined(list(view.sequential(1)))["tokens"]
    assert positions(rows.reshape(-1)).tolist() == expected.tolist()
    rows = joined([view.batch(step, 1) for step in range(view.steps(1))])["tokens"]
    seen = positions(rows.reshape(-1))
    assert len(set(seen)) == len(seen) and set(seen) <= set(expected)
    assert len(expected) - len(seen) <= 4


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_tokens_may_be_mapped_from_disk(tmp_path, dtype):
    np.save(tmp_path / "tokens.npy", STORE.tokens.astype(dtype))
    mapped = store_of(DOCUMENTS)
    mapped.tokens = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    for options in ({}, {"reuse": 6}):
        view = streams(mapped, 16, **options, **ALL)
        assert same(view.batch(4, 8), streams(STORE, 16, **options, **ALL).batch(4, 8))


def test_ids_that_are_not_used_may_be_missing():
    none = {"cls_id": None, "sep_id": None, "pad_id": None}
    view = streams(store_of([[9, 9]]), 4, end_id=None, ends="none", **none)
    assert view.batch(0, 2)["tokens"].tolist() == [[10, 11, 12, 13], [19, 20, 21, 22]]
    rows = joined(list(view.sequential(2)))
    assert np.all(rows["tokens"][~rows["mask"]] == 0)
    streams(store_of([[9, 9]]), 4, end_id=END, **none)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length=0 is too short"),
        ({"end_id": None}, "end_id=None is no token id: .* end-of-text token"),
        ({"ends": "line"}, "unknown ends 'line': expected one of document, sentence, none"),
        ({"reuse": -1}, "reuse=-1"),
        ({"reuse": 61}, r"reuse=61 does not fit length=64.*0 < reuse <= 59"),
        ({"reuse": 60}, "reuse=60 does not fit"),
        ({"length": 5, "reuse": 1}, "reuse=1 does not fit length=5"),
        ({"reuse": 32, "cls_id": None}, "cls_id=None is no token id"),
        ({"reuse": 32, "sep_id": -1}, "sep_id=-1 is no token id"),
        ({"bidirectional": True}, "give reuse > 0"),
        ({"reuse": 32, "random_start": True}, "random_start=True is made for plain rows"),
        ({"documents": np.array([], int)}, "no tokens in the selected documents"),
    ],
)
def test_bad_views_are_refused(arguments, message):
    with pytest.raises(FirthError, match=message):
        streams(STORE, **{"length": 64, **ALL, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 16, 0, 3), "16 rows cannot be divided into 3 equal slices"),
        ((0, 0), "a batch of 0 rows"),
        ((0, 16, 4, 4), "no slice 4 of 4"),
        ((-1, 16), "no batch for step -1"),
        ((0, 10**4), r"line of [\d,]+ tokens is too short for batches of 10000 rows of 64"),
        ((0, 15), "batch_size must be even and positive"),
    ],
)
def test_bad_batches_are_refused(arguments, message):
    view = MAKERS["both ways"]()
    with pytest.raises(FirthError, match=message):
        view.batch(*arguments)
    if arguments[0] == 0:
        with pytest.raises(FirthError, match=message):
            view.sequential(*arguments[1:])


def test_nothing_to_evaluate_is_refused():
    with pytest.raises(FirthError, match="limit=0 batches"):
        MAKERS["plain"]().sequential(8, limit=0)
    with pytest.raises(FirthError, match="a single token"):
        streams(store_of([[1]]), 4, ends="none", **ALL).sequential(8)
