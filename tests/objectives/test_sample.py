"""Sampling from logits against their softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import jit
from scipy.stats import chisquare

from firth.objectives.sample import sample


@pytest.mark.parametrize("classes", [2, 9, 10, 37])
def test_draws_follow_the_softmax(classes):
    logits = jnp.asarray(
        np.random.default_rng(classes).normal(size=classes, scale=1.5), jnp.float32
    )
    uniform = jax.random.uniform(jax.random.key(1), (40_000, 2))
    drawn = np.asarray(jit(sample)(jnp.broadcast_to(logits, (40_000, classes)), uniform))
    assert drawn.dtype == np.int32 and drawn.min() >= 0 and drawn.max() < classes
    expected = np.asarray(jax.nn.softmax(logits), np.float64)
    counts = np.bincount(drawn, minlength=classes)
    assert chisquare(counts, 40_000 * expected / expected.sum()).pvalue > 1e-4


def test_what_is_impossible_is_never_drawn():
    logits = jnp.full((1000, 50), -jnp.inf).at[:, [3, 44]].set(0.0)
    uniform = jax.random.uniform(jax.random.key(2), (1000, 2))
    drawn = np.asarray(sample(logits, uniform))
    assert set(drawn) == {3, 44}
    ends = jnp.asarray([[0.0, 0.0], [1 - 2**-24, 1 - 2**-24]], jnp.float32)
    assert np.asarray(sample(logits[:2], ends)).tolist() == [3, 44]


def test_a_certain_class_is_always_drawn():
    logits = jnp.zeros((100, 300)).at[:, 299].set(200.0)
    uniform = jax.random.uniform(jax.random.key(3), (100, 2))
    assert (np.asarray(sample(logits, uniform)) == 299).all()


def test_a_constant_beyond_the_exponential_changes_nothing():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(200, 37)), jnp.float32)
    uniform = jax.random.uniform(jax.random.key(4), (200, 2))
    far = sample(jnp.round(logits * 64) / 64 + 512, uniform)  # numbers that float32 holds exactly
    assert (np.asarray(far) == np.asarray(sample(jnp.round(logits * 64) / 64, uniform))).all()
