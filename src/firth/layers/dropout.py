"""Dropout whose random bits cost a fraction of the matrix products around it."""

import contextlib
import contextvars
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import random

# The axis of the mesh over which devices run this code for rows of their own (`jax.shard_map`).
_rows_axis = contextvars.ContextVar("rows_axis", default=None)


@contextlib.contextmanager
def rows_over(axis: str):
    """While this code is traced under `jax.shard_map`, draw each device's part of a whole batch.

    So dropout is the same for any number of devices, as it is when the partitioner cuts the batch.
    """
    token = _rows_axis.set(axis)
    try:
        yield
    finally:
        _rows_axis.reset(token)


def draw_words(key, shape: tuple[int, ...], axis: str | None = None):
    """Two arrays of random uint32 of `shape`; with `axis`, this device's rows of such arrays.

    With `axis` the draw is that of all devices along it, of which each has the rows (the first
    axis) that are its own. What threefry draws is a function of an element's place in the array,
    two words at a time; other generators have no such thing, and there every device has a key of
    its own.
    """
    index, count = (jax.lax.axis_index(axis), jax.lax.axis_size(axis)) if axis else (0, 1)
    if jax.random.key_impl(key) != "threefry2x32":
        key = jax.random.fold_in(key, index) if axis else key
        return tuple(jax.random.bits(key, (2, *shape), jnp.uint32))
    first = np.arange(count, dtype=np.uint64) * math.prod(shape)
    high, low = (jnp.asarray(words, jnp.uint32) for words in (first >> 32, first & 0xFFFFFFFF))
    places = places_from(high[index], low[index], shape)
    return random.threefry2x32_p.bind(*jax.random.key_data(key), *places)


def places_from(high, low, shape: tuple[int, ...]):
    """Two uint32 arrays of `shape`, the words of 64-bit counters that go up from a first one."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    steps = sum(
        jax.lax.broadcasted_iota(jnp.uint32, shape, i) * np.uint32(stride)
        for i, stride in enumerate(strides)
    )
    lows = low + steps
    return high + (lows < steps).astype(jnp.uint32), lows


def keep_mask(key, rate: float, shape: tuple[int, ...], rows: bool = True):
    """Bernoulli mask: bool array of `shape`, False with probability `rate`.

    Sixteen random bits an element instead of 32-bit floats, and both words of the counter-based
    generator: a quarter of its work, and the rate is met to 2**-17. The quarters of the last axis
    share their words: if neighbours did, a TPU would change the layout to interleave them. Values
    do not depend on how the array is sharded; `rows` says whether its first axis (of two or more)
    is the rows of a batch.
    """
    return jnp.concatenate(keep_quarters(key, rate, shape, rows), axis=-1)[..., : shape[-1]]


def keep_bits(key, rate: float, shape: tuple[int, ...], rows: bool = True):
    """`keep_mask` packed: uint8, the last axis a quarter as long, rounded up.

    Bit i of a byte is that of the element as far into quarter i as the byte is into its axis.
    """
    quarters = keep_quarters(key, rate, shape, rows)
    return sum(kept.astype(jnp.uint8) << i for i, kept in enumerate(quarters))


def keep_quarters(key, rate: float, shape: tuple[int, ...], rows: bool) -> list:
    """The quarters of the last axis of `keep_mask`, rounded up; the last ones may be too long."""
    *outer, last = shape
    words = draw_words(key, (*outer, -(-last // 4)), _rows_axis.get() if rows else None)
    dropped = _threshold(rate)
    return [half >= dropped for word in words for half in (word & 0xFFFF, word >> 16)]


def _threshold(rate: float) -> int:
    """How many of the values of 16 bits are dropped."""
    return round(rate * 65536)


class Dropout(nn.Module):
    """Zero each element with probability `rate` and scale the rest by the inverse of what is kept.

    Draws from the `dropout` random stream when `train`; otherwise the identity.
    """

    rate: float

    @nn.compact
    def __call__(self, x, *, train: bool, rows: bool = True):
        """Return `x`, any shape, with its own dtype.

        `rows` is False for what all rows of a batch share, such as a table.
        """
        if not train or self.rate == 0.0:
            return x
        keep = self.mask(x.shape, rows)
        return jnp.where(keep, x * jnp.asarray(self.scale, x.dtype), 0)

    def mask(self, shape: tuple[int, ...], rows: bool = True):
        """A new mask, bool of `shape`: True for what is kept."""
        return keep_mask(self.make_rng("dropout"), self.rate, shape, rows)

    def bits(self, shape: tuple[int, ...], rows: bool = True):
        """A new mask as `keep_bits` packs it."""
        return keep_bits(self.make_rng("dropout"), self.rate, shape, rows)

    @property
    def scale(self) -> float:
        """By which what is kept is multiplied: the inverse of its share."""
        return 1 / (1 - _threshold(self.rate) / 65536)
