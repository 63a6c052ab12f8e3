"""Which tokens may be drawn, and how often."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firth.inference.sampling import choose, likeliest

V, DRAWS = 12, 4000


@functools.cache
def compiled(*names):
    def draw(logits_BV, keys_B, *values):
        return choose(logits_BV, keys_B, **dict(zip(names, values, strict=True)))

    return jax.jit(draw)


def drawn(logits_BV, seed=0, *, temperature=1.0, **limits):
    keys_B = jax.random.split(jax.random.key(seed), len(logits_BV))
    options = dict(temperature=temperature) | limits
    values = [np.float32(value) for value in options.values()]
    return np.asarray(compiled(*options)(jnp.asarray(logits_BV), keys_B, *values))


def logits(seed=0):
    return np.random.default_rng(seed).normal(size=V, scale=2).astype(np.float32)


def frequencies(row, **options):
    found = drawn(np.broadcast_to(row, (DRAWS, V)), **options)
    return np.bincount(found, minlength=V) / DRAWS


def softmax(row):
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


def nucleus(row, p):
    """The fewest likeliest tokens with probability p together, renormalised; sorted, in float64."""
    probs = softmax(row)
    order = np.argsort(-probs)
    count = np.searchsorted(np.cumsum(probs[order]), p) + 1
    kept = np.where(np.isin(np.arange(V), order[:count]), probs, 0)
    return kept / kept.sum()


def assert_distributed(found, expected):
    assert (found[expected == 0] == 0).all()
    assert (expected > 0).sum() > 1
    error = np.sqrt(expected * (1 - expected) / DRAWS)
    assert (np.abs(found - expected) <= 4.5 * error).all()


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_tokens_are_drawn_by_their_probability(temperature):
    row = logits()
    found = frequencies(row, temperature=temperature)
    assert_distributed(found, softmax(row / temperature))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
def test_the_nucleus_and_nothing_else_is_drawn(p, temperature):
    found = frequencies(logits(), temperature=temperature, top_p=p)
    assert_distributed(found, nucleus(logits() / temperature, p))


def test_the_best_k_and_nothing_else_are_drawn():
    row = logits()
    kept = np.where(row >= np.sort(row)[-4], row, -np.inf)
    assert_distributed(frequencies(row, top_k=4), softmax(kept))
    # The nucleus is then that of the best k, and the temperature comes before both.
    cooled = np.where(np.isfinite(kept), row / 2, -np.inf)
    found = frequencies(row, temperature=2.0, top_k=4, top_p=0.8)
    assert_distributed(found, nucleus(cooled, 0.8))


def test_thresholds_equal_sorting_for_many_rows():
    """Which tokens may be drawn, found by drawing each row often."""
    rng = np.random.default_rng(1)
    rows = (rng.normal(size=(30, V)) * rng.uniform(0.1, 20, (30, 1))).astype(np.float32)
    many = np.repeat(rows, 200, axis=0)
    for k in (1, 3, 11, 12):
        found = drawn(many, top_k=k).reshape(30, 200)
        for row, tokens in zip(rows, found, strict=True):
            assert set(tokens) <= set(np.argsort(-row)[:k])
    for p in (1e-6, 0.3, 0.7, 1.0):
        found = drawn(many, top_p=p).reshape(30, 200)
        for row, tokens in zip(rows, found, strict=True):
            assert set(tokens) <= set(np.flatnonzero(nucleus(row, min(p, 1 - 1e-7))))


def test_equal_logits_stand_or_fall_together():
    row = np.array([3, 1, 1, 1, 0, -np.inf] + [-5] * 6, np.float32)
    assert set(np.flatnonzero(frequencies(row, top_k=2))) == {0, 1, 2, 3}
    assert set(np.flatnonzero(frequencies(row, top_p=0.9))) == {0, 1, 2, 3}


def test_neighbours_among_floats_are_told_apart():
    """The threshold is exact: no float lies between the third of these and the fourth."""
    row = np.full(V, 1, np.float32)
    for n in range(1, V):
        row[n] = np.nextafter(row[n - 1], np.float32(-np.inf))
    # `choose` subtracts the greatest first, which is exact between floats this close.
    assert len(set((row - row[0]).tolist())) == V
    assert set(np.flatnonzero(frequencies(row, top_k=3))) == {0, 1, 2}
    # Far from zero they differ in their last bits alone.
    row = np.zeros(V, np.float32)
    row[1] = -1
    for n in range(2, V):
        row[n] = np.nextafter(row[n - 1], np.float32(-np.inf))
    assert set(np.flatnonzero(frequencies(row, top_k=3))) == {0, 1, 2}


def test_what_is_minus_infinity_is_never_drawn_and_extremes_stay_finite():
    row = np.full(V, -np.inf, np.float32)
    row[[2, 7]] = 1e30, 1e30
    for options in ({}, dict(top_k=V), dict(top_p=0.999), dict(temperature=1e-30)):
        found = frequencies(row, **options)
        assert set(np.flatnonzero(found)) == {2, 7}
    assert (drawn(np.tile(logits(), (50, 1)), temperature=1e-30) == logits().argmax()).all()


def test_a_row_is_drawn_by_its_own_key():
    rows = np.tile(logits(), (6, 1))
    keys = jax.random.split(jax.random.key(3), 6)
    together = compiled("temperature")(rows, keys, 1.0)
    alone = [compiled("temperature")(rows[:1], keys[i : i + 1], 1.0)[0] for i in range(6)]
    assert together.tolist() == [int(token) for token in alone]
    assert len(set(together.tolist())) > 1


def test_the_likeliest_is_the_first_of_the_greatest():
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 9, (50, 23)).astype(np.float32)
    logits[3], logits[4, 1:] = -np.inf, -np.inf
    np.testing.assert_array_equal(likeliest(jnp.asarray(logits)), logits.argmax(-1))
