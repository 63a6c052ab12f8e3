import numpy as np
import pytest
from helpers.stores import random_documents, store_of

from firth.data.views import selection
from firth.data.views.selection import copy_ranges, follow, ranges, select, split_documents
from firth.errors import FirthError


def sentences_of(chosen):
    """[(token, token), ...] of every document of a selection."""
    offsets = chosen.sentences
    return [
        [(int(offsets[s]), int(offsets[s + 1])) for s in range(first, last)]
        for first, last in zip(chosen.first, chosen.last, strict=True)
    ]


def test_empty_sentences_and_documents_are_left_out():
    whole = store_of([[], [3, 0, 2], [0], [], [4], [0, 1, 0], []])
    assert sentences_of(select(whole)) == [[(0, 3), (3, 5)], [(5, 9)], [(9, 10)]]
    assert sentences_of(select(whole, np.array([0, 2, 4]))) == [[(5, 9)]]


def test_selected_documents_keep_their_tokens():
    documents = random_documents(0, 50)
    store = store_of(documents)
    chosen = select(store, np.array([3, 7, 8, 49]))
    borders = store.sentences[store.documents]
    spans = [(s[0][0], s[-1][1]) for s in sentences_of(chosen)]
    assert spans == [(borders[d], borders[d + 1]) for d in (3, 7, 8, 49)]
    assert select(store).digest != chosen.digest == select(store, [3, 7, 8, 49]).digest


def test_bad_selections_are_refused():
    store = store_of([[3], [], [4]])
    for documents, message in [
        (np.array([], int), "no tokens in the selected documents: 0 of 3"),
        (np.array([1]), "no tokens in the selected documents: 1 of 3"),
        (np.array([0, 3]), r"asks for 0..3, but the store has the documents 0..2"),
        (np.array([-1, 0]), "asks for -1..0"),
        (np.array([2, 0]), "ascending"),
        (np.array([0, 0]), "ascending"),
        (np.array([True, False, True]), "type bool"),
        (np.array([[0, 1]]), r"shape \(1, 2\)"),
    ]:
        with pytest.raises(FirthError, match=message):
            select(store, documents)
    with pytest.raises(FirthError, match="no tokens"):
        select(store_of([[], [0]]))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 10_000])
def test_chunks_cover_the_documents_in_order(monkeypatch, size):
    monkeypatch.setattr(selection, "CHUNK_SENTENCES", size)
    chosen = select(store_of(random_documents(1, 60)))
    chunks = list(chosen.chunks())
    assert [d for c in chunks for d in range(c.start, c.stop)] == list(range(60))
    counts = chosen.last - chosen.first
    assert all(c.stop == c.start + 1 or counts[c].sum() <= size + 30 for c in chunks)


def test_split_is_disjoint_complete_and_spread():
    store = store_of([[2]] * 5000)
    train, heldout = split_documents(store, 0.1, seed=3)
    assert np.array_equal(np.sort(np.concatenate([train, heldout])), np.arange(5000))
    assert np.all(np.diff(train) > 0) and np.all(np.diff(heldout) > 0)
    assert 400 < len(heldout) < 600
    assert 20 < len(split_documents(store)[1]) < 90  # one in a hundred where nothing is said
    quarters = np.bincount(heldout // 1250, minlength=4)
    assert quarters.min() > 0.6 * len(heldout) / 4
    again = split_documents(store, 0.1, seed=3)
    assert np.array_equal(again[1], heldout)
    assert not np.array_equal(split_documents(store, 0.1, seed=4)[1], heldout)


def test_split_stays_when_documents_are_appended():
    _, before = split_documents(store_of([[2]] * 3000), 0.05)
    _, after = split_documents(store_of([[2]] * 4000), 0.05)
    assert np.array_equal(after[after < 3000], before)


def test_split_gives_each_side_its_minimum():
    store = store_of([[2], [], [3], [1], [0], [2, 2]])
    for fraction in (1e-9, 0.5, 1 - 1e-9):
        train, heldout = split_documents(store, fraction, minimum=2)
        assert len(train) == len(heldout) == 2
        assert sorted([*train, *heldout]) == [0, 2, 3, 5]
    with pytest.raises(FirthError, match="4 documents with text cannot be split"):
        split_documents(store, 0.5, minimum=3)
    with pytest.raises(FirthError, match="1 documents with text"):
        split_documents(store_of([[5], []]))
    for fraction in (0, 1, -0.1):
        with pytest.raises(FirthError, match="expected 0 < fraction < 1"):
            split_documents(store, fraction)


def test_ranges_and_follow():
    assert ranges(np.array([3, 9, 5]), np.array([5, 9, 8])).tolist() == [3, 4, 5, 6, 7]
    assert ranges(np.array([], int), np.array([], int)).tolist() == []
    assert follow(np.array([2, 9, 3, 7, 5])).tolist() == [0, 2, 3]


def test_copy_ranges_fills_only_the_ranges():
    target = np.zeros((3, 6), np.int32)
    tokens = np.arange(100, 120, dtype=np.uint16)
    row, column = np.array([0, 2, 2]), np.array([1, 0, 3])
    copy_ranges(target, row, column, tokens, np.array([4, 0, 17]), np.array([2, 1, 3]))
    assert target.tolist() == [[0, 104, 105, 0, 0, 0], [0] * 6, [100, 0, 0, 117, 118, 119]]
