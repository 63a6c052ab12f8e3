"""Fine-tuning losses against numpy in float64; padding rows count for nothing."""

import functools
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import initial, jit

from firth.errors import FirthError
from firth.models.model import bound, create
from firth.objectives.finetune import Finetune, swap_texts
from firth.objectives.objective import Sources
from firth.run.experiment import create_objective

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
    objective = Finetune.from_config({}, Sources(None, SimpleNamespace(kind=kind)))
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


def test_weighted_classes_are_torchs_weighted_cross_entropy():
    """Loss and gradient of a mean over rows; metrics are those without weights."""
    import torch

    class_weights, labels = (0.25, 4.0, 1.5), np.array([0, 2, 1, 1, 0, 0], np.int32)
    logits = np.random.default_rng(2).normal(size=(B, C)).astype(np.float32)
    batch, objective = made_batch(labels), Finetune(class_weights=class_weights)

    def mean(logits):
        return objective.losses_of(logits, batch)[0]["task"] / objective.weights(batch)["task"]

    loss, gradient = jax.value_and_grad(mean)(logits)
    theirs = torch.tensor(logits[:4], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor(class_weights, dtype=torch.float64)
    expected = torch.nn.functional.cross_entropy(theirs, torch.tensor(labels[:4]).long(), weight)
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-6)
    np.testing.assert_allclose(gradient[:4], theirs.grad, rtol=1e-5, atol=1e-7)
    assert not np.any(gradient[4:])
    plain = Finetune().losses_of(logits, batch)[1]
    jax.tree.map(np.testing.assert_array_equal, objective.losses_of(logits, batch)[1], plain)


def test_several_labels_are_torchs_binary_cross_entropy():
    """Loss and gradient of a mean over rows, also where a sigmoid is 0 or 1 in float32."""
    import torch

    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, (B, C)).astype(np.int32)
    logits = (rng.normal(size=(B, C)) * 5).astype(np.float32)
    logits[0] = 120, -120, 40
    batch = made_batch(labels)
    task = SimpleNamespace(kind="multilabel", name="t")
    objective = Finetune.from_config({}, Sources(None, task))

    def mean(logits):
        return objective.losses_of(logits, batch)[0]["task"] / objective.weights(batch)["task"]

    loss, gradient = jax.value_and_grad(mean)(logits)
    theirs = torch.tensor(logits[:4], dtype=torch.float64, requires_grad=True)
    expected = torch.nn.BCEWithLogitsLoss()(theirs, torch.tensor(labels[:4]).double())
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-6)
    np.testing.assert_allclose(gradient[:4], theirs.grad, rtol=1e-5, atol=1e-7)
    assert not np.any(gradient[4:])
    np.testing.assert_allclose(
        objective.losses_of(logits, batch)[1]["task_loss"], (4 * expected.item(), 4), rtol=1e-6
    )
    with pytest.raises(FirthError, match="task 't' is of kind multilabel; only the labels of a"):
        Finetune.from_config({"class_weights": "balanced"}, Sources(None, task))


def test_weights_come_from_the_labels_of_train():
    task = SimpleNamespace(
        name="t", kind="classification", labels=("a", "b"), text_columns=("text",)
    )
    sources = Sources(None, task, labels=np.array([0, 0, 0, 1]))
    found = Finetune.from_config({"class_weights": "balanced"}, sources).class_weights
    np.testing.assert_allclose(found, (4 / 6, 2.0))
    assert Finetune.from_config({"class_weights": ""}, sources).class_weights == ()


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


# ---------------------------------------------------------------------------- GPT's additions


def pair_rows(a, b, special_counts=(1, 1, 1), length=12):
    """(tokens, segments, mask) [1, L] of a pair as `buckets` makes it; specials are 90 and up."""
    before, between, after = (
        [90 + 3 * i + j for j in range(n)] for i, n in enumerate(special_counts)
    )
    tokens = [*before, *a, *between, *b, *after]
    second = len(before) + len(a) + len(between)
    segments = [0] * second + [1] * (len(tokens) - second)
    pad = length - len(tokens)
    return tuple(
        np.array([row])
        for row in (
            tokens + [0] * pad,
            segments + [0] * pad,
            [True] * len(tokens) + [False] * pad,
        )
    )


@pytest.mark.parametrize("special_counts", [(1, 1, 1), (1, 2, 1), (0, 1, 2)])
@pytest.mark.parametrize(("a", "b"), [((1, 2, 3), (4, 5)), ((1,), (4, 5, 6)), ((7, 8), (9, 3))])
def test_swapping_is_encoding_the_other_way_round(a, b, special_counts):
    tokens, segments, mask = pair_rows(a, b, special_counts)
    found = swap_texts(*map(jnp.asarray, (tokens, segments, mask)), special_counts)
    expected = pair_rows(b, a, special_counts)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_a_single_text_is_not_swapped():
    tokens, _, mask = pair_rows((1, 2, 3), ())
    none = np.zeros_like(tokens)
    found = swap_texts(*map(jnp.asarray, (tokens, none, mask)), (1, 1, 1))
    np.testing.assert_array_equal(found[0], tokens)


GPT = SPEC | dict(family="gpt", embedding_dropout=0.0)


def gpt(body=GPT, **fields):
    task = SimpleNamespace(kind="classification", text_columns=("a", "b"), name="made")
    objective = Finetune.from_config(fields, Sources(None, task, body=body))
    model = create(body, objective.heads, num_labels=C)
    params = initial(model, np.zeros((1, L), int))
    params = jax.tree.map(
        lambda p: np.random.default_rng(p.size).normal(size=p.shape, scale=0.4), params
    )
    return objective, model, params


@pytest.mark.parametrize("body", [GPT, SPEC | dict(pooler=True)], ids=["last", "pooled"])
def test_both_orders_do_not_tell_the_texts_apart(body):
    objective, model, params = gpt(body, both_orders=True)
    logits = jit(bound(model, lambda m, b: objective.logits(m, b, train=False)))

    def of(a, b):
        tokens, segments, mask = pair_rows(a, b, length=L)
        return np.asarray(
            logits(params, {"tokens": tokens % V, "segments": segments, "mask": mask})
        )

    np.testing.assert_allclose(of((1, 2), (3, 4, 5)), of((3, 4, 5), (1, 2)), atol=1e-5)
    plain = gpt(body)[0]
    alone = jit(bound(model, lambda m, b: plain.logits(m, b, train=False)))
    tokens, segments, mask = pair_rows((1, 2), (3, 4, 5), length=L)
    batch = {"tokens": tokens % V, "segments": segments, "mask": mask}
    assert np.abs(alone(params, batch) - of((1, 2), (3, 4, 5))).max() > 1e-3


def test_the_auxiliary_loss_is_a_mean_over_each_texts_tokens():
    objective, model, params = gpt(lm_weight=0.5)
    assert objective.coefficients == {"task": 1.0, "lm": 0.5}
    batch = made_batch(np.arange(B) % C)
    batch["mask"] = np.arange(L) < np.array([8, 5, 3, 2, 0, 0])[:, None]
    sums, metrics = jit(bound(model, lambda m, b: objective.losses(m, b, train=False)))(
        params, batch
    )
    logits = jit(bound(model, lambda m, b: m.lm(m.encoder(b["tokens"], None, b["mask"]).last)))(
        params, batch
    )
    log_p = np.asarray(jax.nn.log_softmax(logits), np.float64)
    expected = 0.0
    for row in range(4):
        n = batch["mask"][row].sum()
        picked = [-log_p[row, i, batch["tokens"][row, i + 1]] for i in range(n - 1)]
        expected += np.mean(picked)
    np.testing.assert_allclose(sums["lm"], expected, rtol=1e-5)
    assert float(metrics["lm_loss"][1]) == float(objective.weights(batch)["lm"]) == 4


def test_additions_that_do_not_fit():
    single = SimpleNamespace(kind="classification", text_columns=("a",), name="sst2")
    with pytest.raises(FirthError, match="'sst2' has one"):
        Finetune.from_config(dict(both_orders=True), Sources(None, single))
    with pytest.raises(FirthError, match="expected 0 or more"):
        gpt(lm_weight=-1.0)
    with pytest.raises(FirthError, match=r"'finetune' cannot train .*'bert'"):
        create_objective(
            dict(name="finetune", lm_weight=0.5), None, single, body=dict(family="bert")
        )


AWD = dict(family="awd_lstm", vocab_size=V, num_layers=2, hidden_size=6, embedding_size=4)
AWD |= dict.fromkeys(("dropout", "embedding_dropout", "output_dropout", "word_dropout"), 0.0)
AWD |= dict(weight_dropout=0.0)


@pytest.mark.parametrize("lm_weight", [0.0, 0.5])
def test_a_model_that_reads_backwards_reads_the_turned_texts(lm_weight):
    """Its labels and its language-modelling loss are those of a forward one for texts turned."""
    objective = Finetune(lm_weight=lm_weight)
    model, back = (
        create(AWD | dict(backward=b), objective.heads, num_labels=C) for b in (False, True)
    )
    batch = made_batch(np.arange(B) % C)
    params = initial(model, batch["tokens"], scale=0.5)
    mirrored = dict(batch, tokens=batch["tokens"].copy())
    for row, mask in enumerate(batch["mask"]):
        mirrored["tokens"][row, mask] = batch["tokens"][row, mask][::-1]

    def losses(model, batch):
        function = functools.partial(objective.losses, train=False)
        return jit(bound(model, lambda m, b: function(m, b)))(params, batch)[0]

    expected, plain = losses(model, mirrored), losses(model, batch)
    for name, value in losses(back, batch).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5)
        assert abs(float(value - plain[name])) > 1e-3
