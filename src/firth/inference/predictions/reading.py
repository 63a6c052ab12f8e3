"""How texts become rows of a model: whole, cut to a length, or in windows."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from firth.errors import FirthError
from firth.tokenizers.special_tokens import Template, truncation

LONG = ("truncate", "average")


@dataclasses.dataclass(frozen=True)
class Reading:
    """How texts become rows of the model.

    batch_size: rows computed at a time.
    max_length: the most tokens of a row, special ones included. None: as many as in training where
      the model is a workdir, else the rows of the position table.
    long: what becomes of a longer text. "truncate" cuts its end, or that of the longer text of a
      pair. "average" reads it in windows, each beside the other text of a pair, and averages the
      probabilities, or the scores.
    stride: tokens from the beginning of a window to that of the next, at most a window. None: half
      a window. The last window ends with the text.
    packed: put several texts into a row of `max_length` tokens, each read as if it were alone; a
      batch then has the tokens of `batch_size` rows of 32 (on accelerators of 512). Outputs are
      the same but for rounding, and one shape is compiled.

    Raises FirthError for a value out of range.
    """

    batch_size: int = 32
    max_length: int | None = None
    long: str = "truncate"
    stride: int | None = None
    packed: bool = False

    def __post_init__(self):
        if self.long not in LONG:
            raise FirthError(f"long={self.long!r} is unknown; choose {' or '.join(LONG)}")
        if self.stride is not None and self.long != "average":
            raise FirthError("stride is that of windows; it needs long=average")
        for name in ("batch_size", "max_length", "stride"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise FirthError(f"{name}={value}: expected a positive number")

    def rows(
        self, template: Template, ids: Sequence[np.ndarray], limit: int
    ) -> tuple[list[tuple[np.ndarray, int]], bool]:
        """The rows of a text, or of a pair, whose token ids are `ids`, a list of one or two.

        Returns ([(ids int32 [n] with special tokens, where the second text begins)], whether tokens
        of the text are in no row). `limit` leaves room for a token of each text at least.
        """
        room = limit - template.size(len(ids))
        sizes = [len(one) for one in ids]
        if sum(sizes) <= room:
            return [template.join(*ids)], False
        if self.long == "truncate":
            cuts = truncation(sizes[0], sum(sizes[1:]), room)
            kept = [one[: len(one) - cut] for one, cut in zip(ids, cuts, strict=False)]
            return [template.join(*kept)], True
        long = 0 if sizes[0] > sum(sizes[1:]) else 1  # the text that is read in windows
        kept = [one[: room // 2] for one in ids]  # of the other one, half a row at most
        size = room - sum(len(one) for i, one in enumerate(kept) if i != long)
        stride, last = min(self.stride or max(size // 2, 1), size), sizes[long] - size
        rows = []
        for begin in (*range(0, last, stride), last):
            kept[long] = ids[long][begin : begin + size]
            rows.append(template.join(*kept))
        return rows, any(len(kept[i]) < sizes[i] for i in range(len(ids)) if i != long)
