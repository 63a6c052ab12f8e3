"""The heads against numpy in float64; tied table; float32 logits whatever the compute dtype."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import jit
from scipy.special import erf

from firth.layers.heads import ClassifierHead, MaskedLMHead, word_scores
from firth.models.bert import Config
from firth.models.model import create

B, M, D, V = 3, 4, 16, 37
CONFIG = Config(
    vocab_size=V,
    num_layers=1,
    hidden_size=D,
    num_heads=2,
    intermediate_size=24,
    max_length=12,
    norm_epsilon=0.1,
)


def random_like(tree, rng):
    return jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.5).astype(np.float32), tree)


@pytest.fixture(scope="module")
def mlm():
    """(head, its parameters, the word table, hidden states)."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(V, D)).astype(np.float32)
    hidden = rng.normal(size=(B, M, D)).astype(np.float32)
    head = MaskedLMHead(CONFIG)
    shapes = jax.eval_shape(
        lambda k: head.init(k, hidden, lambda x: x @ table.T), jax.random.key(0)
    )
    return head, random_like(shapes["params"], rng), table, hidden


def test_masked_lm_head_equals_float64(mlm):
    head, params, table, hidden = mlm
    logits = head.apply({"params": params}, hidden, lambda x: x @ table.T)
    p = jax.tree.map(lambda a: a.astype(np.float64), params)
    h = hidden.astype(np.float64) @ p["dense"]["kernel"] + p["dense"]["bias"]
    h = h * 0.5 * (1 + erf(h / np.sqrt(2)))
    h -= h.mean(-1, keepdims=True)
    h /= np.sqrt((h**2).mean(-1, keepdims=True) + 0.1)
    h = h * p["norm"]["scale"] + p["norm"]["bias"]
    np.testing.assert_allclose(logits, h @ table.astype(np.float64).T + p["bias"], atol=5e-5)


def test_masked_lm_head_has_no_table_of_its_own(mlm):
    _, params, table, _ = mlm
    assert sum(p.size for p in jax.tree.leaves(params)) == D * D + D + 2 * D + V
    assert table.shape not in {p.shape for p in jax.tree.leaves(params)}


@pytest.fixture(scope="module")
def whole():
    """A model with both heads of pretraining, in float32 and bfloat16, and one set of weights."""
    spec = dict(family="bert", **dataclasses.asdict(CONFIG))
    models = {
        dtype: create(spec | {"dtype": dtype}, ("mlm", "nsp", "classifier"), num_labels=5)
        for dtype in ("float32", "bfloat16")
    }
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, V, (B, 9))
    shapes = jax.eval_shape(models["float32"].init, jax.random.key(0), tokens)
    return models, random_like(shapes["params"], rng), tokens


def test_logits_at_gathered_positions_are_those_of_the_whole_row(whole):
    models, params, tokens = whole
    positions = np.array([[0, 3, 8], [1, 2, 5], [7, 4, 0]])

    def gathered(model):
        out = model.encoder(tokens)
        rows = jnp.arange(B)[:, None]
        return model.mlm(out.last[rows, positions])

    apply = functools.partial(models["float32"].apply, {"params": params})
    full = jit(apply)(tokens)[1]["mlm"]
    some = jit(lambda: apply(method=gathered))()
    np.testing.assert_allclose(some, full[np.arange(B)[:, None], positions], rtol=1e-5, atol=1e-5)


def test_the_masked_lm_head_trains_the_word_table_and_follows_it(whole):
    models, params, _ = whole
    hidden = np.random.default_rng(2).normal(size=(B, M, D)).astype(np.float32)

    def logit(params, word):
        logits = models["float32"].apply({"params": params}, hidden, method="mlm")
        return logits[..., word].sum()

    gradient = jit(jax.grad(logit), static_argnums=1)(params, 7)["encoder"]["word"]["embedding"]
    assert np.abs(gradient[7]).sum() > 0
    np.testing.assert_array_equal(np.delete(gradient, 7, axis=0), 0)


def test_logits_are_float32_in_bfloat16(whole):
    models, params, tokens = whole
    created = jax.eval_shape(models["bfloat16"].init, jax.random.key(0), tokens)
    assert {p.dtype for p in jax.tree.leaves(created)} == {jnp.dtype("float32")}
    out, logits = jit(models["bfloat16"].apply)({"params": params}, tokens)
    assert out.last.dtype == jnp.bfloat16
    assert {name: (v.dtype.name, v.shape) for name, v in logits.items()} == {
        "mlm": ("float32", (B, 9, V)),
        "nsp": ("float32", (B, 2)),
        "classifier": ("float32", (B, 5)),
    }
    # The products with the table are accumulated and kept in float32, not rounded to bfloat16.
    decode = lambda m: m.encoder.decode(m.encoder(tokens).last)  # noqa: E731
    scores = jit(lambda: models["bfloat16"].apply({"params": params}, method=decode))()
    rounded = scores.astype(jnp.bfloat16).astype(jnp.float32)
    assert scores.dtype == jnp.float32 and (rounded != scores).mean() > 0.9


def test_classifier_is_affine_after_dropout():
    rng = np.random.default_rng(0)
    pooled = rng.normal(size=(2000, D)).astype(np.float32)
    head = ClassifierHead(CONFIG, D, dropout=0.25)
    kernel, bias = np.eye(D, dtype=np.float32), rng.normal(size=D).astype(np.float32)
    variables = {"params": {"dense": {"kernel": kernel, "bias": bias}}}
    plain = head.apply(variables, pooled)
    np.testing.assert_allclose(plain, pooled.astype(np.float64) + bias, atol=1e-5)
    dropped = head.apply(variables, pooled, train=True, rngs={"dropout": jax.random.key(0)}) - bias
    zero = np.abs(dropped) < 1e-6
    assert abs(zero.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / zero.size)
    np.testing.assert_allclose(dropped[~zero], pooled[~zero] / 0.75, rtol=1e-3, atol=1e-5)
    kernel = rng.normal(size=(D, 3)).astype(np.float32)
    variables = {"params": {"dense": {"kernel": kernel, "bias": bias[:3]}}}
    expected = pooled.astype(np.float64) @ kernel.astype(np.float64) + bias[:3]
    found = ClassifierHead(CONFIG, 3, dropout=0.25).apply(variables, pooled)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_gradients_of_word_scores_are_the_products_of_the_chain_rule(dtype):
    rng = np.random.default_rng(1)
    x, table = (rng.normal(size=shape).astype(dtype) for shape in ((B, M, D), (V, D)))
    weight = rng.normal(size=(B, M, V)).astype(np.float32)
    scores, pull = jax.vjp(jax.jit(word_scores), x, table)
    by_x, by_table = jax.jit(pull)(weight)
    assert scores.dtype == np.float32 and by_x.dtype == dtype and by_table.dtype == dtype
    x64, table64, weight64 = (np.asarray(a, np.float64) for a in (x, table, weight))
    near = functools.partial(np.testing.assert_allclose, rtol=0.01 if dtype != np.float32 else 1e-5)
    near(scores, x64 @ table64.T, atol=1e-5)
    near(
        np.asarray(by_x, np.float64), weight64 @ table64, atol=0.05 if by_x.itemsize == 2 else 1e-5
    )
    by_hand = np.einsum("bmv,bmd->vd", weight64, x64)
    near(np.asarray(by_table, np.float64), by_hand, atol=0.05 if by_x.itemsize == 2 else 1e-5)


def test_only_a_cpu_turns_the_gradient_of_the_word_table():
    def gradient(x, table):
        return jax.grad(lambda table: jnp.sin(word_scores(x, table)).sum())(table)

    traced = jax.jit(gradient).trace(jnp.ones((B, M, D)), jnp.ones((V, D)))
    for platform, turns in (("cpu", True), ("tpu", False), ("cuda", False)):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("optimization_barrier" in text) == turns, platform
