"""Count the n-grams of a text: a sorted table for each order.

The words of a vocabulary have the ids 0 .. V-1, and V is `<s>`, which begins a sentence and is
never predicted. An n-gram is the number of its first n-1 words in the table below, and its last
word. So each table is one sorted array of integers, and the n-grams with one prefix lie together.
T places of the text, G n-grams of one order, V words.
"""

from dataclasses import dataclass

import numpy as np

from firth.errors import FirthError

LONGEST = 12  # words; longer n-grams hardly ever occur twice


@dataclass(frozen=True)
class Grams:
    """The different n-grams of one order; those of order 1 are all V + 1 words, seen or not.

    keys: int64 [G], sorted; prefix * (V + 1) + word.
    counts: int64 [G], how often each occurs.
    suffix: int32 [G], the number of its last n-1 words in the table below (0 for order 1).
    begins: bool [G], whether its first word is `<s>`.
    """

    keys: np.ndarray
    counts: np.ndarray
    suffix: np.ndarray
    begins: np.ndarray

    def __len__(self):
        return len(self.keys)


@dataclass(frozen=True)
class Counts:
    """The n-grams of all orders, from 1 on, of a text over a vocabulary of `size` words."""

    size: int
    orders: tuple[Grams, ...]

    def prefix(self, order: int) -> np.ndarray:
        """int64 [G]: for each n-gram of an order its first words, as a number in the table below.

        The one empty prefix of order 1 has the number 0.
        """
        grams = self.orders[order - 1]
        return np.zeros(len(grams), np.int64) if order == 1 else grams.keys // (self.size + 1)


def with_starts(tokens_T: np.ndarray, starts_T: np.ndarray, size: int):
    """(words, depth): the text with `<s>` before each start, and each word's distance from it.

    `starts_T` is True at the first word of each sentence; the first word of all must be one.
    Returns int32 and int64 [T + number of starts].
    """
    place_S = np.flatnonzero(starts_T)
    words = np.insert(tokens_T.astype(np.int32), place_S, size)
    begin_S = place_S + np.arange(len(place_S))
    length_S = np.diff(begin_S, append=len(words))
    return words, np.arange(len(words)) - np.repeat(begin_S, length_S)


def count(tokens_T: np.ndarray, starts_T: np.ndarray, size: int, order: int) -> Counts:
    """Count the n-grams of orders 1 .. `order` within the sentences of a text.

    Args:
      tokens_T: ids of words, 0 .. size - 1, the end of each sentence included.
      starts_T: bool, True at the first word of each sentence.
      size: of the vocabulary, V.
      order: words of the longest n-grams.

    An n-gram at the beginning of a sentence begins with one `<s>`. Takes about 40 bytes a word of
    the text, besides the tables. Raises FirthError for a bad order or a text without words.
    """
    if not 1 <= order <= LONGEST:
        raise FirthError(f"order={order}: expected 1 to {LONGEST} words")
    if not len(tokens_T):
        raise FirthError("the text has no words to count")
    words, depth = with_starts(tokens_T, starts_T, size)
    unigrams = np.bincount(words, minlength=size + 1)
    ids = np.arange(size + 1)
    orders = [Grams(ids, unigrams, np.zeros(size + 1, np.int32), ids == size)]
    rank = words  # of the n-gram that ends at each place, in the table of the order below
    for n in range(2, order + 1):
        place = np.flatnonzero(depth >= n - 1)
        if not len(place):
            raise FirthError(f"order={order}: no sentence has {n} words, <s> and the end included")
        keys = rank[place - 1].astype(np.int64) * (size + 1) + words[place]
        by_key = np.argsort(keys)
        keys = keys[by_key]
        is_new = np.concatenate([[True], keys[1:] != keys[:-1]])
        first = np.flatnonzero(is_new)
        seen_at = place[by_key[first]]
        times = np.diff(first, append=len(keys))
        orders.append(Grams(keys[first], times, rank[seen_at], depth[seen_at] == n - 1))
        if n < order:
            rank = np.full(len(words), -1, np.int32)
            rank[place[by_key]] = np.cumsum(is_new, dtype=np.int32) - 1
    return Counts(size, tuple(orders))
