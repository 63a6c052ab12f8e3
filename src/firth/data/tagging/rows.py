"""Sentences as rows of a batch: words of a vocabulary with their characters, or pieces of words.

A sentence longer than a row is read in parts. B rows, L length, W words of a row, T words, R rows,
C characters, F features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from firth.data.tagging.files import Sentences
from firth.data.tagging.windows import document_rows
from firth.data.tasks.buckets import Buckets, Tokenised
from firth.data.views.base import Batch
from firth.data.views.selection import ranges
from firth.errors import FirthError
from firth.tokenizers.special_tokens import build_template

PAD, BEGIN, END, BYTES = 0, 1, 2, 3  # characters: padding, both ends of a word, the first byte
CHARACTERS = BYTES + 256


def character_ids(words: Sequence[str], size: int) -> np.ndarray:
    """uint16 [words, size]: the UTF-8 bytes of each word between two marks.

    A word of more bytes keeps its first ones and, in the last place before the mark, its last one.
    """
    table = np.full((len(words), size), PAD, np.uint16)
    for row, word in enumerate(words):
        data = word.encode("utf-8", "surrogatepass")
        if len(data) > size - 2:
            data = data[: size - 3] + data[-1:]
        table[row, : len(data) + 2] = [BEGIN, *(byte + BYTES for byte in data), END]
    return table


def word_ids(words: Sequence[str], tokenizer) -> np.ndarray:
    """int32 [T]: the id of each word as it is, else of it in small letters, else of <unk>."""
    known, special = {}, tokenizer.special_ids
    for word in set(words):
        ids = (tokenizer.id(form) for form in (word, word.lower()))
        good = (n for n in ids if n is not None and n not in special)
        known[word] = next(good, tokenizer.unk_id)
    return np.array([known[word] for word in words], np.int32)


@dataclass(frozen=True)
class TaggedRows:
    """Sentences as rows; row r is read for the words words[r] to words[r + 1] - 1 of the file.

    tokens int32, offsets int64 [R + 1]: of all rows. first: int32 [T], the place of each word's
    first token in its row. more: {name: [T, ...]}, further arrays of words, such as `characters`.
    labels: int32 [T] or None. pad_id: of tokens.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    words: np.ndarray
    first: np.ndarray
    more: Mapping[str, np.ndarray]
    labels: np.ndarray | None
    length: int
    pad_id: int


def in_words(sentences: Sentences, tokenizer, length: int, characters: int) -> TaggedRows:
    """Rows of one token a word, for the tagger; `characters` of a word, 0 for none."""
    ids = word_ids(sentences.words, tokenizer)
    words = _cut(sentences.offsets, np.ones(len(ids), np.int64), length)
    more = {}
    if characters:
        types, number = np.unique(sentences.words, return_inverse=True)
        more["characters"] = character_ids(types.tolist(), characters)[number]
    place = np.arange(len(ids)) - np.repeat(words[:-1], np.diff(words))
    pad = build_template(((), (), ()), tokenizer).pad
    return TaggedRows(ids, words, words, place.astype(np.int32), more, None, length, pad)


def in_pieces(
    sentences: Sentences, tokenizer, length: int, roles: tuple, stride: int | None = None
) -> TaggedRows:
    """Rows of the pieces of words, for encoders of subwords; a word is read by its first piece.

    A row shows a sentence or, with a stride, as much of its document as there is room for (see
    `windows.document_rows`); `begins` in `more` is then True at the first word of each sentence.
    Each word is tokenised by itself, with a space before it where that makes it a word. A word that
    the tokenizer makes nothing of is its unknown token. `roles` are the family's SPECIAL_TOKENS.
    """
    template = build_template(roles, tokenizer)
    room = length - template.size(1)
    if room < 1:
        raise FirthError(f"data.length={length} has no room for a word")
    space = " " if tokenizer.kind == "bpe" else ""
    flat, sizes = tokenizer.encode_words([space + word for word in sentences.words])
    empty = sizes == 0
    if empty.any() and tokenizer.unk_id is None:
        word = sentences.words[int(empty.argmax())]
        raise FirthError(f"{sentences.source}: the tokenizer makes no token of the word {word!r}")
    starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    kept = np.minimum(np.maximum(sizes, 1), room)
    pieces = np.full(kept.sum(), tokenizer.unk_id or 0, np.int32)
    into, full = np.concatenate([[0], np.cumsum(kept)]), ~empty
    pieces[ranges(into[:-1][full], into[1:][full])] = flat[
        ranges(starts[full], (starts + kept)[full])
    ]
    words, more = _cut(sentences.offsets, kept, room), {}
    begin, end = words[:-1], words[1:]  # the words that a row shows
    if stride is not None:
        documents = np.searchsorted(words, sentences.offsets[sentences.documents])
        rows = document_rows(np.diff(into[words]), documents, room, stride)
        begin, end, words = words[rows.begin], words[rows.end], words[rows.own]
        more["begins"] = np.zeros(len(kept), bool)
        more["begins"][sentences.offsets[:-1]] = True
    before, after = len(template.before), len(template.after)
    inner = into[end] - into[begin]
    offsets = np.concatenate([[0], np.cumsum(inner + before + after)])
    tokens = np.empty(offsets[-1], np.int32)
    for ids, place in ((template.before, offsets[:-1]), (template.after, offsets[1:] - after)):
        tokens[place[:, None] + np.arange(len(ids))] = np.array(ids, np.int32)
    shown = ranges(into[begin], into[end])
    tokens[ranges(offsets[:-1] + before, offsets[1:] - after)] = pieces[shown]
    first = into[:-1] - np.repeat(into[begin], np.diff(words)) + before
    return TaggedRows(
        tokens, offsets, words, first.astype(np.int32), more, None, length, template.pad
    )


def _cut(offsets: np.ndarray, sizes: np.ndarray, room: int) -> np.ndarray:
    """int64 [R + 1]: the first word of each row, where words of these sizes fill rows in turn.

    A sentence begins a row; so does a word for which the row has no room.
    """
    begins = [0]
    for begin, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        used = 0
        for word in range(begin, end):
            if word == begin or used + sizes[word] > room:
                begins.append(word)
                used = 0
            used += sizes[word]
    return np.array([*begins[1:], len(sizes)], np.int64)


class TagBuckets(Buckets):
    """`Buckets` of sentences. Beside its fields, of each row's words in order:

    word_mask bool [W]; first int32 [W], where `firsts`; labels int32 [W]; what `more` of the rows
    holds, [W, ...]. W is L.
    """

    def __init__(self, rows: TaggedRows, firsts: bool, seed: int = 0, lengths=None):
        """Args: rows; firsts, whether the place of a word's first token is told; as `Buckets`."""
        sizes = np.diff(rows.offsets).astype(np.int32)
        flat = Tokenised(
            rows.tokens, rows.offsets, sizes, None, rows.length, rows.pad_id, truncated=0
        )
        super().__init__(flat, lengths, seed)
        arrays = dict(rows.more)
        arrays |= {"first": rows.first} if firsts else {}
        arrays |= {} if rows.labels is None else {"labels": rows.labels}
        self._words, self._arrays = rows.words, arrays
        extra = {k: ((None, *array.shape[1:]), array.dtype) for k, array in arrays.items()}
        self.fields = self.fields | {"word_mask": ((None,), np.dtype(bool))} | extra

    def _assemble(self, example_B: np.ndarray, length: int, epoch: int) -> Batch:
        batch = super()._assemble(example_B, length, epoch)
        number_B = np.maximum(example_B, 0)
        begin_B = self._words[number_B]
        size_B = np.where(example_B >= 0, self._words[number_B + 1] - begin_B, 0)
        batch["word_mask"] = np.arange(length) < size_B[:, None]
        chosen = ranges(begin_B, begin_B + size_B)
        for name, array in self._arrays.items():
            padded = np.zeros((*batch["word_mask"].shape, *array.shape[1:]), array.dtype)
            padded[batch["word_mask"]] = array[chosen]
            batch[name] = padded
        return batch
