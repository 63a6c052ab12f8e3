"""XLNet's rows: text that continues from row to row, then two segments, A [SEP] B [SEP] [CLS].

Yang et al. 2019, sections 2.4, 2.5 and 3.1, as their data code does it. Row t of a stream begins
with its places t * reuse .. (t + 1) * reuse - 1. The model caches their states for row t + 1. A
continues from there. B continues A, or comes from anywhere in the stream.
B rows, L length. Places count along each row's stream in the direction of reading.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from firth.data.permutation import random_below, random_unit
from firth.data.views.line import Line
from firth.errors import FirthError
from firth.tokenizers.special_tokens import truncation

_LARGEST_DRAW = (1 << 31) - 1  # of random_below: B begins within these places of a longer stream


@dataclass(frozen=True)
class Pieces:
    """Pieces of a line, one for each row, of `size` places each; some are read backwards.

    The numbers of sentence borders grow in the direction of reading. In a backward piece they are
    those of the line, negated.
    """

    line: Line
    start: np.ndarray  # int64 [B], on the line
    size: int
    backward: np.ndarray  # bool [B]

    def border_before(self, place_B: np.ndarray) -> np.ndarray:
        """int64 [B]: the number of the last sentence border at or before each place."""
        ahead_B = np.where(self.backward, self.size - 1 - place_B, place_B)
        number_B = self.line.sentence(self.start + ahead_B)
        return np.where(self.backward, -(number_B + 1), number_B)

    def place(self, border_B: np.ndarray) -> np.ndarray:
        """int64 [B]: the place of each border, within 0 .. size."""
        ahead_B = self.line.border(np.abs(border_B)) - self.start
        place_B = np.where(self.backward, self.size - ahead_B, ahead_B)
        return np.clip(place_B, 0, self.size)

    def rows(self, length: int, *segments: tuple[np.ndarray, ...]) -> np.ndarray:
        """int32 [B, L]: segments of (column [B], place [B], length [B]) in the order of reading."""
        column, place, count = (np.concatenate(part) for part in zip(*segments, strict=True))
        row = np.tile(np.arange(len(self.start)), len(segments))
        backward = self.backward[row]
        # Backward rows are filled from the other end, then reversed.
        column = np.where(backward, length - column - count, column)
        ahead = np.where(backward, self.size - place - count, place)
        shape = (len(self.start), length)
        rows_BL = self.line.rows(shape, row, column, self.start[row] + ahead, count)
        rows_BL[self.backward] = rows_BL[self.backward, ::-1]
        return rows_BL


def check_reuse(length: int, reuse: int) -> None:
    """FirthError if a row has no room for the reused tokens, two segments and three specials."""
    if reuse < 1 or length - reuse - 3 < 2:
        raise FirthError(
            f"reuse={reuse} does not fit length={length}: after the reused tokens a row has "
            "[SEP] [SEP] [CLS] and two segments of at least one token; expected 0 < reuse <= "
            f"{length - 5}"
        )


class ReuseRows:
    """Cuts XLNet's rows; `firth.data.views.streams.StreamsConfig` describes them."""

    def __init__(self, length: int, reuse: int, cls_id: int, sep_id: int):
        self.length = length
        self.reuse = reuse
        self.special = (cls_id, sep_id)

    def steps(self, size: int) -> int:
        """The number of rows of a stream of `size` tokens."""
        return max(0, (size - self.length) // self.reuse + 1)

    def assemble(
        self, pieces: Pieces, time: int, key: Callable[[str], int], counter_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        """tokens, segments, mask and next of row `time` of each piece.

        `key(name)` and `counter_B` decide the random choices.
        """
        begin = (time + 1) * self.reuse
        a_stop_B, b_start_B, b_stop_B, next_B = self._segments(pieces, begin, key, counter_B)
        budget = self.length - self.reuse - 3
        a_cut_B, _ = truncation(a_stop_B - begin, b_stop_B - b_start_B, budget)
        a_stop_B = a_stop_B - a_cut_B
        b_size_B = budget - (a_stop_B - begin)
        front_B = a_stop_B - begin + self.reuse  # the reused text and A
        zero_B = np.zeros_like(front_B)
        tokens_BL = pieces.rows(
            self.length,
            (zero_B, zero_B + begin - self.reuse, front_B),
            (front_B + 1, b_start_B, b_size_B),
        )
        cls_id, sep_id = self.special
        tokens_BL[np.arange(len(front_B)), front_B] = sep_id
        tokens_BL[:, -2:] = sep_id, cls_id
        segments_BL = (np.arange(self.length) > front_B[:, None]).astype(np.int32)
        segments_BL[:, -1] = 2
        return {
            "tokens": tokens_BL,
            "segments": segments_BL,
            "mask": np.ones(tokens_BL.shape, bool),
            "next": next_B.astype(np.int32),
        }

    def _segments(self, pieces: Pieces, begin: int, key, counter_B: np.ndarray):
        """(end of A, start of B, end of B, whether B is random), before truncation.

        A may end at any sentence border that leaves B a token. Without such a border A ends at the
        next one. As in their code, a random B never includes the last token of a stream.
        """
        size, budget = pieces.size, self.length - self.reuse - 3
        at_B = np.full(len(counter_B), begin)
        before_B = pieces.border_before(at_B)
        last_B = pieces.border_before(at_B + budget - 1)
        cuts_B = last_B - before_B
        stop_B = pieces.place(last_B + 1)
        drawn_B = random_below(key("cut"), counter_B, np.maximum(cuts_B, 1))
        a_stop_B = np.where(cuts_B > 0, pieces.place(before_B + 1 + drawn_B), stop_B)
        next_B = (cuts_B == 0) | (random_unit(key("next"), counter_B) < 0.5)

        wanted_B = np.maximum(1, budget - (a_stop_B - begin))
        choices_B = np.minimum(size - wanted_B, _LARGEST_DRAW)
        drawn_B = random_below(key("place"), counter_B, choices_B)
        random_start_B = pieces.place(pieces.border_before(drawn_B))
        after_B = pieces.place(pieces.border_before(drawn_B + wanted_B - 1) + 1)
        random_stop_B = np.minimum(after_B, size - 1)
        b_start_B = np.where(next_B, random_start_B, a_stop_B)
        return a_stop_B, b_start_B, np.where(next_B, random_stop_B, stop_B), next_B
