"""One step of training alone: its gradient, its accumulation, its keys and what it leaves alone."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import initial, jit

from firth import recipe
from firth.models.model import create
from firth.objectives.mlm import MaskedLM
from firth.run.program import make_step
from firth.training import optim
from firth.training.state import TrainState


@pytest.fixture(scope="module")
def parts():
    """Model, objective, optimizer, schedule, config, state and batch of a tiny step."""
    config = recipe.read_recipe("bert.py:tiny,length=16")
    with config.unlocked():
        config.model.update(
            vocab_size=40, num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32
        )
    config.model.max_length = 16
    config.model.dropout = config.model.attention_dropout = 0.0
    objective = MaskedLM(4, 40, (0, 2, 3), max_predictions=3, pairs="nsp")
    model = create(config.model, objective.heads)
    optimizer = optim.create_optimizer(config.optimizer)
    schedule = optim.create_schedule({"name": "constant", "lr": 1e-3}, 100)
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 40, (8, 16)).astype(np.int32)
    mask = np.arange(16) < rng.integers(4, 17, (8, 1))
    batch = {
        "tokens": np.where(mask, tokens, 0),
        "segments": np.zeros((8, 16), np.int32),
        "mask": mask,
        "next": rng.integers(0, 2, 8).astype(np.int32),
        "example": np.arange(8, dtype=np.uint32),
        "copy": np.zeros(8, np.uint32),
    }
    batch = jax.tree.map(jnp.asarray, batch)
    params = initial(model, tokens)
    return model, objective, optimizer, schedule, config, params, batch


def step_of(parts, **changes):
    model, objective, optimizer, schedule, config, params, batch = parts
    config = config.copy_and_resolve_references()
    for name, value in changes.items():
        config[name] = value
    step = make_step(model, objective, optimizer, schedule, config)
    return step, TrainState.create(params, optimizer), batch


def test_accumulation_is_exact_for_weighted_losses(parts):
    whole, state, batch = step_of(parts)
    parted, _, _ = step_of(parts, accumulate=4)
    one, measured_one, _ = jit(whole)(state, batch)
    four, measured_four, _ = jit(parted)(state, batch)
    for a, b in zip(jax.tree.leaves(one.opt_state), jax.tree.leaves(four.opt_state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
    for name in measured_one:
        np.testing.assert_allclose(measured_one[name], measured_four[name], rtol=1e-5)


def test_narrow_products_change_a_step_by_their_rounding_alone(parts):
    """The moments of every parameter move, by little, and stay float32."""
    plain, state, batch = step_of(parts)
    narrow, _, _ = step_of(parts, product_dtype="bfloat16")
    other, measured_other, _ = jit(narrow)(state, batch)
    one, measured_one, _ = jit(plain)(state, batch)
    loss, other_loss = (measured["loss"][0] for measured in (measured_one, measured_other))
    assert 1e-6 < abs(loss - other_loss) < 3e-3 * loss
    for a, b in zip(jax.tree.leaves(one.opt_state), jax.tree.leaves(other.opt_state), strict=True):
        if np.abs(a).max() > 1e-9 and a.ndim:  # keys' biases have no gradient; and there is a count
            assert a.dtype == b.dtype == jnp.float32
            assert 0 < np.abs(a - b).max() < 0.06 * np.abs(a).max()


def test_the_first_step_is_the_gradient_of_the_mean_loss(parts):
    """Adam's first moment is (1 - b1) times the clipped gradient of an independent loss."""
    model, objective, *_, params, batch = parts
    step, state, _ = step_of(parts)
    new, measured, _ = jit(step)(state, batch)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(0), 0))
    corrupted = jit(objective.corrupt)(batch, keys[0])

    def mean_loss(params):
        inputs = (corrupted[name] for name in ("tokens", "segments", "mask"))
        _, logits = model.apply({"params": params}, *inputs)
        chosen = jax.nn.log_softmax(logits["mlm"])[jnp.arange(8)[:, None], corrupted["positions"]]
        picked = jnp.take_along_axis(chosen, corrupted["targets"][..., None], -1)[..., 0]
        w = corrupted["target_weights"]
        nsp = jax.nn.log_softmax(logits["nsp"])[jnp.arange(8), corrupted["next"]]
        return -(picked * w).sum() / w.sum() - nsp.mean()

    loss, grads = jit(jax.value_and_grad(mean_loss))(params)
    np.testing.assert_allclose(measured["loss"][0], loss, rtol=1e-5)
    norm = np.sqrt(sum((np.asarray(g, np.float64) ** 2).sum() for g in jax.tree.leaves(grads)))
    np.testing.assert_allclose(measured["grad_norm"][0], norm, rtol=1e-4)
    moments = next(s.mu for s in new.opt_state if hasattr(s, "mu"))
    for g, m in zip(jax.tree.leaves(grads), jax.tree.leaves(moments), strict=True):
        np.testing.assert_allclose(m, 0.1 * g / max(norm, 1.0), rtol=2e-3, atol=1e-7)


def test_a_non_finite_step_changes_nothing_but_the_counts(parts):
    step, state, batch = step_of(parts)
    params = jax.tree.map(lambda x: x, state.params)
    params["nsp"]["dense"]["bias"] = jnp.array([jnp.nan, 0.0])
    state = TrainState.create(params, parts[2])
    new, measured, squares = jit(step)(state, batch)
    assert int(new.step) == 1 and int(new.skipped) == 1
    assert not np.isfinite(measured["loss"][0]) and not np.isfinite(squares).all()
    for a, b in zip(jax.tree.leaves(new.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)
    for leaf in jax.tree.leaves(new.opt_state):
        assert not np.asarray(leaf).any(), "the moments took in a non-finite gradient"


def test_the_step_lowers_from_shapes_alone(parts):
    step, state, batch = step_of(parts)
    shapes = jax.eval_shape(lambda: (state, batch))
    text = jax.jit(step).lower(*shapes).as_text()
    assert "func.func public @main" in text


def test_a_step_copies_no_parameter_and_no_moment(parts):
    """It writes the new ones over the old ones; a copy would take as long as the update."""
    step, state, batch = step_of(parts)
    text = jax.jit(step, donate_argnums=0).lower(state, batch).compile().as_text()
    assert re.search(r"%state_opt_state[\w.]*__mu__", text), "what the moments are called"
    assert not re.findall(r" copy\(%state_(?:params|opt_state)[\w.]*kernel[\w.]*\)", text)


def test_masks_change_with_the_step_and_the_seed(parts):
    """The model of `parts` drops nothing, so that only the masks can change the loss."""
    step, state, batch = step_of(parts)
    other, _, _ = step_of(parts, seed=1)
    run = jit(step)
    a = run(state, batch)[1]["loss"][0]
    assert a == run(state, batch)[1]["loss"][0]
    assert a != run(state.replace(step=state.step + 1), batch)[1]["loss"][0]
    assert a != jit(other)(state, batch)[1]["loss"][0]


def test_dropout_changes_with_the_step_and_the_micro_batch(parts):
    """Static masks stay those of the example, so that only dropout can change the loss."""
    config = parts[4].copy_and_resolve_references()
    with config.unlocked():
        config.objective.static = True
    still = (*parts[:4], config, *parts[5:])
    config = config.copy_and_resolve_references()
    config.model.dropout = config.model.attention_dropout = 0.3
    moving = (create(config.model, parts[1].heads), *parts[1:4], config, *parts[5:])
    twice = {name: jnp.repeat(x, 2, axis=0) for name, x in parts[-1].items()}

    def losses(given):
        """At step 0, at step 1, and of two micro-batches that are equal."""
        step, state, batch = step_of(given)
        run, parted = jit(step), jit(step_of(given, accumulate=2)[0])
        later = state.replace(step=state.step + 1)
        found = run(state, batch), run(later, batch), parted(state, twice)
        return [float(measured["loss"][0]) for _, measured, _ in found]

    still, moving = losses(still), losses(moving)
    assert still == pytest.approx([still[0]] * 3, rel=1e-6)
    first, later, parted = moving
    assert min(abs(first - other) for other in (still[0], later, parted)) > 1e-4


def test_frozen_parameters_do_not_move(parts):
    model, objective, _, schedule, config, params, batch = parts
    config = config.copy_and_resolve_references()
    config.optimizer.freeze = ("^encoder/",)
    optimizer = optim.create_optimizer(config.optimizer)
    step = jit(make_step(model, objective, optimizer, schedule, config))
    state = TrainState.create(params, optimizer)
    new, _, _ = step(state, batch)
    new, _, _ = step(new, batch)
    for a, b in zip(
        jax.tree.leaves(params["encoder"]), jax.tree.leaves(new.params["encoder"]), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert (params["nsp"]["dense"]["kernel"] != new.params["nsp"]["dense"]["kernel"]).all()


def test_losses_run_inside_a_bound_model(parts):
    """What `make_step` relies on: an objective's losses take a bound module."""
    model, objective, *_, params, batch = parts
    batch = jit(objective.corrupt)(batch, jax.random.key(1))
    losses = nn.apply(lambda m, b: objective.losses(m, b, train=False), model)
    sums, _ = jit(losses)({"params": params}, batch)
    assert set(sums) == set(objective.weights(batch)) == set(objective.coefficients)
