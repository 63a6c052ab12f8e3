"""Sampling tokens from a vocabulary's logits with two uniform numbers a position."""

import math

import jax.numpy as jnp


def sample(logits, uniform):
    """Draw one class a position from softmax(logits), exactly to float32.

    The ELECTRA code adds Gumbel noise and takes the maximum. This has the same distribution without
    a random number for every word of the vocabulary: it inverts the cumulative distribution in two
    stages, first over about sqrt(V) blocks, then within one.

    Args:
      logits: float [..., V].
      uniform: float [..., 2] in [0, 1).

    Returns:
      int32 [...].
    """
    V = logits.shape[-1]
    width = math.isqrt(V - 1) + 1
    blocks = -(-V // width)
    weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    spare = [(0, 0)] * (logits.ndim - 1) + [(0, blocks * width - V)]
    weights = jnp.pad(weights, spare).reshape(*logits.shape[:-1], blocks, width)
    block = _invert(weights.sum(axis=-1), uniform[..., 0])
    inside = jnp.take_along_axis(weights, block[..., None, None], axis=-2)[..., 0, :]
    return jnp.minimum(block * width + _invert(inside, uniform[..., 1]), V - 1)


def _invert(weights, uniform):
    """The first class whose cumulative weight exceeds the uniform share of the whole."""
    cumulative = jnp.cumsum(weights, axis=-1)
    passed = cumulative <= uniform[..., None] * cumulative[..., -1:]
    return jnp.minimum(passed.sum(axis=-1, dtype=jnp.int32), weights.shape[-1] - 1)
