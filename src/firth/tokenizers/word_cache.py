"""A tokenizer with a word cache: the same ids as `Tokenizer.encode_flat`, several times faster.

Text repeats its words, and a subword tokenizer gives a word the same ids everywhere
(`Tokenizer.chunks` says where words end). So the tokenizer encodes each distinct word once. A text
then takes table look-ups and one gather.
"""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from firth.tokenizers.base import Encoding, Tokenizer

_WORD_COST = 250  # bytes of an entry besides its letters: string, dict slot, ids, offsets
_WORDS_AT_ONCE = 256
_LONE = re.compile(r" [^\s]*\S\Z")  # a word that a lone space begins
_MARK = "\ud800"  # a lone surrogate: no valid text contains one


class CachedTokenizer:
    """Encodes texts as `tokenizer.encode_flat` does, with a cache of about `memory` bytes.

    A full cache is emptied: the words of the current text are the ones likely to come again.
    """

    def __init__(self, tokenizer: Tokenizer, memory: int = 128 << 20):
        self.tokenizer = tokenizer
        self.memory = memory
        self._clear()

    def _clear(self) -> None:
        self._numbers = _Numbers()
        self._cost = 0
        self._ids = np.zeros(0, np.int32)  # the ids of all cached words, one after another
        self._starts = np.zeros(0, np.int64)  # of each word in _ids
        self._lengths = np.zeros(0, np.int64)

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, int32 [sum of n], and the number n of each, int64 [texts]."""
        if self.tokenizer.chunks is None:
            return self.tokenizer.encode_flat(texts)
        places, lengths, _, _ = self._look_up(texts)
        return self._ids[places], lengths

    def _look_up(self, texts: Sequence[str]) -> tuple:
        """Where the tokens of texts are in the cache, which gets the words that it lacks.

        (places int64 [sum of n] in `_ids`, tokens of each text, words of each text as lists, tokens
        of each word).
        """
        if self._cost > self.memory:
            self._clear()
        rows = list(map(_CUTS[self.tokenizer.chunks], texts))
        words = list(itertools.chain.from_iterable(rows))
        ends_of_rows = np.cumsum([len(row) for row in rows], dtype=np.int64)
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        self._add_words()
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        # Token t of the result is word w's (t - start of w in the result)th.
        shifts = self._starts[numbers] - (ends - lengths)
        places = np.repeat(shifts, lengths) + np.arange(lengths.sum())
        of_rows = np.diff(np.concatenate(([0], ends))[ends_of_rows], prepend=0)
        return places, of_rows, rows, lengths

    def _add_words(self) -> None:
        """Encode the words that are not in the cache."""
        words = self._numbers.new
        if not words:
            return
        self._numbers.new = []
        ids, lengths = self._encode_words(words)
        starts = len(self._ids) + np.cumsum(lengths) - lengths
        self._ids = np.concatenate((self._ids, ids))
        self._starts = np.concatenate((self._starts, starts))
        self._lengths = np.concatenate((self._lengths, lengths))
        self._cost += sum(map(len, words)) + _WORD_COST * len(words)

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
        places, lengths, rows, of_words = self._look_up(texts)
        gap = self.tokenizer.chunks == "words"  # the space between two words is in neither
        sizes = np.fromiter((len(w) + gap for row in rows for w in row), np.int64, len(of_words))
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        begins = np.cumsum(sizes) - sizes
        first = np.cumsum(counts) - counts
        begins -= np.repeat(begins[first], counts)
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


class _Numbers(dict):
    """Word -> its number; an unknown word gets the next number and goes on the list `new`."""

    def __init__(self):
        self.new = []

    def __missing__(self, word: str) -> int:
        self.new.append(word)
        self[word] = number = len(self)
        return number


def _words(text: str) -> list[str]:
    return text.split(" ")


def _spaced_words(text: str) -> list[str]:
    """Words with the space before them, as in byte-level BPE."""
    if "  " in text:  # the pipeline's rules need the whole run of spaces
        return [text]
    return text.replace(" ", _MARK + " ").split(_MARK)


_CUTS = {"words": _words, "spaced words": _spaced_words}
