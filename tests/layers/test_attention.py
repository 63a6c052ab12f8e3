"""Attention against numpy in float64, what a mask hides, and dropout on the probabilities."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import jit

import firth.layers.attention as core
from firth.layers.attention import MASKED, MultiHeadAttention, mask_to_bias
from firth.layers.dropout import Dropout

B, L, H, K = 3, 7, 4, 5
D = H * K


@pytest.fixture(scope="module")
def case():
    """Parameters with no zero among them, hidden states and a mask with padding and a hole."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, L, D)).astype(np.float32)
    mask = np.arange(L) < np.array([[L], [4], [5]])
    mask[2, 1] = False
    init = functools.partial(MultiHeadAttention(H).init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), x, 0.0)
    params = jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.4), shapes["params"])
    return x, mask, jax.tree.map(lambda p: p.astype(np.float32), params)


def attend(params, x, bias, dtype="float32", **options):
    def apply(params, x, bias):
        return MultiHeadAttention(H, dtype=dtype).apply({"params": params}, x, bias, **options)

    return jit(apply)(params, x, bias)


def reference(params, x, mask):
    """Vaswani et al., section 3.2, written head by head in float64; masked keys are left out."""
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    q, k, v = (x @ p[n]["kernel"] + p[n]["bias"] for n in ("query", "key", "value"))
    out, probs = np.zeros((B, L, D)), np.zeros((B, H, L, L))
    for b in range(B):
        for h in range(H):
            part = slice(h * K, (h + 1) * K)
            for i in range(L):
                scores = np.array([q[b, i, part] @ k[b, j, part] for j in range(L)]) / np.sqrt(K)
                weights = np.where(mask[b], np.exp(scores - scores.max()), 0)
                probs[b, h, i] = weights / weights.sum()
                out[b, i, part] = probs[b, h, i] @ v[b, :, part]
    return out @ p["output"]["kernel"] + p["output"]["bias"], probs


def test_equals_float64(case):
    x, mask, params = case
    out, probs = attend(params, x, mask_to_bias(mask), train=False)
    expected_out, expected_probs = reference(params, x.astype(np.float64), mask)
    np.testing.assert_allclose(out, expected_out, atol=2e-5)
    np.testing.assert_allclose(probs, expected_probs, atol=1e-6)


def test_an_additive_bias_of_any_shape_reaches_the_scores(case):
    x, _, params = case
    bias = np.random.default_rng(1).normal(size=(1, H, L, L)).astype(np.float32)
    _, plain = attend(params, x, 0.0, train=False)
    _, biased = attend(params, x, bias, train=False)
    expected = np.asarray(plain, np.float64) * np.exp(bias.astype(np.float64))
    np.testing.assert_allclose(biased, expected / expected.sum(-1, keepdims=True), atol=1e-6)


def test_masked_keys_get_nothing_and_give_nothing(case):
    x, mask, params = case
    out, probs = attend(params, x, mask_to_bias(mask), train=False)
    hidden = ~np.broadcast_to(mask[:, None, None, :], probs.shape)
    assert (np.asarray(probs)[hidden] == 0).all()
    np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-6)
    garbage = np.where(mask[..., None], x, 1e3 * np.random.default_rng(2).normal(size=x.shape))
    other, _ = attend(params, garbage.astype(np.float32), mask_to_bias(mask), train=False)
    np.testing.assert_array_equal(np.asarray(out)[mask], np.asarray(other)[mask])


def test_a_row_without_any_key_stays_finite(case):
    x, mask, params = case
    mask = mask.copy()
    mask[1] = False

    def total(params, x):
        out, probs = MultiHeadAttention(H).apply(
            {"params": params}, x, mask_to_bias(mask), train=False
        )
        return (out**2).sum(), (out, probs)

    gradient = jit(jax.grad(total, argnums=(0, 1), has_aux=True))
    gradients, (out, probs) = gradient(params, x)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(probs[1].sum(-1), 1, rtol=1e-6)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


def test_the_constant_of_masks_is_berts():
    """-10,000 is added: a key stays hidden though its score is thousands above the others', and
    a row without any key attends as its scores have it, to float32's step of 0.001 there."""
    v = jnp.eye(3)[None, :, None]  # the output is the matrix of probabilities
    scores = np.float32([[0.0, 5000.0, 1.0], [0.25, -0.5, 1.5]])[None, None]
    mask = np.array([[True, False, True]])
    out, _ = core.attend(scores + mask_to_bias(mask), v, Dropout(0.0), train=False)
    np.testing.assert_allclose(out[0, 0, 0], [1 / (1 + np.e), 0, np.e / (1 + np.e)], rtol=1e-6)
    hidden = scores + mask_to_bias(~np.ones_like(mask))
    out, _ = core.attend(hidden, v, Dropout(0.0), train=False)
    weights = np.exp(scores[0, 0, 1])
    np.testing.assert_allclose(out[0, 1, 0], weights / weights.sum(), atol=1e-3)


def test_bfloat16_computes_in_bfloat16_with_float32_parameters_and_softmax(case):
    x, mask, params = case
    module = MultiHeadAttention(H, dtype="bfloat16")
    created = jax.eval_shape(functools.partial(module.init, train=False), jax.random.key(0), x, 0.0)
    assert {p.dtype for p in jax.tree.leaves(created)} == {jnp.dtype("float32")}
    out, probs = attend(params, x, mask_to_bias(mask), dtype="bfloat16", train=False)
    assert out.dtype == jnp.bfloat16 and probs.dtype == jnp.float32
    exact, exact_probs = attend(params, x, mask_to_bias(mask), train=False)
    np.testing.assert_allclose(np.asarray(out, np.float32), exact, atol=0.1)
    np.testing.assert_allclose(probs, exact_probs, atol=0.05)
    np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-6)  # not rounded to bfloat16


def test_dropout_falls_on_the_probabilities():
    """With identity values and projections, the output is the matrix that multiplied them."""
    n, rate = 64, 0.3
    eye, zero = np.eye(n, dtype=np.float32), np.zeros(n, np.float32)
    rng = np.random.default_rng(3)
    params = {
        name: {"kernel": rng.normal(size=(n, n), scale=0.3).astype(np.float32), "bias": zero}
        for name in ("query", "key")
    } | {name: {"kernel": eye, "bias": zero} for name in ("value", "output")}
    x = np.broadcast_to(eye, (8, n, n))
    module = MultiHeadAttention(1, dropout=rate)
    apply = functools.partial(module.apply, {"params": params}, x, 0.0)
    out, probs = jit(lambda key: apply(train=True, rngs={"dropout": key}))(jax.random.key(0))
    _, clean = jit(lambda: apply(train=False))()
    np.testing.assert_array_equal(probs, clean)  # what is returned is before dropout
    dropped = np.asarray(out) == 0
    expected = np.where(dropped, 0, np.asarray(clean[:, 0]) / (1 - rate))
    np.testing.assert_allclose(out, expected, rtol=1e-4)
    assert abs(dropped.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / dropped.size)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_is_that_of_the_plain_formula_and_keeps_one_array(rate, dtype):
    """`attend` has a backward pass of its own; here it is derived from the formula, in float64."""
    n, m = 6, 9
    rng = np.random.default_rng(4)
    scores = rng.normal(size=(B, H, n, m), scale=2).astype(np.float32)
    scores[1, :, :, 5:] = MASKED
    scores[2, :, 3] = MASKED  # a row that sees nothing
    v, weights = rng.normal(size=(B, m, H, K)), rng.normal(size=(B, n, H, K))
    v, key = jnp.asarray(v, dtype), jax.random.key(0)

    def own(scores, v):
        dropout = Dropout(rate)
        run = nn.apply(lambda module: core.attend(scores, v, module, train=True)[0], dropout)
        return run({}, rngs={"dropout": key})

    keep = nn.apply(lambda module: module.mask(scores.shape), Dropout(rate))
    keep = np.asarray(keep({}, rngs={"dropout": key})) if rate else np.ones(scores.shape, bool)

    def plain(scores, v):
        exp = jnp.exp(scores - scores.max(-1, keepdims=True))
        kept = jnp.where(keep, exp / exp.sum(-1, keepdims=True), 0) * Dropout(rate).scale
        return (jnp.einsum("BHLM,BMHK->BLHK", kept, v) * weights).sum()

    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x, np.float64)) for x in (scores, v)]
        expected = jax.grad(plain, argnums=(0, 1))(*wide)
        expected = [np.asarray(x) for x in expected]
    _, pull = jax.vjp(own, scores, v)
    kept = [x for x in jax.tree.leaves(pull) if getattr(x, "size", 0) == scores.size]
    assert [x.dtype for x in kept] == [jnp.dtype(dtype)]
    tolerance = dict(atol=2e-6) if dtype == "float32" else dict(atol=0.04, rtol=0.02)
    for got, wanted in zip(pull(jnp.asarray(weights, dtype)), expected, strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float64), wanted, **tolerance)
