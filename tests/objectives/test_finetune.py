"""Fine-tuning losses against numpy in float64; padding rows count for nothing."""

import functools
from types import SimpleNamespace

import flax.linen as nn
import jax
import numpy as np
import pytest
from quick import jit

from firth.models.model import create
from firth.objectives import Given
from firth.objectives.finetune import from_config

B, L, V, C = 6, 8, 23, 3
SPEC = dict(
    family="bert",
    vocab_size=V,
    num_layers=1,
    hidden_size=12,
    num_heads=2,
    intermediate_size=16,
    max_length=L,
    dropout=0.0,
    attention_dropout=0.0,
)


def build(kind, labels, **spec):
    objective = from_config({}, Given(None, SimpleNamespace(kind=kind)))
    return objective, create(SPEC | spec, objective.heads, num_labels=labels)


@functools.cache
def random_params(labels):
    _, model = build("classification", labels)
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, L), int))["params"]
    return jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.4).astype(np.float32), shapes)


def made_batch(labels):
    rng = np.random.default_rng(1)
    mask = np.arange(L) < rng.integers(2, L + 1, (B, 1))
    mask[4:] = False
    return {
        "tokens": rng.integers(0, V, (B, L)),
        "segments": rng.integers(0, 2, (B, L)),
        "mask": mask,
        "labels": labels,
        "weight": np.array([1, 1, 1, 1, 0, 0], np.float32),
    }


def evaluate(objective, model, params, batch, train=False, seed=0):
    function = functools.partial(objective.losses, train=train)
    apply = nn.apply(lambda m, b: function(m, b), model)
    return apply({"params": params}, batch, rngs={"dropout": jax.random.key(seed)})


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("classification", np.array([0, 2, 1, 1, 0, 0], np.int32)),
        ("regression", np.array([0.5, 4.75, 2.0, 1.0, 0, 0], np.float32)),
    ],
)
def test_loss_is_the_mean_over_the_real_rows(kind, labels):
    classes = 1 if kind == "regression" else C
    objective, model = build(kind, classes)
    params, batch = random_params(classes), made_batch(labels)
    logits = jit(lambda p, *x: model.apply({"params": p}, *x)[1]["classifier"])(
        params, batch["tokens"], batch["segments"], batch["mask"]
    )
    logits = np.asarray(logits, np.float64)[:4]
    if kind == "regression":
        expected = ((logits[:, 0] - labels[:4]) ** 2).sum()
    else:
        likelihood = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        expected = -np.log(likelihood[np.arange(4), labels[:4]]).sum()
    run = jit(jax.value_and_grad(lambda p, b: evaluate(objective, model, p, b)[0]["task"]))
    loss, gradient = run(params, batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert float(objective.weights(batch)["task"]) == 4
    metrics = jit(lambda p: evaluate(objective, model, p, batch)[1])(params)
    np.testing.assert_allclose(metrics["task_loss"], (expected, 4), rtol=1e-5)
    if kind == "classification":
        right = (logits.argmax(1) == labels[:4]).sum()
        np.testing.assert_array_equal(metrics["task_accuracy"], (right, 4))
    # What fills up the batch changes neither loss nor gradient, bit for bit.
    garbage = {k: v.copy() for k, v in batch.items()}
    garbage["tokens"][4:], garbage["labels"][4:] = 7, 1
    garbage["mask"][4:] = True
    again, other = run(params, garbage)
    assert loss == again
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_training_drops_out():
    objective, model = build("classification", C, classifier_dropout=0.5)
    labels = np.zeros(B, np.int32)
    batch = made_batch(labels)
    run = jit(
        lambda b, train, seed: evaluate(objective, model, random_params(C), b, train, seed)[0],
        static_argnums=(1, 2),
    )
    still = [float(run(batch, False, seed)["task"]) for seed in (0, 1)]
    moving = [float(run(batch, True, seed)["task"]) for seed in (0, 1)]
    assert still[0] == still[1] and len({*still, *moving}) == 3
    assert objective.corrupt(batch, None) is batch
