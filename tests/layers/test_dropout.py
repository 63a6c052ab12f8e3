"""Dropout: its rate, its scale, independent draws, and values that no sharding changes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import jit
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from firth.layers import dropout
from firth.layers.dropout import Dropout, keep_mask, places_from, rows_over
from firth.training.partition import create_mesh

SHAPE = (400, 1001)  # an odd last axis: half of the last random word is left over


def drop(x, rate, seed=0, train=True):
    return Dropout(rate).apply({}, x, train=train, rngs={"dropout": jax.random.key(seed)})


def sigma(rate, count):
    return np.sqrt(rate * (1 - rate) / count)


@pytest.mark.parametrize("rate", [0.1, 0.37, 0.5, 0.9])
def test_rate_and_unbiased_scale(rate):
    x = np.asarray(drop(jnp.ones(SHAPE), rate), np.float64)
    dropped, n = x == 0, x.size
    assert abs(dropped.mean() - rate) < 4 * sigma(rate, n)
    np.testing.assert_allclose(x[~dropped], 1 / (1 - rate), rtol=1e-4)
    assert abs(x.mean() - 1) < 4 * sigma(rate, n) / (1 - rate)
    # No row and no column is favoured: their counts are binomial.
    for axis in (0, 1):
        z = (dropped.mean(axis) - rate) / sigma(rate, x.shape[axis])
        assert abs(z).max() < 5.5 and 0.9 < z.std() < 1.1


@pytest.mark.parametrize("rate", [0.1, 0.37, 0.75])
def test_of_all_values_of_sixteen_bits_the_nearest_share_falls(rate, monkeypatch):
    """Every value once in every half of both words: what is left has exactly the mean 1."""
    values = jnp.arange(2**16, dtype=jnp.uint32)
    words = (values | values[::-1] << 16,) * 2
    monkeypatch.setattr(dropout, "draw_words", lambda key, shape, axis: words)
    y = np.asarray(drop(jnp.ones(4 * 2**16), rate), np.float64).reshape(4, -1)
    assert (abs((y == 0).sum(1) - rate * 2**16) <= 0.5).all()
    np.testing.assert_allclose(y.mean(1), 1, rtol=2e-7)


@pytest.mark.parametrize("shift", [(0, 1), (1, 0), (1, 1), (0, 251), (0, 502), (0, 753)])
def test_neighbours_are_independent(shift):
    """Those a quarter of a row apart share a random word, or a pair of words of the generator;
    they and all others must fall together only by chance."""
    rate = 0.3
    dropped = ~np.asarray(keep_mask(jax.random.key(1), rate, SHAPE))
    both = dropped & np.roll(dropped, shift, (0, 1))
    assert abs(both.mean() - rate**2) < 4 * sigma(rate**2, dropped.size)


def test_identity_in_evaluation_and_at_rate_zero():
    x = jnp.linspace(-3, 3, 35).reshape(5, 7)
    for rate, train in ((0.5, False), (0.0, True)):
        y = Dropout(rate).apply({}, x, train=train)  # needs no random stream
        np.testing.assert_array_equal(x, y)


def test_zeros_and_dtype():
    x = jnp.linspace(1, 2, 4096, dtype=jnp.bfloat16)
    y = drop(x, 0.25)
    assert y.dtype == jnp.bfloat16
    kept = np.asarray(y, np.float32) != 0
    np.testing.assert_allclose(
        np.asarray(y, np.float32)[kept], np.asarray(x, np.float32)[kept] / 0.75, rtol=1e-2
    )


def test_gradient_is_the_mask():
    x = jnp.linspace(1, 2, 300)
    gradient = jax.grad(lambda x: drop(x, 0.4).sum())(x)
    np.testing.assert_allclose(gradient, drop(jnp.ones_like(x), 0.4), rtol=1e-6)


def test_calls_modules_and_keys_draw_anew():
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x):
            same, other = Dropout(0.5), Dropout(0.5)
            return same(x, train=True), same(x, train=True), other(x, train=True)

    x = jnp.ones((100, 100))
    rngs = {"dropout": jax.random.key(0)}
    draws = [*Twice().apply({}, x, rngs=rngs), drop(x, 0.5, seed=1), drop(x, 0.5, seed=2)]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            agree = float(((a == 0) == (b == 0)).mean())
            assert abs(agree - 0.5) < 4 * sigma(0.5, x.size)
    again = Twice().apply({}, x, rngs=rngs)
    for a, b in zip(draws, again, strict=False):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("spec", [P("data"), P("fsdp", "tensor")])
def test_the_same_values_however_the_array_is_sharded(spec):
    sizes = dict(data=8, fsdp=1, tensor=1) if "data" in spec else dict(data=2, fsdp=2, tensor=2)
    sharding = NamedSharding(create_mesh(sizes), spec)
    x = jnp.arange(1.0, 16 * 24 * 5 + 1).reshape(16, 24, 5)
    apply = jit(lambda x: drop(x, 0.3), in_shardings=sharding, out_shardings=sharding)
    sharded = apply(jax.device_put(x, sharding))
    assert len(sharded.sharding.device_set) == 8
    np.testing.assert_array_equal(sharded, jit(lambda x: drop(x, 0.3))(x))


@pytest.mark.parametrize("shape", [(16, 3, 5), (24, 7)])
def test_devices_with_rows_of_their_own_draw_what_one_draws(shape):
    """Under shard_map each device draws its part of the whole batch, but all of a shared table."""
    mesh, key = create_mesh(), jax.random.key(3)
    local = (shape[0] // 8, *shape[1:])

    def masks(key):
        with rows_over("data"):
            return keep_mask(key, 0.5, local), keep_mask(key, 0.5, shape, rows=False)

    run = jax.shard_map(masks, mesh=mesh, in_specs=P(), out_specs=P("data"), check_vma=False)
    rows, tables = jit(run)(key)
    np.testing.assert_array_equal(rows, keep_mask(key, 0.5, shape))
    for table in np.split(np.asarray(tables), 8):
        np.testing.assert_array_equal(table, keep_mask(key, 0.5, shape))


def test_counters_of_more_than_32_bits():
    first = 2**32 * 7 - 5
    high, low = places_from(jnp.uint32(first >> 32), jnp.uint32(first % 2**32), (3, 4))
    places = np.asarray(high, np.uint64) * 2**32 + np.asarray(low, np.uint64)
    np.testing.assert_array_equal(places.ravel(), first + np.arange(12, dtype=np.uint64))


def test_other_generators_draw_apart_on_every_device():
    def masks(key):
        with rows_over("data"):
            return keep_mask(key, 0.5, (2, 200))

    run = jax.shard_map(
        masks, mesh=create_mesh(), in_specs=P(), out_specs=P("data"), check_vma=False
    )
    rows = np.asarray(jit(run)(jax.random.key(0, impl="rbg")))
    assert len({row.tobytes() for row in rows}) == 16
