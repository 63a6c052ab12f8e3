"""Packed rows: one long text a row, for masked language modelling without sentence pairs.

The selected documents follow each other in one *stream*. In "sentences" mode there is one empty
place between two documents. A row is a range of the stream. A place without a token holds [SEP].
"""

from dataclasses import dataclass

import numpy as np

from firth.data.views.base import Source
from firth.data.views.planned import PlannedConfig, PlannedView, cls_sep_pad
from firth.data.views.selection import Selection, copy_ranges, follow, ranges, select, template_rows
from firth.errors import FirthError

MODES = ("sentences", "documents", "blocks")


@dataclass(frozen=True, kw_only=True)
class PackedConfig(PlannedConfig):
    """Rows [CLS] text [SEP] of at most `length` tokens; each corpus token once an epoch.

    `mode`:
      "sentences" fills a row with whole sentences, across documents, with one more [SEP] between
        two documents (FULL-SENTENCES of Liu et al. 2019, section 4.2).
      "documents" never crosses a document border (DOC-SENTENCES).
      "blocks" cuts the text of all documents every `length - 2` tokens, without separators.
    Sentences longer than a row are cut into pieces. Every epoch has the same rows in another order.

    Raises FirthError for a bad value.
    """

    mode: str = "sentences"

    def __post_init__(self):
        super().__post_init__()
        if self.mode not in MODES:
            raise FirthError(
                f"unknown packing mode {self.mode!r}: expected one of {', '.join(MODES)}"
            )

    def view(self, source: Source) -> PlannedView:
        """The rows of a source; FirthError if the source lacks text or special tokens."""
        special = cls_sep_pad(source.tokenizer)
        planner = PackedPlanner(self, select(source.store, source.documents), special)
        return PlannedView(self, planner, source)


@dataclass(frozen=True)
class PackedPlan:
    """R rows as ranges of the stream."""

    start: np.ndarray  # int64 [R]
    length: np.ndarray  # int32 [R], at most L - 2

    def __len__(self) -> int:
        return len(self.start)


class PackedPlanner:
    """Plans and makes packed rows."""

    varies = False  # every epoch has the same rows, in another order

    def __init__(self, config: PackedConfig, selection: Selection, special: tuple[int, int, int]):
        length, mode = config.length, config.mode
        self.length = length
        self.mode = mode
        self.special = special
        self.capacity = length - 2
        self.selection = selection
        self.identity = f"packed {mode} {length} {selection.digest}"
        gap = 1 if mode == "sentences" else 0
        self._source_D = selection.sentences[selection.first]  # token offset of each document
        length_D = selection.sentences[selection.last] - self._source_D
        self._stop_D = np.cumsum(length_D + gap) - gap  # in the stream
        self._start_D = self._stop_D - length_D

    def plan(self, number: int) -> PackedPlan:
        """The rows of the view; the same for every `number`."""
        if self.mode == "blocks":
            start = np.arange(0, self._stop_D[-1], self.capacity)
            stop = np.minimum(start + self.capacity, self._stop_D[-1])
        else:
            start, stop = self._fill_rows()
        return PackedPlan(start, (stop - start).astype(np.int32))

    def assemble(self, plan: PackedPlan, example_B: np.ndarray) -> dict[str, np.ndarray]:
        """tokens, segments (all 0) and mask of the rows `example_B` of the plan."""
        start_B, length_B = plan.start[example_B], plan.length[example_B]
        stop_B = start_B + length_B
        tokens_BL, mask_BL = template_rows(length_B + 2, self.length, *self.special)
        first_B = np.searchsorted(self._start_D, start_B, side="right") - 1
        last_B = np.searchsorted(self._start_D, stop_B, side="left")
        row_R = np.repeat(np.arange(len(start_B)), last_B - first_B)
        document_R = ranges(first_B, last_B)
        offset_R = self._start_D[document_R]
        from_R = np.maximum(start_B[row_R], offset_R)
        to_R = np.minimum(stop_B[row_R], self._stop_D[document_R])
        source_R = self._source_D[document_R] + from_R - offset_R
        column_R = 1 + from_R - start_B[row_R]
        copy_ranges(tokens_BL, row_R, column_R, self.selection.tokens, source_R, to_R - from_R)
        return {"tokens": tokens_BL, "segments": np.zeros_like(tokens_BL), "mask": mask_BL}

    def _fill_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """(start [R], stop [R]): a row takes pieces as long as they fit.

        `following` gives, for a row that begins with a piece, the first piece of the next row.
        """
        starts, stops = [], []
        start = stop = limit = np.empty(0, np.int64)
        for documents in self.selection.chunks():
            pieces = self._pieces(documents)
            start, stop, limit = map(np.concatenate, zip((start, stop, limit), pieces, strict=True))
            furthest = np.minimum(start + self.capacity, limit)
            following = np.searchsorted(stop, furthest, side="right")
            first = follow(following)
            starts.append(start[first[:-1]])
            stops.append(stop[first[1:] - 1])
            # The last row may continue in the next chunk, so its pieces carry over.
            start, stop, limit = start[first[-1] :], stop[first[-1] :], limit[first[-1] :]
        return np.concatenate([*starts, start[:1]]), np.concatenate([*stops, stop[-1:]])

    def _pieces(self, documents: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(start, stop, limit) of each piece in the stream: a sentence that fits a row.

        Longer sentences are cut every `capacity` tokens. A row with the piece must end at the limit
        or before.
        """
        first_D, last_D = self.selection.first[documents], self.selection.last[documents]
        sentence = ranges(first_D, last_D)
        shift_D = self._start_D[documents] - self._source_D[documents]
        shift = np.repeat(shift_D, last_D - first_D)
        start = self.selection.sentences[sentence] + shift
        stop = self.selection.sentences[sentence + 1] + shift
        end_D = self._stop_D[documents] if self.mode == "documents" else self._stop_D[-1:]
        counts = last_D - first_D if self.mode == "documents" else len(sentence)
        limit = np.repeat(end_D, counts)
        cuts = -(-(stop - start) // self.capacity)
        if cuts.max() > 1:
            start, stop, limit = (np.repeat(array, cuts) for array in (start, stop, limit))
            start += self.capacity * ranges(np.zeros_like(cuts), cuts)
            stop = np.minimum(stop, start + self.capacity)
        return start, stop, limit
