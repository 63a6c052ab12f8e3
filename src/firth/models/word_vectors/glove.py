"""GloVe (Pennington et al. 2014): vectors whose products are the logarithms of cooccurrences.

J = sum f(X) (w . c + b + d - log X)^2 over the cells of the matrix that are not zero, by AdaGrad.
A step takes BATCH cells in random order; all steps of a chunk are one compiled loop.

V words, D dimensions, B cells of a step, N cells of a chunk.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from firth.models.word_vectors.cooccurrence import Cells

BATCH = 512
LARGEST = 100.0  # of each component of a gradient


class Tables(NamedTuple):
    """words, contexts: float32 [V, 2, D + 1]: vectors with their bias last, and AdaGrad's sums.

    The two lie side by side, since a step reads and writes both.
    """

    words: jax.Array
    contexts: jax.Array


def initial(words: int, dim: int, seed: int) -> Tables:
    """Vectors and biases uniform in +-0.5/dim, AdaGrad's sums 1, as in the GloVe tool."""
    draw = np.random.default_rng([seed, words])
    values = (draw.random((2, words, 1, dim + 1), np.float32) - 0.5) / dim
    return Tables(*map(jnp.asarray, np.concatenate([values, np.ones_like(values)], 2)))


def vectors_of(tables: Tables) -> np.ndarray:
    """float32 [V, D]: the sum of a word's two vectors, which the tool writes by default."""
    return np.asarray(tables.words[:, 0, :-1] + tables.contexts[:, 0, :-1])


class Chunk(NamedTuple):
    """Cells to train on, N a multiple of BATCH: int32 [N], int32 [N], float32 [N], float32 [N].

    weights: f(X), 0 for padding. logs: log X. steps: int, how many are not padding alone.
    """

    rows: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    logs: np.ndarray
    steps: int


def make_chunk(cells: Cells, chosen: np.ndarray, capacity: int, x_max: float, alpha: float):
    """The Chunk of the cells with these numbers, padded to `capacity` cells; f = (X/x_max)^alpha,
    at most 1."""
    rows, columns, values = (array[chosen] for array in cells)
    weights = np.minimum((values / x_max) ** alpha, 1.0)
    arrays = (rows, columns, weights.astype(np.float32), np.log(values))
    pad = (0, capacity - len(chosen))
    return Chunk(*(np.pad(array, pad) for array in arrays), -(-len(chosen) // BATCH))


@functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
def train_chunk(tables: Tables, chunk: Chunk, rate, legacy: bool):
    """(tables after all steps of a chunk, the sum of f(X) times the squared errors / 2).

    `legacy` is the GloVe tool since 2019: the rate multiplies the vectors' gradients before
    AdaGrad sees them, and the biases' not at all.
    """

    def step(number, carry):
        tables, loss = carry
        tables, more = _step(tables, chunk, rate, legacy, number)
        return tables, loss + more

    return jax.lax.fori_loop(0, chunk.steps, step, (tables, jnp.zeros((), jnp.float32)))


def _step(tables: Tables, chunk: Chunk, rate, legacy: bool, number):
    rows_B, columns_B, weights_B, logs_B = (
        jax.lax.dynamic_slice_in_dim(array, number * BATCH, BATCH) for array in chunk[:4]
    )
    (w, w_sums), (c, c_sums) = (
        (packed[:, 0], packed[:, 1])
        for packed in (tables.words[rows_B], tables.contexts[columns_B])
    )
    error_B = (w[:, :-1] * c[:, :-1]).sum(1) + w[:, -1] + c[:, -1] - logs_B
    pull_B = weights_B * error_B
    moves = []
    for other, sums in ((c, w_sums), (w, c_sums)):
        partner = other.at[:, -1].set(1.0)  # a bias has the gradient of the error
        gradient = jnp.clip(pull_B[:, None] * partner, -LARGEST, LARGEST)
        if legacy:
            gradient = gradient.at[:, :-1].multiply(rate)
        step = (1.0 if legacy else rate) * gradient / jnp.sqrt(sums)
        moves.append(jnp.stack([-step, gradient**2], 1))
    tables = Tables(
        tables.words.at[rows_B].add(moves[0]), tables.contexts.at[columns_B].add(moves[1])
    )
    return tables, 0.5 * (pull_B * error_B).sum()
