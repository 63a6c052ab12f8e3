"""The sampled softmax against the whole one, and its draws against the rule in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import jit

from firth.objectives.bidirectional.sampled import (
    draw,
    log_chances,
    log_uniform,
    sampled_losses,
    tries,
)

V, S, P, M = 40, 12, 5, 7


def problem(seed=0):
    rng = np.random.default_rng(seed)
    draws = (M, P), (V, P), (V,)
    hidden, table, bias = (rng.normal(size=shape).astype(np.float32) for shape in draws)
    return hidden, table, bias, rng.integers(0, V, M)


def test_the_distribution_is_tensorflows():
    k = np.arange(V)
    p = np.log((k + 2) / (k + 1)) / np.log(V + 1)
    assert p.sum() == pytest.approx(1)
    np.testing.assert_allclose(np.exp(log_uniform(V)), p, rtol=1e-6)


def test_with_all_words_it_is_the_whole_softmax():
    hidden, table, bias, targets = problem()
    order = np.random.default_rng(1).permutation(V)

    def sampled(hidden, table, bias):
        return sampled_losses(hidden, table, bias, targets, order).sum()

    def whole(hidden, table, bias):
        log_probs = jax.nn.log_softmax(hidden @ table.T + bias)
        return -jnp.take_along_axis(log_probs, targets[:, None], 1).sum()

    scores = hidden.astype(np.float64) @ table.T + bias
    each = np.log(np.exp(scores).sum(1)) - scores[np.arange(M), targets]
    found = sampled_losses(hidden, table, bias, targets, order)
    np.testing.assert_allclose(found, each, rtol=1e-5)
    pair = (jit(jax.grad(f, argnums=(0, 1, 2)))(hidden, table, bias) for f in (sampled, whole))
    for one, other in zip(*pair, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_losses_are_those_of_the_rule():
    """In float64: scores less the log of the expected count; the target's own draw left out."""
    hidden, table, bias, targets = problem()
    sampled = np.array([3, 0, 17, 39, targets[2], 5])
    p = np.log((np.arange(V) + 2) / (np.arange(V) + 1)) / np.log(V + 1)
    expected = 1 - (1 - p) ** tries(V, len(sampled))
    assert expected.sum() == pytest.approx(len(sampled))
    scores = hidden.astype(np.float64) @ table.T + bias - np.log(expected)
    for m, target in enumerate(targets):
        others = [scores[m, w] for w in sampled if w != target]
        total = np.log(np.exp([scores[m, target], *others]).sum())
        own = sampled_losses(hidden, table, bias, targets, sampled)[m]
        assert float(own) == pytest.approx(total - scores[m, target], rel=1e-4)


def test_draws_are_distinct_and_as_likely_as_successive_ones():
    """Against numpy, which draws one word after another and throws repetitions away."""
    runs = 4000
    keys = jax.random.split(jax.random.key(0), runs)
    drawn = np.asarray(jit(jax.vmap(lambda key: draw(key, V, S)))(keys))
    assert all(len(set(row)) == S for row in drawn)
    found = np.bincount(drawn.ravel(), minlength=V) / runs
    rng, p = np.random.default_rng(1), np.exp(np.asarray(log_uniform(V), np.float64))
    plain = np.zeros(V)
    for _ in range(runs):
        plain[rng.choice(V, S, replace=False, p=p / p.sum())] += 1 / runs
    np.testing.assert_allclose(found, plain, atol=5 * np.sqrt(0.25 / runs) * 2**0.5)
    # The expected counts, which correct the scores, are near the true chances.
    chances = np.exp(log_chances(jnp.arange(V), V, S))
    assert chances.sum() == pytest.approx(S, rel=1e-4)
    np.testing.assert_allclose(chances, found, atol=0.04)


def test_the_sum_of_all_scores_is_estimated_without_bias():
    """Its mean over draws, each score over its chance, is the whole sum within a hundredth."""
    scores = np.random.default_rng(2).normal(size=V)
    keys = jax.random.split(jax.random.key(3), 4000)
    drawn = np.asarray(jit(jax.vmap(lambda key: draw(key, V, S)))(keys))
    weights = np.exp(scores - np.asarray(log_chances(jnp.arange(V), V, S)))
    assert weights[drawn].sum(1).mean() == pytest.approx(np.exp(scores).sum(), rel=0.02)
    assert np.exp(scores)[drawn].sum(1).mean() < 0.6 * np.exp(scores).sum()


def test_large_vocabularies_have_their_numbers_of_tries():
    assert tries(5, 5) == tries(5, 9) == np.inf
    assert not np.asarray(log_chances(jnp.arange(5), 5, 5)).any()
    n = tries(793_471, 8192)
    assert 8192 < n < 50_000
    assert np.exp(np.asarray(log_chances(jnp.array([0]), 793_471, 8192))) == pytest.approx([1])
