"""Batches of few shapes, because each shape is compiled once."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

ROW = 32  # tokens of a row, where a number of rows says how large batches are
ACCELERATOR_ROW = 512  # the same on a GPU or TPU, whose cores take more to fill
STEP = 4  # row lengths are multiples of this
FEWER = 4  # a batch that is not full has a quarter of the rows, a quarter of those, and so on


class Batch(NamedTuple):
    """`members`: the places of its texts. `rows` and `length`: its shape, both with padding."""

    members: list[int]
    rows: int
    length: int


def token_batches(sizes: Sequence[int], tokens: int, longest: int, step: int = STEP) -> list[Batch]:
    """Batches of about as many tokens each, with little padding and in few shapes.

    Texts of similar length share a batch, the longest first. A length has one number of rows, and
    those of `FEWER` for the last batch.

    Args:
      sizes: the number of tokens of each text.
      tokens: of a batch, padding included; a longer text is a batch of its own.
      longest: the length that no row exceeds.
      step: lengths are multiples of it.
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    batches = []
    while order:
        length = padded_length(sizes[order[0]], longest, step)
        rows = max(tokens // length, 1)
        members, order = order[:rows], order[rows:]
        while rows > 1 and len(members) <= (fewer := max(rows // FEWER, 1)):
            rows = fewer
        batches.append(Batch(members, rows, length))
    return batches


def batch_tokens(batch_size: int) -> int:
    """The tokens of a batch, with padding, of `batch_size` rows of 32, on accelerators of 512."""
    return batch_size * (ROW if jax.default_backend() == "cpu" else ACCELERATOR_ROW)


def padded_length(size: int, longest: int, step: int = STEP) -> int:
    """The length of a row for a text: the next multiple of `step`, or an eighth longer at most."""
    step = max((1 << (size - 1).bit_length()) // 16, step)
    return min(-(-max(size, 1) // step) * step, longest)


def pad_rows(arrays, batch_size: int) -> list[np.ndarray]:
    """Pad a batch to a power of two rows (at most `batch_size`), so that few shapes compile."""
    rows = len(arrays[0])
    return repeat_first(arrays, min(1 << (rows - 1).bit_length(), batch_size))


def repeat_first(arrays, rows: int) -> list[np.ndarray]:
    """Pad a batch to a number of rows with copies of the first."""
    fill = rows - len(arrays[0])
    return [np.concatenate([x, np.repeat(x[:1], fill, axis=0)]) for x in arrays]
