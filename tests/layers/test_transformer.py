"""The encoder stack against numpy in float64; scan == loop, remat == no remat."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import with_each_change
from helpers.quick import jit
from scipy.special import erf

from firth.layers.attention import mask_to_bias
from firth.layers.dropout import Dropout
from firth.layers.transformer import REMAT_POLICIES, Stack, gelu, layer_norm
from firth.models.bert import Config
from firth.models.model import to_layout

B, L, D, N, H, F = 2, 6, 12, 2, 3, 20
CONFIG = Config(
    num_layers=N,
    hidden_size=D,
    num_heads=H,
    intermediate_size=F,
    dropout=0.0,
    attention_dropout=0.0,
    norm_epsilon=0.1,
)


@pytest.fixture(scope="module")
def case():
    """Unrolled parameters, all random, hidden states and a mask."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, L, D)).astype(np.float32)
    mask = np.array([[True] * L, [True] * 4 + [False] * 2])
    draw = lambda s: rng.normal(size=s.shape, scale=0.4).astype(np.float32)  # noqa: E731
    return jax.tree.map(draw, shapes()), x, mask


def run(params, x, mask, *, train=False, attentions=False, key=0, **changes):
    config = dataclasses.replace(CONFIG, **changes)
    rngs = {"dropout": jax.random.key(key, impl="rbg")} if train else {}
    return Stack(config).apply(
        {"params": params}, x, mask_to_bias(mask), train=train, attentions=attentions, rngs=rngs
    )


@functools.cache
def shapes(**changes):
    """The parameters' shapes and dtypes, as initialised."""
    config = dataclasses.replace(CONFIG, **changes)
    x = jnp.zeros((B, L, config.hidden_size), config.dtype)
    init = functools.partial(Stack(config).init, train=False, attentions=False)
    return jax.eval_shape(init, jax.random.key(0), x, 0.0)["params"]


def run_quickly(*arrays, **options):
    return jit(functools.partial(run, **options))(*arrays)


@pytest.fixture(scope="module")
def value_and_gradient():
    """Outputs and the gradient of a loss that depends on every layer, each variant compiled once.

    Parameters are given and gradients returned unrolled, whatever the variant's layout.
    """

    @functools.cache
    def compiled(train, changes):
        def loss(params, x, mask):
            last, hidden, _ = run(params, x, mask, train=train, key=5, **dict(changes))
            weights = jnp.arange(1.0, hidden.size + 1).reshape(hidden.shape) / hidden.size
            return (hidden * weights).sum() + (last**3).sum(), (last, hidden)

        return jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))

    def both(params, x, mask, train=False, **changes):
        params = to_layout(params, changes.get("scan", False))
        (_, outputs), (grads, grad_x) = compiled(train, tuple(changes.items()))(params, x, mask)
        return outputs, (to_layout(jax.device_get(grads), scan=False), grad_x)

    return both


def assert_close(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}


def reference(params, x, mask, activation):
    """Post-norm layers as the paper writes them, in float64: LN(x + f(x)) twice a layer."""
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    x = x.astype(np.float64)

    def affine(part, x):
        return x @ part["kernel"] + part["bias"]

    def norm(part, x):
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + 0.1) * part["scale"] + part["bias"]

    hidden, probs = [], []
    for i in range(N):
        layer = p[f"layer_{i}"]
        q, k, v = (
            affine(layer["attention"][name], x).reshape(B, L, H, D // H).transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(D // H)
        weights = np.exp(scores) * mask[:, None, None, :]
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(B, L, D)
        x = norm(layer["attention_norm"], x + affine(layer["attention"]["output"], mixed))
        inner = ACTIVATIONS[activation](affine(layer["mlp_in"], x))
        x = norm(layer["mlp_norm"], x + affine(layer["mlp_out"], inner))
        hidden.append(x)
        probs.append(weights)
    return np.stack(hidden), np.stack(probs)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("scan", [False, True])
def test_equals_float64(case, activation, scan):
    params, x, mask = case
    last, hidden, probs = run_quickly(
        to_layout(params, scan), x, mask, attentions=True, activation=activation, scan=scan
    )
    expected_hidden, expected_probs = reference(params, x, mask, activation)
    np.testing.assert_allclose(hidden, expected_hidden, atol=2e-5)
    np.testing.assert_allclose(probs, expected_probs, atol=2e-6)
    np.testing.assert_array_equal(last, hidden[-1])


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 2e-7), ("bfloat16", 2.0**-8)])
def test_gelu_and_its_slope_are_those_of_float64(dtype, rounding):
    """In bfloat16 only what goes in and out is rounded."""
    x = jnp.linspace(-9, 9, 4001).astype(dtype)
    wide = np.asarray(x, np.float64)
    share = (1 + erf(wide / math.sqrt(2))) / 2
    slope = share + wide * np.exp(-(wide**2) / 2) / math.sqrt(2 * math.pi)
    found, vjp = jax.vjp(gelu, x)
    assert found.dtype == dtype
    (found_slope,) = vjp(jnp.ones_like(x))
    for one, expected in ((found, wide * share), (found_slope, slope)):
        np.testing.assert_allclose(np.asarray(one, np.float64), expected, rtol=rounding, atol=1e-6)


def test_scan_equals_loop_in_values_and_gradients(case, value_and_gradient):
    loop = value_and_gradient(*case)
    scanned = value_and_gradient(*case, scan=True)
    assert_close(loop, scanned, rtol=1e-4, atol=1e-5)


REMATS = list(itertools.product(REMAT_POLICIES, (False, True)))


@pytest.mark.parametrize(("remat", "scan"), with_each_change(REMATS[1::2] + REMATS[:1], REMATS))
def test_remat_changes_no_value_and_no_gradient(case, value_and_gradient, scan, remat):
    """Dropout is on: the mask of the recomputed forward pass must be the mask of the first."""
    rates = dict(dropout=0.2, attention_dropout=0.3, scan=scan)
    plain = value_and_gradient(*case, train=True, **rates)
    other = value_and_gradient(*case, train=True, **rates, remat=remat)
    assert_close(plain, other, rtol=1e-4, atol=1e-5)
    without = value_and_gradient(*case, scan=scan)
    assert not np.allclose(plain[0][0], without[0][0], atol=0.1), "dropout did nothing"


@pytest.mark.parametrize("scan", [False, True])
def test_every_layer_draws_its_own_dropout(scan):
    """With the first norm's scale at zero, the sign of a layer's output is its mask."""
    wide = dict(hidden_size=200, num_heads=1, intermediate_size=1)
    params = jax.tree.map(lambda s: np.zeros(s.shape, np.float32), shapes(**wide))
    for layer in params.values():
        layer["mlp_norm"]["scale"] += 1
        layer["mlp_out"]["bias"] += 1
    x, mask = np.zeros((B, L, 200), np.float32), np.ones((B, L), bool)
    options = dict(wide, dropout=0.5, scan=scan, train=True)
    _, hidden, _ = run_quickly(to_layout(params, scan), x, mask, **options)
    kept = np.asarray(hidden) > 0
    assert abs(kept.mean() - 0.5) < 4 * 0.5 / np.sqrt(kept.size)
    agree = (kept[0] == kept[1]).mean()
    assert abs(agree - 0.5) < 4 * 0.5 / np.sqrt(kept[0].size)


def test_the_two_dropouts_of_a_block_are_independent(case):
    config = dataclasses.replace(CONFIG, dropout=0.5, num_layers=1)
    x = jnp.tile(case[1], (100, 1, 1))

    def captured(params, x):
        _, found = Stack(config).apply(
            {"params": params},
            x,
            0.0,
            train=True,
            attentions=False,
            rngs={"dropout": jax.random.key(0, impl="rbg")},
            capture_intermediates=lambda module, method: (
                isinstance(module, Dropout) and method == "__call__"
            ),
        )
        return [leaf == 0 for leaf in jax.tree.leaves(found) if leaf.shape == x.shape]

    one, other = jit(captured)({"layer_0": case[0]["layer_0"]}, x)
    assert abs((one == other).mean() - 0.5) < 4 * 0.5 / np.sqrt(x.size)


@pytest.mark.parametrize("scan", [False, True])
def test_bfloat16_keeps_float32_parameters(case, scan):
    params, x, mask = to_layout(case[0], scan), *case[1:]
    created = jax.tree.leaves(shapes(dtype="bfloat16", scan=scan))
    assert {p.dtype for p in created} == {jnp.dtype("float32")}
    half = x.astype(jnp.bfloat16)
    last, hidden, probs = run_quickly(
        params, half, mask, attentions=True, dtype="bfloat16", scan=scan
    )
    assert last.dtype == hidden.dtype == jnp.bfloat16 and probs.dtype == jnp.float32
    exact, _ = reference(case[0], x, mask, "gelu")
    assert np.abs(np.asarray(hidden, np.float32) - exact).mean() < 0.02


@pytest.mark.parametrize("scan", [False, True])
def test_attentions_come_only_when_asked_for(case, scan):
    arguments = to_layout(case[0], scan), *case[1:]
    for asked in (False, True):
        function = functools.partial(run, scan=scan, attentions=asked)
        probs = jax.eval_shape(function, *arguments)[2]
        assert probs.shape == (N, B, H, L, L) if asked else probs is None


def test_norms_do_not_cancel_far_from_zero():
    """The variance of numbers around 3000 comes from their distances, not from their squares."""
    x = np.random.default_rng(0).normal(3000, 1, (4, 64)).astype(np.float32)
    norm = layer_norm(dataclasses.replace(CONFIG, norm_epsilon=1e-12))
    found = norm.apply(norm.init(jax.random.key(0), x), x)
    x = x.astype(np.float64)
    expected = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_scanned_layers_begin_apart():
    config = dataclasses.replace(CONFIG, scan=True)
    init = functools.partial(Stack(config).init, train=False, attentions=False)
    layers = jit(init)(jax.random.key(0), jnp.zeros((1, 2, D)), 0.0)["params"]["layers"]
    for name in ("mlp_in", "mlp_out"):
        one, other = np.asarray(layers[name]["kernel"])
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.3
