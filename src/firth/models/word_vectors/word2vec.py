"""Skip-gram and CBOW with negative sampling or hierarchical softmax (Mikolov et al. 2013).

A step takes GROUPS groups of successive words. The words of a group share their context rows and
their negative samples, so that its scores and gradients are a few small matrix products and each
row of the tables is read and written once for a group. All steps of a chunk are one compiled loop.

G groups of S centre words, C = S + 2 window context places around them, U input vectors of a
group (skip-gram: its C contexts; CBOW: the means of its S windows), R output rows of a group, M
negatives of a group, L nodes of the longest Huffman code, D dimensions, V words, N words of a
chunk.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

ARCHITECTURES, LOSSES = ("skipgram", "cbow"), ("negative", "hierarchical")
SHARED = 8  # negatives a group has, for each of a pair in the paper
LEAST_RATE = 1e-4  # of the first learning rate


class Sizes(NamedTuple):
    """What is compiled in: the kind of model, and how many words a step takes.

    Many words a step are fast, but each row then moves by many gradients at one place, which
    diverges where they agree. All codes begin at the root, so hierarchical softmax takes few.
    """

    architecture: str
    loss: str
    window: int
    negative: int
    groups: int
    size: int

    @property
    def words(self) -> int:
        """Centre words a step."""
        return self.groups * self.size


def sizes_of(architecture: str, loss: str, window: int, negative: int) -> Sizes:
    """The sizes that are fast and train well."""
    groups, size = (8, 16) if loss == "negative" else (8, 4)
    return Sizes(architecture, loss, window, negative, groups, size)


class Tables(NamedTuple):
    """inputs: float32 [V, D], the word vectors. outputs: float32 [V, D], of words or of nodes."""

    inputs: jax.Array
    outputs: jax.Array


def initial(words: int, dim: int, seed: int) -> Tables:
    """Inputs uniform in +-0.5/dim, outputs zero, as in the C tool."""
    draw = np.random.default_rng([seed, words])
    inputs = (draw.random((words, dim), np.float32) - 0.5) / dim
    return Tables(jnp.asarray(inputs), jnp.zeros((words, dim), jnp.float32))


class Chunk(NamedTuple):
    """A piece of the corpus, ready to train on.

    line: int32 [window + N + window], numbers of words, N a multiple of a step's words.
    left, right: int32 [N], how many words of the window stand on each side of a word.
    noise: int32 [N / S, M], the negatives of each group.
    rates: float32 [steps], the learning rate of each step. steps: int, how many are not padding.
    """

    line: np.ndarray
    left: np.ndarray
    right: np.ndarray
    noise: np.ndarray
    rates: np.ndarray
    steps: int


def make_chunk(words_T, units_T, kept_V, noise_V, sizes: Sizes, rates, draw) -> Chunk:
    """Subsample a text, and draw the window of each word that is left and the negatives.

    Args:
      words_T: int32, numbers of words; -1 is left out, as are words that are not sampled, and what
        stands around them becomes neighbours, as in the C tool.
      units_T: the number of each word's sentence, which no window leaves.
      kept_V, noise_V: see `firth.models.word_vectors.vocabulary`.
      rates: (first, last) learning rate of the chunk.
      draw: np.random.Generator.

    The arrays have the length that fits any text of T words, so one program does for all.
    """
    share_T = np.where(words_T >= 0, kept_V[words_T], 0.0)
    place_N = np.flatnonzero(draw.random(len(words_T)) < share_T)
    count, capacity = len(place_N), -(-len(words_T) // sizes.words) * sizes.words
    before_N, after_N = _distances(units_T[place_N])
    radius_N = draw.integers(1, sizes.window + 1, count)
    pad = (0, capacity - count)
    line = np.pad(words_T[place_N], (sizes.window, pad[1] + sizes.window))
    left, right = (np.pad(np.minimum(radius_N, side), pad) for side in (before_N, after_N))
    steps = -(-count // sizes.words)
    noise = np.zeros((capacity // sizes.size, SHARED * sizes.negative), np.int32)
    if sizes.loss == "negative":
        drawn = noise[: steps * sizes.groups]
        drawn[:] = np.searchsorted(noise_V, draw.random(drawn.shape), side="right")
    rates_S = np.zeros(capacity // sizes.words, np.float32)
    rates_S[:steps] = np.linspace(*rates, steps, endpoint=False)
    return Chunk(*(array.astype(np.int32) for array in (line, left, right)), noise, rates_S, steps)


def _distances(units_N):
    """int64 [N], twice: how many words of its sentence stand before each word, and after it."""
    place_N = np.arange(len(units_N))
    changes_N = units_N[1:] != units_N[:-1]
    first_N = np.concatenate([[True], changes_N])[: len(units_N)]
    last_N = np.concatenate([changes_N, [True]])[: len(units_N)]
    begin_N = np.maximum.accumulate(np.where(first_N, place_N, 0))
    end_N = np.minimum.accumulate(np.where(last_N, place_N, len(units_N))[::-1])[::-1]
    return place_N - begin_N, end_N - place_N


@functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
def train_chunk(tables: Tables, chunk: Chunk, codes, sizes: Sizes):
    """(tables after all steps of a chunk, nats of all pairs float32, pairs float32).

    `codes` are the (nodes [V, L], bits [V, L]) of `huffman` for hierarchical softmax, else None. A
    pair is a word and one word of its window (skip-gram), or a word and its window (CBOW).
    """

    def step(number, carry):
        tables, nats, pairs = carry
        tables, loss, count = _step(tables, chunk, codes, sizes, number)
        return tables, nats + loss, pairs + count

    zero = jnp.zeros((), jnp.float32)
    return jax.lax.fori_loop(0, chunk.steps, step, (tables, zero, zero))


def _step(tables: Tables, chunk: Chunk, codes, sizes: Sizes, number):
    _, _, window, negative, groups, size = sizes
    words = jax.lax.dynamic_slice_in_dim(chunk.line, number * sizes.words, sizes.words + 2 * window)
    context_GC = words[np.arange(groups)[:, None] * size + np.arange(size + 2 * window)]
    centre_GS = context_GC[:, window : window + size]
    left_GS, right_GS = (
        jax.lax.dynamic_slice_in_dim(side, number * sizes.words, sizes.words).reshape(groups, size)
        for side in (chunk.left, chunk.right)
    )
    away_CS = np.arange(size + 2 * window)[:, None] - (np.arange(size) + window)
    pairs_GCS = (away_CS >= -left_GS[:, None]) & (away_CS <= right_GS[:, None]) & (away_CS != 0)
    pairs_GCS = pairs_GCS.astype(jnp.float32)
    x_GCD = tables.inputs[context_GC]
    if sizes.architecture == "skipgram":
        x_GUD, pairs_GUS = x_GCD, pairs_GCS
    else:
        number_GS = pairs_GCS.sum(1)
        x_GUD = jnp.einsum("gcs,gcd->gsd", pairs_GCS, x_GCD)
        x_GUD /= jnp.maximum(number_GS, 1)[..., None]
        pairs_GUS = np.eye(size, dtype=np.float32) * (number_GS > 0)[:, None]
    if sizes.loss == "negative":
        noise_GM = jax.lax.dynamic_slice_in_dim(chunk.noise, number * groups, groups)
        rows_GR, label_GR, weight_GUR = _sampled(centre_GS, noise_GM, pairs_GUS, negative)
    else:
        rows_GR, label_GR, weight_GUR = _on_paths(centre_GS, codes, pairs_GUS)
    out_GRD = tables.outputs[rows_GR]
    p_GUR = jax.nn.sigmoid(jnp.einsum("gud,grd->gur", x_GUD, out_GRD))
    right_GUR = jnp.where(label_GR[:, None] == 1, p_GUR, 1 - p_GUR)
    nats = -(weight_GUR * jnp.log(jnp.maximum(right_GUR, 1e-7))).sum()
    pull_GUR = chunk.rates[number] * weight_GUR * (label_GR[:, None] - p_GUR)
    move_GUD = jnp.einsum("gur,grd->gud", pull_GUR, out_GRD)
    if sizes.architecture == "cbow":  # each word of a window moves by the whole, as in the C tool
        move_GUD = jnp.einsum("gcs,gsd->gcd", pairs_GCS, move_GUD)
    out_move_GRD = jnp.einsum("gur,gud->grd", pull_GUR, x_GUD)
    tables = Tables(
        tables.inputs.at[context_GC].add(move_GUD), tables.outputs.at[rows_GR].add(out_move_GRD)
    )
    return tables, nats, pairs_GUS.sum()


def _sampled(centre_GS, noise_GM, pairs_GUS, negative: int):
    """(output rows [G, R], labels [G, R], weights [G, U, R]): the centre words and the negatives.

    Each pair has `negative` of the M negatives in expectation: all of them with the weight
    negative / M. A negative that is the pair's own word does not count.
    """
    share = negative / noise_GM.shape[1]
    other_GSM = (centre_GS[:, :, None] != noise_GM[:, None]).astype(jnp.float32)
    against_GUM = share * jnp.einsum("gus,gsm->gum", pairs_GUS, other_GSM)
    rows_GR = jnp.concatenate([centre_GS, noise_GM], 1)
    label_GR = jnp.concatenate([jnp.ones_like(centre_GS), jnp.zeros_like(noise_GM)], 1)
    return rows_GR, label_GR, jnp.concatenate([pairs_GUS, against_GUM], 2)


def _on_paths(centre_GS, codes, pairs_GUS):
    """The same for the nodes on the paths of the centre words; the label is 1 - bit."""
    nodes_VL, bits_VL = codes
    groups, units = pairs_GUS.shape[:2]
    nodes_GSL, bits_GSL = nodes_VL[centre_GS], bits_VL[centre_GS].astype(jnp.int32)
    weight_GUSL = pairs_GUS[..., None] * (nodes_GSL >= 0)[:, None]
    return (
        jnp.maximum(nodes_GSL, 0).reshape(groups, -1),
        (1 - bits_GSL).reshape(groups, -1),
        weight_GUSL.reshape(groups, units, -1),
    )
