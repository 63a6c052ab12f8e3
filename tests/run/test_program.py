"""The train step by itself, on a model of two vectors whose loss and gradient are known."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from firth.objectives.objective import Objective
from firth.recipe import completed, with_fields
from firth.run.program import lay_out
from firth.training.partition import create_mesh, put_batch

ROWS, WIDTH, LR, DECAY = 8, 3, 0.5, 0.1
CONFIG = dict(
    seed=0,
    rng="threefry2x32",
    batch_size=ROWS,
    accumulate=1,
    mesh=dict(data=1, fsdp=1, tensor=1),
    objective=dict(static=False),
    spike=dict(deviations=0.0, window=0),
    schedule=dict(name="xlnet_poly", lr=LR, warmup=4),
    optimizer=dict(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=0.0,
        bias_correction=True,
        weight_decay=DECAY,
        decay_exclude=(),
        clip_norm=0.0,
        multipliers=(),
        freeze=(),
    ),
)


class Vectors(nn.Module):
    """Two parameters, random at first."""

    products: str = "float32"  # as every `Model` has it

    def setup(self):
        self.left, self.right = (
            self.param(f"{name}_scale", nn.initializers.normal(1.0), (WIDTH,))
            for name in ("left", "right")
        )

    def __call__(self, tokens):
        return self.left


class Rows(Objective):
    """The loss is two means over rows of x times a parameter; the second one's has weights."""

    coefficients = {"left": 2.0, "right": 0.25}  # noqa: RUF012 - as an objective has them

    def corrupt(self, batch, key):
        return batch | {"drawn": jnp.full(len(batch["x"]), jax.random.uniform(key))}

    def weights(self, batch):
        return {"left": jnp.float32(len(batch["x"])), "right": batch["weight"].sum()}

    def carry(self, model, rows, memory=0):
        return {"last": jnp.zeros(rows)}

    def losses(self, model, batch, train):
        assert train
        x, w = batch["x"], batch["weight"]
        sums = {"left": (x @ model.left).sum(), "right": (w * (x @ model.right)).sum()}
        drawn = jax.random.uniform(model.make_rng("dropout"))
        measured = {
            "corrupted": (batch["drawn"].sum(), jnp.float32(len(x))),
            "dropped": (drawn, jnp.float32(1)),
            "dropped_squared": (drawn**2, jnp.float32(1)),
            "remembered": (jnp.abs(batch["carry"]["last"] - x[:, 1]).sum(), jnp.float32(1)),
        }
        return sums, measured, {"last": x[:, 0]}


@functools.cache
def program_of(*changes):
    """(program, mesh) of the config with other values of dotted fields."""
    config = completed(with_fields(ConfigDict(CONFIG), dict(changes)))
    mesh = create_mesh(config.mesh, jax.devices()[:1])
    return lay_out(Vectors(), Rows(), config, 12, mesh), mesh


def made(*changes, **batch):
    """(program, its first state, a batch on the mesh)."""
    program, mesh = program_of(*changes)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    batch = dict(x=x, weight=np.ones(ROWS, np.float32), mask=np.ones((ROWS, 4), bool)) | batch
    return program, program.init(), put_batch(batch, mesh)


def steps(program, state, *batches):
    """[(parameters, metrics)] after each step, and the last state."""
    found = []
    for batch in batches:
        state, measured, squares = program.step(state, batch)
        means = {name: float(s) / float(w) for name, (s, w) in measured.items()}
        found.append((jax.device_get(state.params), means | {"squares": np.asarray(squares)}))
    return found, state


def test_loss_and_gradient_are_those_of_the_weighted_terms():
    weight = np.arange(ROWS, dtype=np.float32)
    mask = np.arange(ROWS * 4).reshape(ROWS, 4) < 24
    program, state, batch = made(weight=weight, mask=mask)
    x, first = np.asarray(batch["x"], np.float64), jax.device_get(state.params)
    [(_, means)], _ = steps(program, state, batch)
    left, right = 2.0 * x.mean(0), 0.25 * weight @ x / weight.sum()
    loss = left @ first["left_scale"] + right @ first["right_scale"]
    np.testing.assert_allclose(means["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(means["squares"], [(left**2).sum(), (right**2).sum()], rtol=1e-5)
    np.testing.assert_allclose(means["grad_norm"], np.sqrt(means["squares"].sum()), rtol=1e-5)
    assert means["pad_fraction"] == 0.25


def test_a_term_without_weight_is_nothing_and_no_nan():
    program, state, batch = made(weight=np.zeros(ROWS, np.float32))
    [(_, means)], state = steps(program, state, batch)
    assert np.isfinite(means["loss"]) and means["squares"][1] == 0 and int(state.skipped) == 0


def test_updates_go_downhill_by_the_rate_of_the_steps_before():
    """Adam's first directions on one gradient are its signs; warm-up begins at zero."""
    program, state, batch = made()
    before = jax.device_get(state.params)
    sign = np.sign(np.asarray(batch["x"]).mean(0))
    found, state = steps(program, state, batch, batch, batch)
    for number, (params, means) in enumerate(found):
        assert means["learning_rate"] == pytest.approx(LR * number / 4)
        for name in ("left_scale", "right_scale"):
            downhill = before[name] - LR * number / 4 * (sign + DECAY * before[name])
            np.testing.assert_allclose(params[name], downhill, rtol=1e-4, atol=1e-6)
        before = params
    assert int(state.step) == 3 and int(state.skipped) == 0


def test_micro_batches_add_up_and_draw_and_remember_for_themselves():
    """Every row meets what it left itself, and leaves it at its own place."""
    program, state, batch = made()
    state = state.replace(carry={"last": batch["x"][:, 1]})
    whole, after = steps(program, state, batch)
    program, state, _ = made(("accumulate", 4))
    state = state.replace(carry={"last": batch["x"][:, 1]})
    parted, other = steps(program, state, batch)
    (_, one), (_, four) = whole[0], parted[0]
    for name in ("loss", "grad_norm", "corrupted"):
        assert four[name] == pytest.approx(one[name], rel=1e-5)
    assert one["remembered"] == four["remembered"] == 0
    for carry in (after.carry, other.carry):
        np.testing.assert_array_equal(carry["last"], batch["x"][:, 0])
    variance = four["dropped_squared"] - four["dropped"] ** 2
    assert variance > 1e-3, "every micro-batch drops the same"
    assert one["dropped_squared"] == pytest.approx(one["dropped"] ** 2)


@pytest.mark.parametrize("static", [False, True])
def test_what_is_drawn_hangs_on_seed_and_step(static):
    """A static mask hangs on the seed alone; dropout is drawn anew all the same."""
    changes = [("objective.static", True)] if static else []
    program, state, batch = made(*changes)
    found, _ = steps(program, state, batch, batch)
    again, _ = steps(program, program.init(), batch, batch)
    other, state, _ = made(*changes, ("seed", 1))
    (_, first), (_, second) = found
    assert (first["corrupted"] == second["corrupted"]) == static
    assert first["dropped"] != second["dropped"]
    assert first["dropped"] != first["corrupted"]
    assert [m["corrupted"] for _, m in again] == [m["corrupted"] for _, m in found]
    [(_, seeded)], _ = steps(other, state, batch)
    assert seeded["corrupted"] != first["corrupted"] and seeded["dropped"] != first["dropped"]


def test_the_first_parameters_hang_on_the_seed():
    first, again, other = (made(*c)[1].params["left_scale"] for c in ((), (), (("seed", 1),)))
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).all()


def test_what_is_frozen_is_not_in_the_gradient_either():
    """Or the norm that clips would count what never moves."""
    program, state, batch = made(("optimizer.freeze", ("^right",)), ("schedule.warmup", 0))
    before = jax.device_get(state.params)
    [(params, means)], _ = steps(program, state, batch)
    assert means["squares"][0] > 0 == means["squares"][1]
    np.testing.assert_array_equal(params["right_scale"], before["right_scale"])
    assert (params["left_scale"] != before["left_scale"]).all()


def test_a_spike_changes_nothing_but_counts_and_window_and_is_forgotten():
    changes = ("spike.deviations", 2.0), ("spike.window", 3), ("schedule.lr", 0.0)
    program, state, batch = made(*changes)
    found, state = steps(program, state, batch, batch, batch)
    assert [means["spike"] for _, means in found] == [0, 0, 0]
    sound = jax.device_get(state)
    far = np.asarray(batch["x"]) * np.sign(found[0][1]["loss"]) * 1e3
    _, _, spiking = made(*changes, x=far)
    [(_, means)], state = steps(program, state, spiking)
    assert means["spike"] == 1 and int(state.skipped) == 1 and int(state.step) == 4
    assert not np.asarray(state.carry["last"]).any(), "it remembers a text that was left out"
    for name in ("params", "opt_state"):
        kept, before = (jax.tree.leaves(getattr(one, name)) for one in (state, sound))
        for a, b in zip(kept, before, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)
