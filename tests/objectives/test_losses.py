"""Cross-entropy and its hand-written gradient against numpy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import jit
from sklearn.metrics import roc_auc_score

from firth.objectives.losses import cross_entropy, ranked_right

C = 11


def numpy_cross_entropy(logits, targets, weights):
    """(sum of weighted losses, gradient of it with respect to the logits), in float64."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    one_hot = np.eye(logits.shape[-1])[targets]
    gradient = (np.exp(log_probs) - one_hot) * weights[..., None]
    return -((log_probs * one_hot).sum(-1) * weights).sum(), gradient


def case(shape, scale=3.0, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(*shape, C), scale=scale).astype(np.float32)
    return logits, rng.integers(0, C, shape), rng.choice([0.0, 0.5, 1.0, 2.0], shape)


@pytest.mark.parametrize("shape", [(6,), (3, 4), (2, 3, 2)])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_loss_and_gradient_equal_float64(shape, scale):
    logits, targets, weights = case(shape, scale)
    run = jit(jax.value_and_grad(lambda x: 3.0 * cross_entropy(x, targets, weights)[0]))
    loss, gradient = run(logits)
    expected_loss, expected_gradient = numpy_cross_entropy(logits, targets, weights)
    np.testing.assert_allclose(loss, 3 * expected_loss, rtol=1e-5)
    np.testing.assert_allclose(gradient, 3 * expected_gradient, atol=1e-5)


def test_right_is_the_weight_of_the_targets_with_the_greatest_logit():
    logits, targets, weights = case((200,))
    targets[:50] = logits[:50].argmax(-1)
    _, right = cross_entropy(logits, targets, weights)
    assert float(right) == ((logits.argmax(-1) == targets) * weights).sum()


def test_weight_zero_leaves_no_trace():
    logits, targets, weights = case((40,))
    weights[::2] = 0
    other = logits.copy()
    other[::2] = 1e6 * np.sign(other[::2])
    run = jit(jax.value_and_grad(cross_entropy, has_aux=True))
    (loss, right), gradient = run(logits, targets, weights)
    (other_loss, other_right), other_gradient = run(other, targets, weights)
    assert loss == other_loss and right == other_right
    assert not np.asarray(gradient)[::2].any() and not np.asarray(other_gradient)[::2].any()
    np.testing.assert_array_equal(gradient, other_gradient)


def test_half_precision_logits_give_float32_sums():
    logits, targets, weights = case((50,))
    half = jnp.asarray(logits, jnp.bfloat16)
    loss, right = cross_entropy(half, targets, weights)
    assert loss.dtype == right.dtype == jnp.float32
    expected, _ = numpy_cross_entropy(np.asarray(half, np.float32), targets, weights)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    gradient = jax.grad(lambda x: cross_entropy(x, targets, weights)[0])(half)
    assert gradient.dtype == jnp.bfloat16


def test_the_gradient_of_the_weights_is_the_loss_of_each():
    logits, targets, weights = case((7,))
    gradient = jax.grad(lambda w: cross_entropy(logits, targets, w)[0])(jnp.asarray(weights))
    each = [numpy_cross_entropy(logits, targets, np.eye(7)[i])[0] for i in range(7)]
    np.testing.assert_allclose(gradient, each, rtol=1e-5)


def test_ranks_are_the_area_under_the_roc_curve():
    rng = np.random.default_rng(0)
    logits = rng.integers(-3, 4, (8, 30)).astype(np.float32)  # many are equal
    positive, weights = rng.random((8, 30)) < 0.2, (rng.random((8, 30)) < 0.7).astype(np.float32)
    ranked, pairs = jit(ranked_right)(logits, positive, weights)
    used = weights > 0
    np.testing.assert_allclose(ranked / pairs, roc_auc_score(positive[used], logits[used]))
    ranked, pairs = jit(ranked_right)(0 * logits, positive, weights)
    assert 2 * ranked == pairs
