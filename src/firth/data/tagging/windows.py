"""Rows with document context: sentences beside their neighbours (Devlin et al. 2019, section 5.3).

A row is as much of a document as it has room for, in whole units: sentences, or parts of a sentence
that is longer than a row. Neighbouring rows overlap. A unit is read for its tags in one row, that
in which the smaller of its contexts to the left and to the right is largest, as the BERT code
chooses among the windows of a question's text. U units, R rows.
"""

import itertools
from typing import NamedTuple

import numpy as np

from firth.errors import FirthError

CONTEXTS = ("sentence", "document")


class Rows(NamedTuple):
    """begin, end: int64 [R], the units that a row shows. own: int64 [R + 1], those it is read for.

    Row r is read for the units own[r] to own[r + 1] - 1, and shows these at least.
    """

    begin: np.ndarray
    end: np.ndarray
    own: np.ndarray


def stride_of(context: str, stride: int = 0, field: str = "data.context") -> int | None:
    """The stride of `data.tagging.rows.in_pieces`; None for rows of a sentence each.

    Raises FirthError, naming `field`, for a context that is none of CONTEXTS, and for a negative
    stride.
    """
    if context not in CONTEXTS:
        raise FirthError(f"{field}={context!r}: expected {' or '.join(CONTEXTS)}")
    if stride < 0:
        raise FirthError(f"data.stride={stride}: expected 0 (half a row) or more")
    return stride if context == "document" else None


def document_rows(sizes: np.ndarray, documents: np.ndarray, room: int, stride: int) -> Rows:
    """The rows of all documents.

    Args:
      sizes: int [U], tokens of the units; none is above `room`.
      documents: int, the first unit of each document.
      room: tokens of a row.
      stride: tokens from the beginning of a row to that of the next, at least; 0: half of `room`.
        A row begins with a unit, and the last of a document reaches as far back as it has room.
    """
    stride, parts = stride or max(room // 2, 1), []
    bounds = [*documents.tolist(), len(sizes)]
    for first, last in itertools.pairwise(bounds):
        parts.append(first + _of_document(np.asarray(sizes[first:last], np.int64), room, stride))
    begin, end, own = np.concatenate(parts, axis=1)
    return Rows(begin, end, np.append(own, len(sizes)))


def _of_document(sizes: np.ndarray, room: int, stride: int) -> np.ndarray:
    """int64 [3, R] of one document: begin, end and the first unit that the row is read for."""
    ends = np.cumsum(sizes)
    starts, begin, windows = ends - sizes, 0, []
    while True:
        end = int(np.searchsorted(ends, starts[begin] + room, "right"))
        if end == len(sizes):
            break
        windows.append((begin, end))
        later = int(np.searchsorted(starts, starts[begin] + stride))
        begin = max(min(later, end), begin + 1)
    windows.append((int(np.searchsorted(starts, ends[-1] - room)), len(sizes)))
    best, row = np.full(len(sizes), -1), np.zeros(len(sizes), np.int64)
    for number, (begin, end) in enumerate(windows):
        shown = slice(begin, end)
        context = np.minimum(starts[shown] - starts[begin], ends[end - 1] - ends[shown])
        better = context > best[shown]
        best[shown] = np.where(better, context, best[shown])
        row[shown] = np.where(better, number, row[shown])
    used, own = np.unique(row, return_index=True)
    return np.array([*np.array(windows, np.int64)[used].T, own])
