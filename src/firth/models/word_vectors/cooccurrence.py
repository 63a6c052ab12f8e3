"""How often words stand near each other: the sparse symmetric matrix that GloVe factorises.

T places of a text, V words, K cells that are not zero.
"""

from typing import NamedTuple

import numpy as np

from firth.errors import FirthError

PLACES = 1 << 19  # of a text, counted at a time


class Cells(NamedTuple):
    """The cells of the matrix that are not zero, by row and then by column.

    rows, columns: int32 [K], numbers of words. values: float32 [K].
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


def count(words_T: np.ndarray, units_T: np.ndarray, size: int, window: int) -> Cells:
    """Sum 1 / distance over the pairs of words at most `window` places apart, both ways.

    Args:
      words_T: int32, numbers of words, 0 .. size - 1; -1 is no word, and takes no place.
      units_T: the number of the sentence of each place, which no pair crosses.
      size: V.
      window: places, at least 1.

    A pair of one word counts for both of its places, as in the GloVe tool. Takes 32 bytes a cell,
    and for a piece of the text 16 bytes a pair. Raises FirthError for a text without a pair.
    """
    place_N = np.flatnonzero(words_T >= 0)
    words_N, units_N = words_T[place_N].astype(np.int64), units_T[place_N]
    sums = []  # of pieces of the text, each at least twice as large as the next
    for begin in range(0, len(words_N), PLACES):
        sums.append(_piece(words_N, units_N, begin, size, window))
        while len(sums) > 1 and 2 * len(sums[-1][0]) > len(sums[-2][0]):
            sums[-2:] = [_summed(*map(np.concatenate, zip(*sums[-2:], strict=True)))]
    keys, values = _summed(*map(np.concatenate, zip(*sums, strict=True))) if sums else ([], [])
    if not len(keys):
        raise FirthError("the corpus is too small: no two of its words stand in one window")
    rows, columns = np.divmod(keys, size)  # rows <= columns
    values = np.where(rows == columns, 2 * values, values)
    other = rows != columns
    both = np.concatenate([keys, columns[other] * size + rows[other]])
    order = np.argsort(both)
    rows, columns = np.divmod(both[order], size)
    values = np.concatenate([values, values[other]])[order]
    return Cells(rows.astype(np.int32), columns.astype(np.int32), values.astype(np.float32))


def _piece(words_N, units_N, begin: int, size: int, window: int):
    """(keys, sums) of the pairs whose first place is in a piece, smaller word * V + larger word."""
    keys, values = [], []
    for distance in range(1, window + 1):
        first = slice(begin, min(begin + PLACES, len(words_N) - distance))
        second = slice(begin + distance, max(first.stop, begin) + distance)
        here, there = words_N[first], words_N[second]
        same = units_N[first] == units_N[second]
        pair = np.minimum(here, there) * size + np.maximum(here, there)
        keys.append(pair[same])
        values.append(np.full(same.sum(), 1 / distance))
    return _summed(np.concatenate(keys), np.concatenate(values))


def _summed(keys, values):
    """The different keys, sorted, and the sum of each one's values."""
    order = np.argsort(keys, kind="stable")  # stable, so that sums do not hang on the sort
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(values[order], first) if len(keys) else values
    return keys[first], sums
