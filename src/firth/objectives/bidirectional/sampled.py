"""The sampled softmax over frequent-first vocabularies (Jean et al. 2015, section 3).

As TensorFlow's `sampled_softmax_loss` with its log-uniform sampler: S different words, the word of
rank k with a chance that falls as 1 / k, and every score less the log of how likely its word is to
be among them. M places, P width, V vocabulary, S sampled words.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from firth.layers.affine import multiply

_HIDDEN = -1e30  # the score of a sampled word that is the target


def log_uniform(words: int):
    """log p(k) of each rank: p(k) = log((k + 2) / (k + 1)) / log(V + 1); float32 [V]."""
    k = jnp.arange(words, dtype=jnp.float32)
    return jnp.log(jnp.log1p(1 / (k + 1)) / math.log(words + 1))


def draw(key, words: int, samples: int):
    """int32 [S]: different words, drawn one after another from the log-uniform distribution.

    The greatest sums of log p and Gumbel noise are distributed as draws with repetitions left out
    (Kool et al. 2019, section 2.3), which TensorFlow makes.
    """
    noise = jax.random.gumbel(key, (words,))
    return jax.lax.top_k(log_uniform(words) + noise, samples)[1]


@functools.lru_cache
def tries(words: int, samples: int) -> float:
    """n, the draws with repetitions that are expected to find so many words: sum 1 - (1 - p)^n."""
    if samples >= words:
        return math.inf
    k = np.arange(words, dtype=np.float64)
    log_miss = np.log1p(-np.log1p(1 / (k + 1)) / math.log(words + 1))
    low, high = 0.0, float(samples)
    while -np.expm1(high * log_miss).sum() < samples:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        few = -np.expm1(middle * log_miss).sum() < samples
        low, high = (middle, high) if few else (low, middle)
    return high


def log_chances(ids, words: int, samples: int):
    """The log of how likely words are to be among the sampled ones, float32 like `ids`."""
    n = tries(words, samples)
    if math.isinf(n):
        return jnp.zeros(ids.shape, jnp.float32)
    p = jnp.log1p(1 / (ids.astype(jnp.float32) + 1)) / math.log(words + 1)
    return jnp.log(-jnp.expm1(n * jnp.log1p(-p)))


def sampled_losses(hidden_MP, table_VP, bias_V, targets_M, sampled_S):
    """-log P of the targets against the sampled words, float32 [M].

    With all words sampled, it is the loss of the whole softmax.
    """
    V, S = len(table_VP), len(sampled_S)
    dtype = hidden_MP.dtype
    rows_MP = table_VP[targets_M].astype(dtype)
    own_M = jnp.einsum("MP,MP->M", hidden_MP, rows_MP, preferred_element_type=jnp.float32)
    own_M = own_M + bias_V[targets_M] - log_chances(targets_M, V, S)
    scores_MS = multiply(hidden_MP, table_VP[sampled_S].T.astype(dtype))
    scores_MS = scores_MS + (bias_V[sampled_S] - log_chances(sampled_S, V, S))
    scores_MS = jnp.where(targets_M[:, None] == sampled_S, _HIDDEN, scores_MS)
    return jnp.logaddexp(own_M, jax.nn.logsumexp(scores_MS, -1)) - own_M
