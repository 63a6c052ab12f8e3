"""Several tasks at once: each row by its own head; other heads get no gradient."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from firth.errors import FirthError
from firth.models.model import bound, create
from firth.objectives.finetune import Finetune
from firth.objectives.multitask.objective import MultiTask
from firth.objectives.objective import Sources

B, L, V = 6, 8, 23
SPEC = dict(family="bert", vocab_size=V, num_layers=1, hidden_size=12, num_heads=2)
SPEC |= dict(intermediate_size=16, max_length=L, dropout=0.0, attention_dropout=0.0)
TASKS = (
    ("cls", "classification", ("a", "b", "c")),
    ("score", "regression", ()),
    ("several", "multilabel", ("x", "y", "z", "w")),
)


def made(fields=None):
    tasks = [
        SimpleNamespace(name=name, kind=kind, labels=labels, text_columns=("a",))
        for name, kind, labels in TASKS
    ]
    several = SimpleNamespace(name="t", kind="multitask", tasks=tasks, text_columns=())
    return MultiTask.from_config(fields or {}, Sources(None, several, dict(family="bert")))


def batch_of(task):
    rng = np.random.default_rng(task)
    labels = np.zeros((B, 4), np.float32)
    if task == 0:
        labels[:, 0] = rng.integers(0, 3, B)
    elif task == 1:
        labels[:, 0] = rng.normal(size=B) * 30
    else:
        labels[:] = rng.integers(0, 2, (B, 4))
    return {
        "tokens": rng.integers(0, V, (B, L)).astype(np.int32),
        "segments": np.zeros((B, L), np.int32),
        "mask": np.ones((B, L), bool),
        "weight": np.array([1, 1, 1, 1, 1, 0], np.float32),
        "task": np.full(B, task, np.int32),
        "labels": labels,
    }


@pytest.fixture(scope="module")
def program():
    """(objective, parameters, a jitted function to (loss, gradient), its cache)."""
    objective = made()
    model = create(SPEC, objective.heads, **objective.parts({}))
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, L), int))["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.4).astype("float32"), shapes)
    losses = bound(model, lambda m, b: objective.losses(m, b, train=False)[0]["task"])
    return objective, params, jax.jit(jax.value_and_grad(losses))


def test_a_head_a_task_under_its_name(program):
    _, params, _ = program
    shapes = {name: head["dense"]["kernel"].shape[1] for name, head in params["tasks"].items()}
    assert shapes == {"cls": 3, "score": 1, "several": 4}


@pytest.mark.parametrize("task", [0, 1, 2])
def test_a_step_of_one_task_leaves_the_other_heads_without_gradient(program, task):
    """To the bit; its own head and the body have some."""
    _, params, run = program
    gradient = run(params, batch_of(task))[1]
    for number, (name, _, _) in enumerate(TASKS):
        values = flatten_dict(gradient["tasks"][name], sep="/").values()
        assert all(np.any(v) for v in values) if number == task else not any(map(np.any, values))
    assert np.any(gradient["encoder"]["word"]["embedding"])


@pytest.mark.parametrize("task", [0, 1, 2])
def test_the_loss_is_that_of_the_task_alone(program, task):
    objective, params, run = program
    name, kind, _ = TASKS[task]
    batch = batch_of(task)
    own = Finetune(regression=kind == "regression", multilabel=kind == "multilabel")
    alone = create(SPEC, ("classifier",), num_labels=objective.tasks[task].outputs)
    weights = {"encoder": params["encoder"], "classifier": params["tasks"][name]}
    labels = batch["labels"] if kind == "multilabel" else batch["labels"][:, 0]
    labels = labels.astype(np.int32) if kind == "classification" else labels
    losses = bound(alone, lambda m, b: own.losses(m, b, train=False)[0]["task"])
    expected = jax.jit(losses)(weights, {**batch, "labels": labels})
    np.testing.assert_allclose(run(params, batch)[0], expected, rtol=1e-5)


def test_one_program_serves_all_tasks_and_rows_may_be_mixed(program):
    objective, params, run = program
    whole = [batch_of(task) for task in range(3)]
    sums = [run(params, batch)[0] for batch in whole]
    mixed = {name: np.concatenate([batch[name] for batch in whole]) for name in whole[0]}
    assert run._cache_size() == 1
    np.testing.assert_allclose(run(params, mixed)[0], sum(sums), rtol=1e-5)
    assert float(objective.weights(mixed)["task"]) == 15


def test_what_it_cannot_learn_is_refused():
    with pytest.raises(FirthError, match="does not weigh labels"):
        made({"class_weights": "balanced"})
    with pytest.raises(FirthError, match="needs two texts; task 'cls' has one"):
        made({"both_orders": True})
    with pytest.raises(FirthError, match=r"use finetune\.py with --config\.data\.tasks"):
        MultiTask.from_config({}, Sources(None, SimpleNamespace(kind="regression")))
    assert jnp.isfinite(made().lm_weight)
