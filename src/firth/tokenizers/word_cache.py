"""A tokenizer with a word cache: the same ids as `Tokenizer.encode_flat`, several times faster.

Text repeats its words, and a subword tokenizer gives a word the same ids everywhere
(`Tokenizer.chunks` says where words end). So the tokenizer encodes each distinct word once. A text
then takes table look-ups and one gather.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from firth.tokenizers.base import Tokenizer

_WORD_COST = 250  # bytes of an entry besides its letters: string, dict slot, ids, offsets
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
        ids = self._ids[np.repeat(shifts, lengths) + np.arange(lengths.sum())]
        return ids, np.diff(np.concatenate(([0], ends))[ends_of_rows], prepend=0)

    def _add_words(self) -> None:
        """Encode the words that are not in the cache."""
        words = self._numbers.new
        if not words:
            return
        self._numbers.new = []
        ids, lengths = self.tokenizer.encode_words(words)
        starts = len(self._ids) + np.cumsum(lengths) - lengths
        self._ids = np.concatenate((self._ids, ids))
        self._starts = np.concatenate((self._starts, starts))
        self._lengths = np.concatenate((self._lengths, lengths))
        self._cost += sum(map(len, words)) + _WORD_COST * len(words)


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
