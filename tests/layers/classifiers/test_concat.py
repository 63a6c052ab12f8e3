"""ULMFiT's classifier against numpy in float64, its dropout, and what it does with fresh bodies."""

import jax
import numpy as np
import optax
import pytest
from helpers.quick import jit

from firth.layers.classifiers.batch_norm import STATISTICS
from firth.layers.classifiers.concat import ConcatClassifierHead
from firth.models.recurrent import awd_lstm

B, D = 9, 4


def config(width: int):
    return awd_lstm.Config(hidden_size=D, embedding_size=D, classifier_width=width)


def test_it_equals_float64():
    """Two blocks of norm and affine map, ReLU between them (Howard and Ruder 2018)."""
    head, rng = ConcatClassifierHead(config(5), 3, 0.4), np.random.default_rng(4)
    x = rng.normal(size=(B, 3 * D)).astype(np.float32)
    shapes = jax.eval_shape(head.init, jax.random.key(0), x)["params"]
    drawn = jax.tree.map(lambda s: rng.uniform(0.2, 1, s.shape).astype(np.float32), shapes)
    p = jax.tree.map(lambda a: a.astype(np.float64), drawn)

    def norm(h, name):
        own = p[name]
        h = (h - own["running_mean"]) / np.sqrt(own["running_variance"] + 1e-5)
        return h * own["scale"] + own["bias"]

    h = norm(x.astype(np.float64), "norm") @ p["hidden"]["kernel"] + p["hidden"]["bias"]
    h = norm(np.maximum(h, 0), "hidden_norm") @ p["dense"]["kernel"] + p["dense"]["bias"]
    np.testing.assert_allclose(head.apply({"params": drawn}, x), h, rtol=1e-4, atol=1e-5)
    assert p["hidden"]["kernel"].shape == (3 * D, 5) and h.shape == (B, 3)


def test_what_enters_each_block_is_dropped():
    """`dropout` of the pooled states, a tenth of the hidden layer."""
    rows, width = 500, 3 * D
    head, rng = ConcatClassifierHead(config(width), width, 0.4), np.random.default_rng(0)
    x, unit = rng.normal(size=(rows, width)).astype(np.float32), np.eye(width)
    zeros = np.zeros(width)
    params = jit(head.init)(jax.random.key(0), x)["params"]
    params["norm"] |= {"scale": zeros, "bias": np.ones(width)}
    params["hidden"] = {"kernel": unit, "bias": zeros}
    params["dense"] = {"kernel": unit, "bias": zeros}

    rngs = {"dropout": jax.random.key(0)}
    out, _ = head.apply({"params": params}, x, train=True, rngs=rngs, mutable=STATISTICS)
    out = np.asarray(out)
    assert (out == 0).mean() == pytest.approx(0.1, abs=0.01)
    assert (out[out != 0] < 0).mean() == pytest.approx(0.4, abs=0.015)
    np.testing.assert_allclose(head.apply({"params": params}, x), 1, atol=1e-4)


def test_it_learns_what_hardly_differs_from_text_to_text():
    """As the states of a fresh body: a label moves one of the features by a thousandth."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 256)
    x = np.repeat(rng.normal(size=(1, 3 * D)), 256, 0) + 1e-3 * rng.normal(size=(256, 3 * D))
    x[:, 0] += 4e-3 * labels
    x = x.astype(np.float32)
    head, adam = ConcatClassifierHead(config(8), 2), optax.adam(1e-2)
    params = jit(head.init)(jax.random.key(0), x)["params"]

    def loss(params):
        rngs = {"dropout": jax.random.key(1)}
        logits, _ = head.apply({"params": params}, x, train=True, rngs=rngs, mutable=STATISTICS)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), (logits.argmax(1) == labels).mean()

    @jit
    def step(params, state):
        (_, right), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = adam.update(grads, state)
        return optax.apply_updates(params, updates), state, right

    state = adam.init(params)
    for _ in range(60):
        params, state, right = step(params, state)
    assert right > 0.9
