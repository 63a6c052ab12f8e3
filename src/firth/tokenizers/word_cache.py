"""A tokenizer with a word cache: the same ids as `Tokenizer.encode_flat`, several times faster.

Text repeats its words, and a subword tokenizer gives a word the same ids everywhere
(`Tokenizer.chunks` says where words end). So the tokenizer encodes each distinct word once. A text
then takes table look-ups and one gather.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from firth.tokenizers.base import Encoding, Tokenizer
from firth.tokenizers.word_table import WordTable

_WORD_COST = 120  # bytes of an entry besides its letters: key, slots, ids, offsets
_CHARACTERS_AT_ONCE = 1 << 19  # of text, so that the arrays stay in the processor's caches
_WORDS_AT_ONCE = 256
_LONE = re.compile(r" [^\s]*\S\Z")  # a word that a lone space begins
_SPACE = ord(" ")


class CachedTokenizer:
    """Encodes texts as `tokenizer.encode_flat` does, with a cache of about `memory` bytes.

    A full cache is emptied: the words of the current text are the ones likely to come again.
    """

    def __init__(self, tokenizer: Tokenizer, memory: int = 128 << 20):
        self.tokenizer = tokenizer
        self.memory = memory
        self._clear()

    def _clear(self) -> None:
        self._table = WordTable()
        self._cost = 0
        self._ids = np.zeros(0, np.int32)  # the ids of all cached words, one after another
        self._starts = np.zeros(1, np.int64)  # of each word in _ids; word 0 is no word
        self._lengths = np.zeros(1, np.int64)

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, int32 [sum of n], and the number n of each, int64 [texts]."""
        if self.tokenizer.chunks is None:
            return self.tokenizer.encode_flat(texts)
        if self._cost > self.memory:
            self._clear()
        ids, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for cut in _cuts(texts, self.tokenizer.chunks):
            places, of_texts, _ = self._place(self._number(cut), cut.counts)
            ids.append(self._ids[places])
            lengths.append(of_texts)
        return np.concatenate(ids), np.concatenate(lengths)

    def _number(self, cut: "_Cut") -> np.ndarray:
        """The number of each word of a cut text; the cache gets the words that it lacks."""
        numbers, new = self._table.number(cut.text, cut.begins, cut.ends)
        if new:
            ids, lengths = self._encode_words([w.decode("utf-8", "surrogatepass") for w in new])
            starts = len(self._ids) + np.cumsum(lengths) - lengths
            self._ids = np.concatenate((self._ids, ids))
            self._starts = np.concatenate((self._starts, starts))
            self._lengths = np.concatenate((self._lengths, lengths))
            self._cost += sum(map(len, new)) + _WORD_COST * len(new)
        return numbers

    def _place(self, numbers: np.ndarray, counts: np.ndarray) -> tuple:
        """Where the tokens of texts are in the cache, from the numbers of their words.

        (places int64 [sum of n] in `_ids`, tokens of each text, tokens of each word).
        """
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        # Token t of the result is word w's (t - start of w in the result)th.
        shifts = self._starts[numbers] - (ends - lengths)
        places = np.repeat(shifts, lengths) + np.arange(lengths.sum())
        of_rows = np.diff(np.concatenate(([0], ends))[np.cumsum(counts)], prepend=0)
        return places, of_rows, lengths

    def _encode_words(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        return self.tokenizer.encode_words(words)


class SpanTokenizer(CachedTokenizer):
    """The same, which also says what characters of its text each token stands for."""

    def _clear(self) -> None:
        super()._clear()
        self._spans = np.zeros((0, 2), np.int32)  # characters of the word

    def encode_spans(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ids int32 [sum of n], characters [begin, end) int32 [sum of n, 2], n int64 [texts]).

        They are those of `Tokenizer.encode`.
        """
        if self.tokenizer.chunks is None:
            return _flat(self.tokenizer.encode(texts))
        if self._cost > self.memory:
            self._clear()
        cut = _cut(texts, self.tokenizer.chunks)
        places, lengths, of_words = self._place(self._number(cut), cut.counts)
        begins = _characters_before(cut.text)[cut.begins]
        first = np.cumsum(cut.counts) - cut.counts
        begins -= np.repeat(begins[first], cut.counts)
        spans = self._spans[places] + np.repeat(begins, of_words)[:, None]
        return self._ids[places], spans.astype(np.int32), lengths

    def _encode_words(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Many words at once, as texts of words: a text costs the tokenizer far more than a word.

        Words that a cut does not part from their neighbours, such as those without a space before
        them in byte-level BPE, are texts of their own.
        """
        spaced = self.tokenizer.chunks == "spaced words"
        alone = np.array([spaced and not _LONE.match(word) for word in words], bool)
        own, rest = np.flatnonzero(alone), np.flatnonzero(~alone)
        groups = [rest[n : n + _WORDS_AT_ONCE] for n in range(0, len(rest), _WORDS_AT_ONCE)]
        groups += [own[n : n + 1] for n in range(len(own))]
        gap = "" if spaced else " "
        texts = [gap.join(words[n] for n in group) for group in groups]
        ids, spans, lengths = _flat(self.tokenizer.encode(texts))
        # Word k of the texts, one after another, begins at character begins[k].
        order = np.concatenate([*groups, np.zeros(0, np.int64)])
        counts = np.fromiter(map(len, groups), np.int64, len(groups))
        sizes = np.fromiter((len(words[n]) + len(gap) for n in order), np.int64, len(order))
        begins = np.cumsum(sizes) - sizes
        ends = np.cumsum(counts)
        texts_begin = np.repeat(begins[ends - counts], lengths)
        owner = np.searchsorted(begins + sizes, texts_begin + spans[:, 0], side="right")
        owner = np.minimum(owner, np.repeat(ends - 1, lengths))  # white space may end a text
        spans = spans - (begins[owner] - texts_begin)[:, None]
        back = np.argsort(order[owner], kind="stable")
        self._spans = np.concatenate((self._spans, spans[back].astype(np.int32)))
        return ids[back], np.bincount(order[owner], minlength=len(words))


def _flat(encodings: Sequence[Encoding]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids, characters, tokens of each text) of texts, one after another."""
    lengths = np.fromiter((len(e.ids) for e in encodings), np.int64, len(encodings))
    none = Encoding(np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros(0, np.int32))
    ids, spans, _ = map(np.concatenate, zip(none, *encodings, strict=True))
    return ids, spans, lengths


class _Cut(NamedTuple):
    """Texts cut into words.

    text: all texts in UTF-8. begins, ends: int64 [words], the bytes of each word, in order.
    counts: int64 [texts], the number of words of each text, at least 1.
    """

    text: bytes
    begins: np.ndarray
    ends: np.ndarray
    counts: np.ndarray


def _cuts(texts: Sequence[str], chunks: str) -> Iterator[_Cut]:
    """Cut texts into words, some texts at a time."""
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    borders = np.flatnonzero(np.diff(np.cumsum(sizes) // _CHARACTERS_AT_ONCE)) + 1
    for begin, end in itertools.pairwise([0, *borders, len(texts)]):
        yield _cut(texts[begin:end], chunks)


def _cut(texts: Sequence[str], chunks: str) -> _Cut:
    """Cut texts where `Tokenizer.chunks` says.

    For "spaced words", of byte-level BPE, a word has the space before it. A text with a run of
    spaces stays whole, since the pipeline's rules need the whole run.
    """
    spaced = chunks == "spaced words"
    codes = [text.encode("utf-8", "surrogatepass") for text in texts]
    counts = [1 if spaced and b"  " in code else 1 + code.count(b" ") for code in codes]
    counts = np.array(counts, np.int64)
    text = b"".join(codes)
    text_ends = np.cumsum(np.fromiter(map(len, codes), np.int64, len(codes)))
    text_begins = np.concatenate(([0], text_ends))[:-1]
    spaces = np.flatnonzero(np.frombuffer(text, np.uint8) == _SPACE)
    if spaced:
        owners = np.searchsorted(text_ends, spaces, side="right")
        spaces = spaces[counts[owners] > 1]
    # The first word of a text begins with it and the last one ends with it.
    begins, ends = (np.empty(counts.sum(), np.int64) for _ in range(2))
    last = np.cumsum(counts) - 1
    inner = np.ones(len(ends), bool)
    inner[last] = False
    ends[last], ends[inner] = text_ends, spaces
    inner = np.roll(inner, 1)
    begins[~inner], begins[inner] = text_begins, spaces + (not spaced)
    return _Cut(text, begins, ends, counts)


def _characters_before(text: bytes) -> np.ndarray:
    """How many characters begin before each byte and before the end, int64 [bytes + 1]."""
    begins = np.frombuffer(text, np.uint8) & 0xC0 != 0x80
    return np.concatenate(([0], np.cumsum(begins)))
