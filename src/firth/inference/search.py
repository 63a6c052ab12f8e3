"""`firth search`: the texts whose vectors are nearest to a query's.

firth search --vectors vectors.npz --query "a broken vase" --texts sentences.txt
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from firth.errors import FirthError
from firth.inference.vectors import SMALLEST

ROWS = 1 << 16  # vectors compared at a time


class Hit(NamedTuple):
    """One text that was found: its row, from 0, and its cosine similarity to the query."""

    row: int
    similarity: float


def nearest(vectors: np.ndarray, queries: np.ndarray, top: int) -> list[list[Hit]]:
    """The `top` most similar rows of `vectors` float [N, D] for each of `queries` float [Q, D].

    Similarity is the cosine of the angle; equally similar rows come in their order. Raises
    FirthError if the widths differ.
    """
    if vectors.shape[1] != queries.shape[1]:
        raise FirthError(
            f"the vectors have width {vectors.shape[1]}, but those of the queries "
            f"{queries.shape[1]}; search with the model that made them"
        )
    queries = _unit(queries)
    parts = [
        _unit(vectors[begin : begin + ROWS]) @ queries.T for begin in range(0, len(vectors), ROWS)
    ]
    similarity_QN = np.concatenate(parts).T
    order_QN = np.argsort(-similarity_QN, axis=1, kind="stable")[:, :top]
    return [
        [Hit(int(row), float(similar[row])) for row in rows]
        for similar, rows in zip(similarity_QN, order_QN, strict=True)
    ]


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SMALLEST)


def shown(texts: Sequence | None, row: int) -> str:
    """The text of a row, a pair with a tab; "" where the texts are not at hand."""
    if texts is None:
        return ""
    return texts[row] if isinstance(texts[row], str) else "\t".join(texts[row])
