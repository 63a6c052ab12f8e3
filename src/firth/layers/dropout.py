"""Dropout whose random bits cost a fraction of the matrix products around it."""

import flax.linen as nn
import jax
import jax.numpy as jnp


def keep_mask(key, rate: float, shape: tuple[int, ...]):
    """Bernoulli mask: bool array of `shape`, False with probability `rate`.

    Sixteen random bits an element instead of 32-bit floats: half the work of the counter-based
    generator, and the rate is met to 2**-17. Values do not depend on how the array is sharded.
    """
    *outer, last = shape
    words = (last + 1) // 2
    bits = jax.random.bits(key, (*outer, words), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(bits, jnp.uint16).reshape(*outer, 2 * words)
    return halves[..., :last] >= round(rate * 65536)


class Dropout(nn.Module):
    """Zero each element with probability `rate` and scale the rest by the inverse of what is kept.

    Draws from the `dropout` random stream when `train`; otherwise the identity.
    """

    rate: float

    @nn.compact
    def __call__(self, x, *, train: bool):
        """Return `x`, any shape, with its own dtype."""
        if not train or self.rate == 0.0:
            return x
        drop = round(self.rate * 65536) / 65536
        keep = keep_mask(self.make_rng("dropout"), drop, x.shape)
        return jnp.where(keep, x * jnp.asarray(1 / (1 - drop), x.dtype), 0)
