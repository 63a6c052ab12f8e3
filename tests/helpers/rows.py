"""Random rows of tokens, what an objective makes of them, and which positions it chose."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from firth.objectives.mlm import MaskedLM
from helpers.quick import jit

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = (PAD, CLS, SEP)
UNLIKELY = 1e-4  # a test fails by chance once in ten thousand keys; the keys are fixed


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


def chosen(positions, weights):
    """The selected positions of each row, as tuples."""
    positions, weights = np.asarray(positions), np.asarray(weights)
    assert set(np.unique(weights)) <= {0.0, 1.0}
    return [tuple(row[w > 0].tolist()) for row, w in zip(positions, weights, strict=True)]


def random_rows(rows, length, seed=0, vocabulary=60):
    """Rows as the views make them: [CLS] text [SEP] text [SEP] padding; also word starts [V]."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(3, vocabulary, (rows, length)).astype(np.int32)
    size = rng.integers(4, length + 1, (rows, 1))
    tokens[:, 0] = CLS
    at = np.arange(length)
    tokens = np.where((at == size - 1) | (at == size // 2), SEP, tokens)
    starts = rng.random(vocabulary) < 0.6
    starts[:5] = True
    return np.where(at < size, tokens, PAD), at < size, starts


def make_batch(tokens, present):
    return {
        "tokens": jnp.asarray(tokens),
        "mask": jnp.asarray(present),
        "example": jnp.arange(len(tokens), dtype=jnp.uint32),
        "copy": jnp.zeros(len(tokens), jnp.uint32),
    }


@functools.cache
def corrupt(objective):
    return jit(objective.corrupt)


class Hashable(np.ndarray):
    """A table of the vocabulary that a frozen objective can be cached with."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


WEIGHTS = np.linspace(0.1, 1, 60, dtype=np.float32).view(Hashable)  # specials included


@functools.cache
def corrupted_rows(masking, length, most):
    """(objective, corrupted batch, original tokens, mask, word starts) of 300 random rows."""
    tokens, present, starts = random_rows(300, length)
    objective = MaskedLM(
        MASK,
        60,
        SPECIAL,
        starts.view(Hashable),
        masking,
        max_predictions=most,
        token_weights=WEIGHTS,
    )
    batch = corrupt(objective)(make_batch(tokens, present), jax.random.key(1))
    return objective, jax.device_get(batch), tokens, present, starts


def words_of(candidates, starts):
    """Groups of positions, as the BERT code builds `cand_indexes`; specials end a word."""
    words, opened = [], False
    for i, (candidate, start) in enumerate(zip(candidates, starts, strict=True)):
        if candidate and opened and not start:
            words[-1].append(i)
        elif candidate:
            words.append([i])
        opened = bool(candidate)
    return words
