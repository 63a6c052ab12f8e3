"""Rows with document context: against a search over all rows, and what every row shows."""

import numpy as np
import pytest

from firth.data.tagging.files import read_sentences
from firth.data.tagging.rows import TagBuckets, in_pieces
from firth.data.tagging.windows import document_rows, stride_of
from firth.errors import FirthError
from firth.tokenizers.load import load_tokenizer

ROLES = (("cls",), ("sep",), ("sep",))


@pytest.mark.parametrize("stride", [0, 1, 4, 9, 50])
def test_every_unit_is_read_once_where_it_has_the_most_context(stride):
    rng = np.random.default_rng(stride)
    for _ in range(30):
        sizes = rng.integers(1, 8, rng.integers(1, 40))
        documents = np.unique(np.append(0, rng.integers(0, len(sizes), 3)))
        begin, end, own = document_rows(sizes, documents, 12, stride)
        starts = np.append(0, np.cumsum(sizes))
        assert own[0] == 0 and own[-1] == len(sizes) and (np.diff(own) > 0).all()
        of = np.searchsorted(documents, np.arange(len(sizes)), "right")
        windows = list(zip(begin, end, strict=True))
        for a, b in windows:
            assert starts[b] - starts[a] <= 12 and of[a] == of[b - 1]
        for unit in range(len(sizes)):

            def context(window, unit=unit, starts=starts):
                a, b = window
                inside = a <= unit < b
                return min(starts[unit] - starts[a], starts[b] - starts[unit + 1]) if inside else -1

            row = np.searchsorted(own, unit, "right") - 1
            assert begin[row] <= unit < end[row]
            assert context(windows[row]) == max(map(context, windows))
        for a, b in windows:  # full, but for what a unit more would need
            last = b == len(sizes) or of[b] != of[a]
            assert last or starts[b + 1] - starts[a] > 12
            first = a == 0 or of[a - 1] != of[a]
            assert not last or first or starts[b] - starts[a - 1] > 12


def test_rows_begin_a_stride_apart():
    begin, end, own = document_rows(np.ones(20, int), np.zeros(1, int), 8, 4)
    assert begin.tolist() == [0, 4, 8, 12] and end.tolist() == [8, 12, 16, 20]
    assert own.tolist() == [0, 6, 10, 14, 20]
    begin, _, own = document_rows(np.ones(20, int), np.zeros(1, int), 8, 8)
    assert begin.tolist() == [0, 8, 12]  # the last reaches back
    default = document_rows(np.ones(20, int), np.zeros(1, int), 8, 0)
    assert default.begin.tolist() == [0, 4, 8, 12]


def test_contexts_and_strides():
    assert stride_of("sentence", 9) is None and stride_of("document", 9) == 9
    with pytest.raises(FirthError, match=r"data\.context='text': expected sentence or document"):
        stride_of("text")
    with pytest.raises(FirthError, match=r"model\.feature_context='text'"):
        stride_of("text", field="model.feature_context")
    with pytest.raises(FirthError, match=r"data\.stride=-1: expected 0"):
        stride_of("document", -1)


def test_pieces_of_rows_are_those_of_the_document(store, tmp_path):
    """The first piece of each word, in the row that it is read in; words around it are shown."""
    text = (
        "-DOCSTART- O\n\nthe X\ncats Y\n\nwalked X\n\nanother X\none X\n\n-DOCSTART- O\n\nred Y\n"
    )
    (tmp_path / "a.bio").write_text(text)
    sentences, tokenizer = read_sentences(tmp_path / "a.bio"), load_tokenizer(store / "tokenizer")
    flat, sizes = tokenizer.encode_words(sentences.words)
    starts = np.append(0, np.cumsum(sizes))
    whole = in_pieces(sentences, tokenizer, 100, ROLES, 0)
    assert whole.words.tolist() == [0, 5, 6]
    shown = [tokenizer.cls_id, *flat[: starts[5]], tokenizer.sep_id]
    assert whole.tokens[: whole.offsets[1]].tolist() == shown
    assert whole.more["begins"].tolist() == [True, False, True, True, False, True]
    room = int(max(sizes[:2].sum(), sizes[2], sizes[3:5].sum())) + 2
    before = False
    for length in range(room, room + 12):
        rows = in_pieces(sentences, tokenizer, length, ROLES, 1)
        assert np.diff(rows.offsets).max() <= length and rows.words[-1] == 6
        number = np.repeat(np.arange(len(rows.words) - 1), np.diff(rows.words))
        found = rows.tokens[rows.offsets[number] + rows.first]
        np.testing.assert_array_equal(found, flat[starts[:-1]])
        before |= bool((rows.first[rows.words[:-1]] > 1).any())
    assert before, "no row shows words before its own"
    view = TagBuckets(whole, firsts=True)
    (batch,) = view.sequential(2)
    own = batch["tokens"][np.arange(2)[:, None], batch["first"]][batch["word_mask"]]
    order = np.argsort(batch["example"])
    assert sorted(own) == sorted(flat[starts[:-1]])
    assert batch["begins"][order].sum(1).tolist() == [3, 1]
