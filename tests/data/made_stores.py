"""Small stores for the tests of views: token p of the corpus is FIRST + p, which tells p."""

from types import SimpleNamespace

import numpy as np

PAD, CLS, SEP, FIRST = 3, 1, 2, 10
IDS = {"cls_id": CLS, "sep_id": SEP, "pad_id": PAD}


def made_store(documents: list[list[int]], dtype=np.uint32) -> SimpleNamespace:
    """A store whose documents have sentences of the given lengths."""
    lengths = [length for document in documents for length in document]
    sentences = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    borders = np.concatenate([[0], np.cumsum([len(d) for d in documents], dtype=np.int64)])
    tokens = np.arange(FIRST, FIRST + sentences[-1]).astype(dtype)
    return SimpleNamespace(
        tokens=tokens, sentences=sentences, documents=borders, digest=f"made {lengths}"
    )


def random_documents(
    seed: int, count: int, longest: int = 40, sentences: int = 30
) -> list[list[int]]:
    """`count` documents of 1..sentences sentences of 1..longest tokens."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, sentences + 1, count)
    return [rng.integers(1, longest + 1, size).tolist() for size in sizes]


def positions(row: np.ndarray) -> np.ndarray:
    """The corpus positions of the tokens in a row, special tokens left out."""
    return row[row >= FIRST].astype(np.int64) - FIRST
