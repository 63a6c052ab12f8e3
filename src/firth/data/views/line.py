"""The line: the text of the selected documents one after another, with end tokens between.

The line exists only as offsets: two binary searches find a place of it in the store.
T places, D documents, S sentences, R ranges, P pieces of ranges, N queries, B rows, L columns.
"""

import copy

import numpy as np

from firth.data.permutation import permute
from firth.data.views.selection import Selection, copy_ranges, ranges

ENDS = ("document", "sentence", "none")


class Line:
    """The documents of a selection in a line, as stored; `shuffled` gives another order.

    `ends`, one of ENDS, says where end tokens come: after each document, after each sentence, or
    nowhere. An end token belongs to the sentence before it. `size` is T. A line takes 24 bytes for
    each document, and with ends="sentence" 8 more for each sentence. The tokens stay on disk.
    """

    def __init__(self, selection: Selection, ends: str, end_id: int | None):
        self.ends = ends
        self._selection = selection
        self._fill = 0 if ends == "none" else end_id
        self._begins = selection.sentences  # of sentences, on the line as stored
        if ends == "sentence":
            self._begins = selection.sentences + np.arange(len(selection.sentences))
        self._arrange(np.arange(len(selection.first)))

    def _arrange(self, order_D: np.ndarray) -> None:
        first_D, last_D = self._selection.first[order_D], self._selection.last[order_D]
        size_D = self._begins[last_D] - self._begins[first_D] + (self.ends == "document")
        self._order = order_D
        self._starts = np.concatenate([[0], np.cumsum(size_D)])  # of documents, on the line
        self._counts = np.concatenate([[0], np.cumsum(last_D - first_D)])  # sentences before them
        self.size = int(self._starts[-1])

    def shuffled(self, key: int) -> "Line":
        """The same documents in a random order that depends only on `key`."""
        line = copy.copy(self)
        documents = len(self._order)
        line._arrange(permute(np.arange(documents), documents, key))
        return line

    def rows(self, shape: tuple[int, int], row_R, column_R, start_R, length_R) -> np.ndarray:
        """int32 of `shape` [B, L] with line[start : start + length] at each (row, column).

        Cells outside all ranges hold arbitrary ids.
        """
        rows_BL = np.full(shape, self._fill, np.int32)
        range_P, rank_P, from_P, to_P = _split(start_R, start_R + length_R, self._starts)
        column_P = column_R[range_P] + from_P - start_R[range_P]
        document_P = self._order[rank_P]
        shift_P = self._begins[self._selection.first[document_P]] - self._starts[rank_P]
        from_P, to_P = from_P + shift_P, to_P + shift_P
        if self.ends == "document":
            to_P = np.minimum(to_P, self._begins[self._selection.last[document_P]])
        elif self.ends == "sentence":
            piece_P, sentence_P, begin_P, to_P = _split(from_P, to_P, self._begins)
            range_P = range_P[piece_P]
            column_P = column_P[piece_P] + begin_P - from_P[piece_P]
            # A sentence's number is the number of end tokens before it.
            to_P = np.minimum(to_P, self._begins[sentence_P + 1] - 1) - sentence_P
            from_P = begin_P - sentence_P
        tokens = self._selection.tokens
        copy_ranges(rows_BL, row_R[range_P], column_P, tokens, from_P, to_P - from_P)
        return rows_BL

    def sentence(self, place_N: np.ndarray) -> np.ndarray:
        """int64 [N]: the number of the sentence at each place, counted along the line."""
        rank_N = np.searchsorted(self._starts, place_N, side="right") - 1
        document_N = self._order[rank_N]
        first_N, last_N = self._selection.first[document_N], self._selection.last[document_N]
        stored_N = self._begins[first_N] + place_N - self._starts[rank_N]
        sentence_N = np.searchsorted(self._begins, stored_N, side="right") - 1
        return self._counts[rank_N] + np.minimum(sentence_N, last_N - 1) - first_N

    def border(self, number_N: np.ndarray) -> np.ndarray:
        """int64 [N]: the place where the sentence of each number begins; T after the last one."""
        rank_N = np.searchsorted(self._counts, number_N, side="right") - 1
        beyond_N = rank_N == len(self._order)
        rank_N = rank_N - beyond_N
        first_N = self._selection.first[self._order[rank_N]]
        sentence_N = first_N + number_N - self._counts[rank_N]
        place_N = self._starts[rank_N] + self._begins[sentence_N] - self._begins[first_N]
        return np.where(beyond_N, self.size, place_N)


def _split(start_R, stop_R, borders):
    """Ranges cut at sorted borders: (range, number of the border before, start, stop) int64 [P]."""
    first_R = np.searchsorted(borders, start_R, side="right") - 1
    last_R = np.searchsorted(borders, stop_R, side="left")
    range_P = np.repeat(np.arange(len(start_R)), last_R - first_R)
    unit_P = ranges(first_R, last_R)
    from_P = np.maximum(start_R[range_P], borders[unit_P])
    to_P = np.minimum(stop_R[range_P], borders[unit_P + 1])
    return range_P, unit_P, from_P, to_P
