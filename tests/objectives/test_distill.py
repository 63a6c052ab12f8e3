"""Distillation: the three terms against torch, the frozen teacher, what a student starts from."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import nightly
from helpers.quick import initial, jit

from firth.errors import FirthError
from firth.models.model import bound, create, merge_params
from firth.objectives.distill import Distill
from firth.objectives.mlm import MaskedLM
from firth.objectives.objective import Sources
from firth.run.experiment import create_model
from firth.weights.read import Saved

B, L, V = 5, 12, 30
MASKED = MaskedLM(4, V, (0, 2, 3), max_predictions=4, rate=0.3)
TEACHER = dict(
    family="bert",
    vocab_size=V,
    num_layers=4,
    hidden_size=24,
    num_heads=3,
    intermediate_size=40,
    max_length=L,
    dropout=0.1,
    pooler=True,
)
STUDENT = TEACHER | dict(family="distilbert", num_layers=2, pooler=False, type_vocab_size=0)


def random_params(spec, heads, seed):
    model = create(spec, heads)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, L), jnp.int32))["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.3).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def teacher():
    params = random_params(TEACHER, ("mlm", "nsp"), 1)
    return Saved(TEACHER, ("mlm", "nsp"), 2, None, False, params, Path("teacher"), "firth")


@pytest.fixture(scope="module")
def clean():
    rng = np.random.default_rng(0)
    mask = np.arange(L) < np.array([12, 12, 7, 9, 5])[:, None]
    tokens = np.where(mask, rng.integers(5, V, (B, L)), 0)
    tokens[:, 0], tokens[np.arange(B), mask.sum(1) - 1] = 2, 3
    return {
        "tokens": jnp.asarray(tokens, jnp.int32),
        "segments": jnp.zeros((B, L), jnp.int32),
        "mask": jnp.asarray(mask),
        "example": jnp.arange(B, dtype=jnp.uint32),
        "copy": jnp.zeros(B, jnp.uint32),
    }


def made(objective, spec=STUDENT):
    """(model, parameters: the student's random, the teacher's its own)."""
    model = create_model(spec, objective)
    tokens = jnp.zeros((1, L), jnp.int32)
    fresh = initial(model, tokens, seed=2)
    params, _ = merge_params(fresh, objective.initial(spec), "the teacher")
    return model, params


@pytest.mark.parametrize("masked_only", [nightly(False), True])
def test_the_terms_equal_torchs(teacher, clean, masked_only):
    import torch

    objective = Distill(MASKED, teacher, width=24, masked_only=masked_only)
    model, params = made(objective)
    batch = jit(objective.corrupt)(clean, jax.random.key(0))
    sums, metrics = jit(bound(model, lambda m, b: objective.losses(m, b, train=False)))(
        params, batch
    )
    weights = objective.weights(batch)

    texts = (batch["tokens"], batch["segments"], batch["mask"])
    ours, mine = create(STUDENT, ("mlm",)).apply({"params": params}, *texts)
    theirs, yours = create(TEACHER, ("mlm", "nsp")).apply({"params": teacher.params}, *texts)
    mask = torch.tensor(np.array(batch["mask"]))
    student, teaching = (torch.tensor(np.array(x["mlm"])) for x in (mine, yours))
    labels = torch.full((B, L), -100)
    rows, slots = np.nonzero(np.asarray(batch["target_weights"]))
    positions = np.asarray(batch["positions"])[rows, slots]
    labels[rows, positions] = torch.tensor(np.array(batch["targets"]))[rows, slots].long()
    chosen = labels >= 0 if masked_only else mask
    soft = torch.nn.KLDivLoss(reduction="batchmean")(
        torch.log_softmax(student[chosen] / 2, -1), torch.softmax(teaching[chosen] / 2, -1)
    )
    hard = torch.nn.functional.cross_entropy(student.flatten(0, 1), labels.flatten())
    hidden = [torch.tensor(np.array(x.last))[mask] for x in (ours, theirs)]
    cosine = torch.nn.CosineEmbeddingLoss()(*hidden, torch.ones(len(hidden[0])))
    for term, name, expected in (
        ("soft", "soft_loss", soft),
        ("hard", "mlm_loss", hard),
        ("cosine", "cosine_loss", cosine),
    ):
        np.testing.assert_allclose(sums[term] / weights[term], expected, rtol=2e-5)
        np.testing.assert_allclose(metrics[name][0] / metrics[name][1], expected, rtol=2e-5)
    right = int((student.argmax(-1) == labels).sum())
    assert tuple(map(float, metrics["mlm_accuracy"])) == (right, len(rows))
    assert tuple(map(float, metrics["masked_fraction"])) == (len(rows), int(mask.sum()))
    assert objective.coefficients == {"soft": 20.0, "hard": 2.0, "cosine": 1.0}


def test_no_gradient_reaches_the_teacher(teacher, clean):
    objective = Distill(MASKED, teacher, width=24)
    model, params = made(objective)
    batch = jit(objective.corrupt)(clean, jax.random.key(0))

    def loss(params):
        sums, _ = bound(model, lambda m, b: objective.losses(m, b, train=False))(params, batch)
        return sum(sums.values())

    gradient = jit(jax.grad(loss))(params)
    assert all(not jnp.any(leaf) for leaf in jax.tree.leaves(gradient["teacher"]))
    assert all(jnp.any(leaf) for leaf in jax.tree.leaves(gradient["mlm"]))
    assert objective.frozen == ("^teacher/",)


def test_a_student_that_is_its_teacher_has_nothing_left_to_learn(teacher, clean):
    objective = Distill(MASKED, teacher, width=24, layers=(0, 1, 2, 3))
    body = TEACHER | dict(pooler=False)
    model, params = made(objective, body)
    batch = jit(objective.corrupt)(clean, jax.random.key(0))
    sums, _ = jit(bound(model, lambda m, b: objective.losses(m, b, train=False)))(params, batch)
    assert abs(float(sums["soft"])) < 1e-4 and abs(float(sums["cosine"])) < 1e-4


def test_a_student_starts_from_the_chosen_layers(teacher):
    objective = Distill(MASKED, teacher, width=24, layers=(1, 3))
    _, params = made(objective)
    for mine, theirs in ((0, 1), (1, 3)):
        ours = params["encoder"]["stack"][f"layer_{mine}"]
        taught = teacher.params["encoder"]["stack"][f"layer_{theirs}"]
        jax.tree.map(np.testing.assert_array_equal, ours, taught)
    for name in ("word", "position", "norm"):
        jax.tree.map(
            np.testing.assert_array_equal,
            params["encoder"][name],
            teacher.params["encoder"][name],
        )


def test_a_narrower_student_gets_a_bridge(teacher, clean):
    narrow = STUDENT | dict(hidden_size=12, num_heads=2, intermediate_size=20)
    objective = Distill(MASKED, teacher, width=12)
    assert objective.heads == ("mlm", "bridge")
    model, params = made(objective, narrow)
    assert params["bridge"]["kernel"].shape == (12, 24)
    batch = jit(objective.corrupt)(clean, jax.random.key(0))
    sums, _ = jit(bound(model, lambda m, b: objective.losses(m, b, train=False)))(params, batch)
    assert all(np.isfinite(value) for value in sums.values())
    assert dataclasses.replace(objective, cosine=0.0).heads == ("mlm",)


@pytest.mark.parametrize(
    ("layers", "changes", "message"),
    [
        ((0,), {}, "for each of the student's 2"),
        ((0, 4), {}, "layers 0 to 3"),
        ((0, 1), dict(hidden_size=12, num_heads=2), "a distilbert 12 wide cannot take the layers"),
        ((0, 1), dict(family="albert"), "a albert 24 wide cannot take the layers of a bert"),
    ],
)
def test_layers_that_do_not_fit_are_refused(teacher, layers, changes, message):
    objective = Distill(MASKED, teacher, width=24, layers=layers)
    with pytest.raises(FirthError, match=message):
        objective.initial(STUDENT | changes)


def test_teachers_that_cannot_teach_are_refused(teacher):
    tokenizer = SimpleNamespace(
        mask_id=4, vocab_size=V, pad_id=0, cls_id=2, sep_id=3, special_ids={0}, vocab=["x"] * V,
        word_starts=np.ones(V, bool),
    )  # fmt: skip
    fields = dict(mask_rate=0.8, random_rate=0.1)

    def build(saved, vocabulary=V, **more):
        sources = Sources(
            SimpleNamespace(**vars(tokenizer) | dict(vocab_size=vocabulary)),
            body=STUDENT,
            load=lambda source: saved,
        )
        return Distill.from_config(dict(fields) | dict(teacher="t") | more, sources)

    assert build(teacher).width == 24
    with pytest.raises(FirthError, match="has no masked LM head to learn from; it has nsp"):
        build(dataclasses.replace(teacher, heads=("nsp",)))
    with pytest.raises(FirthError, match="has 30 words, fewer than the corpus' 31"):
        build(teacher, vocabulary=31)
    with pytest.raises(FirthError, match=r"objective\.teacher is not set"):
        build(teacher, teacher="")
    with pytest.raises(FirthError, match=r"temperature=0\.0"):
        build(teacher, temperature=0.0)
