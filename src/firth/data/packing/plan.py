"""Which sizes share a row, so that few rows hold all (Krell et al. 2021, "Efficient sequence
packing without cross-contamination", section 3.1: longest-pack-first histogram-packing).

Sizes alone decide, so every order of the examples has as many rows. It takes time by the number of
different sizes, not of examples. N texts, P rows.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Plan:
    """The places of texts of given sizes in rows.

    Attributes:
      sizes: int64 [N], the size of the text that each place is for, in the order of rows.
      starts: int64 [N], the column where that text begins in its row.
      begins: int64 [P + 1], the first place of each row; the last is N.
    """

    sizes: np.ndarray
    starts: np.ndarray
    begins: np.ndarray

    def __len__(self):
        return len(self.begins) - 1

    @property
    def counts(self) -> np.ndarray:
        """int64 [P], the number of texts of each row."""
        return np.diff(self.begins)


def pack(sizes_N: np.ndarray, length: int) -> Plan:
    """Rows of `length` tokens for texts of these sizes (1 to `length`), the longest text first.

    A text goes into the row with the least room that holds it, or begins one.
    """
    open_rows: dict[int, list] = {}  # room -> [(number of rows, the sizes in each)]
    for size, left in reversed(list(zip(*np.unique(sizes_N, return_counts=True), strict=True))):
        size, left = int(size), int(left)
        for room in sorted(room for room in open_rows if room >= size):
            while left and open_rows[room]:
                rows, pattern = open_rows[room].pop()
                used, left = _fill(open_rows, rows, pattern, room, size, left)
                if used < rows:
                    open_rows[room].append((rows - used, pattern))
        _fill(open_rows, left, (), length, size, left)
    rows = [group for room in sorted(open_rows) for group in open_rows[room]]
    patterns = [np.tile(pattern, (number, 1)) for number, pattern in rows]
    counts = np.concatenate([np.full(*each.shape) for each in patterns])
    return Plan(
        sizes=np.concatenate([each.ravel() for each in patterns]),
        starts=np.concatenate([(each.cumsum(1) - each).ravel() for each in patterns]),
        begins=np.concatenate([[0], np.cumsum(counts)]),
    )


def _fill(open_rows: dict, rows: int, pattern: tuple, room: int, size: int, left: int):
    """Put up to `left` texts of one size into rows alike, one row after the other.

    Returns (the number of rows that got some, the number of texts still left).
    """
    most = room // size
    full = min(rows, left // most)
    left -= full * most
    last = left if full < rows else 0  # fewer than a row holds
    for number, texts in ((full, most), (1, last)):
        if number and texts:
            group = (number, (*pattern, *(size,) * texts))
            open_rows.setdefault(room - size * texts, []).append(group)
    return full + (last > 0), left - last
