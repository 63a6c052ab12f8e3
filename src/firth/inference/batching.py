"""Batches of few shapes, because each shape is compiled once."""

import numpy as np


def pad_rows(arrays, batch_size: int) -> list[np.ndarray]:
    """Pad a batch to a power of two rows (at most `batch_size`), so that few shapes compile."""
    rows = len(arrays[0])
    fill = min(1 << (rows - 1).bit_length(), batch_size) - rows
    return [np.concatenate([x, np.repeat(x[:1], fill, axis=0)]) for x in arrays]
