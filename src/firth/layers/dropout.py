"""Dropout whose random bits cost a fraction of the matrix products around it."""

import contextlib
import contextvars
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import random

# The axis of the mesh along which each device runs this code for its own rows (`jax.shard_map`).
_rows_axis = contextvars.ContextVar("rows_axis", default=None)


@contextlib.contextmanager
def rows_over(axis: str):
    """Under `jax.shard_map`, draw each device's part of the masks of a whole batch.

    Dropout is then the same for any number of devices, as when the partitioner cuts the batch.
    """
    token = _rows_axis.set(axis)
    try:
        yield
    finally:
        _rows_axis.reset(token)


def rows_axis() -> str | None:
    """The axis of `rows_over`, inside it."""
    return _rows_axis.get()


def draw_words(key, shape: tuple[int, ...], axis: str | None = None):
    """Two arrays of random uint32 of `shape`; with `axis`, this device's rows of such arrays.

    With `axis` the devices along it share one draw, and each has its own rows (the first axis).
    Threefry draws two words at a time, as a function of an element's place in the array. Other
    generators do not, so with them every device has a key of its own.
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

    It takes sixteen random bits an element instead of 32-bit floats, and both words of the
    counter-based generator. That is a quarter of the work, and meets the rate to 2**-17. The
    quarters of the last axis share their words: if neighbours did, a TPU would change the layout to
    interleave them. Values do not depend on how the array is sharded. `rows` says whether its first
    axis (of two or more) is the rows of a batch.
    """
    return jnp.concatenate(keep_quarters(key, rate, shape, rows), axis=-1)[..., : shape[-1]]


def keep_bits(key, rate: float, shape: tuple[int, ...], rows: bool = True):
    """`keep_mask` packed: uint8, the last axis a quarter as long, rounded up.

    Bit i of a byte is that of the element as far into quarter i as the byte is into its axis.
    """
    quarters = keep_quarters(key, rate, shape, rows)
    return sum(quarter.astype(jnp.uint8) << i for i, quarter in enumerate(quarters))


def keep_quarters(key, rate: float, shape: tuple[int, ...], rows: bool) -> list:
    """The quarters of the last axis of `keep_mask`, rounded up; the last ones may be too long."""
    *outer, last = shape
    words = draw_words(key, (*outer, -(-last // 4)), rows_axis() if rows else None)
    dropped = _threshold(rate)
    return [half >= dropped for word in words for half in (word & 0xFFFF, word >> 16)]


def _threshold(rate: float) -> int:
    """How many of the values of 16 bits are dropped."""
    return round(rate * 65536)


class Dropout(nn.Module):
    """Zero each element with probability `rate`, and scale the others so that the mean stays.

    In training it draws from the `dropout` random stream; otherwise it is the identity.
    """

    rate: float

    @nn.compact
    def __call__(self, x, *, train: bool, rows: bool = True):
        """Return `x`, any shape, with its own dtype.

        `rows` is False for arrays that all rows of a batch share, such as a table.
        """
        if not self.drops(train):
            return x
        keep = self.mask(x.shape, rows)
        return jnp.where(keep, x * jnp.asarray(self.scale, x.dtype), 0)

    def drops(self, train: bool) -> bool:
        """Whether it is more than the identity."""
        return train and self.rate > 0.0

    def mask(self, shape: tuple[int, ...], rows: bool = True):
        """A new mask, bool of `shape`: True for elements that stay."""
        return keep_mask(self.make_rng("dropout"), self.rate, shape, rows)

    def bits(self, shape: tuple[int, ...], rows: bool = True):
        """A new mask as `keep_bits` packs it."""
        return keep_bits(self.make_rng("dropout"), self.rate, shape, rows)

    def locked(self, x_BLD, *, train: bool):
        """`x_BLD` with one mask for all places of a row (variational; Gal and Ghahramani 2016)."""
        if not self.drops(train):
            return x_BLD
        keep_BD = self.mask((x_BLD.shape[0], x_BLD.shape[-1]))
        return jnp.where(keep_BD[:, None], x_BLD * jnp.asarray(self.scale, x_BLD.dtype), 0)

    def words(self, e_BLE, tokens_BL, size: int, *, train: bool, rows: bool):
        """Embeddings without those of dropped words, which are gone wherever they occur.

        `size` is that of the vocabulary. Each row drops words of its own if `rows`; otherwise all
        rows drop the same.
        """
        if not self.drops(train):
            return e_BLE
        keep_RV = self.mask((len(tokens_BL) if rows else 1, size), rows)
        keep_BL = jnp.take_along_axis(
            jnp.broadcast_to(keep_RV, (len(tokens_BL), size)), tokens_BL, 1
        )
        return jnp.where(keep_BL[..., None], e_BLE * jnp.asarray(self.scale, e_BLE.dtype), 0)

    @property
    def scale(self) -> float:
        """The factor of the elements that stay: one over their share."""
        return 1 / (1 - _threshold(self.rate) / 65536)
