"""Steps that go wrong: seen on the device, followed on the host as the recipe says."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest
from helpers.poison import Poisoned
from helpers.quick import jit
from helpers.runs import arguments
from helpers.steps import ROWS, random_batch, small

from firth import train
from firth.cli import main
from firth.errors import FirthError
from firth.recipe import completed, with_fields
from firth.run.outline import outline
from firth.run.program import make_step
from firth.training.optim import create_optimizer, create_schedule
from firth.training.recovery import (
    Guard,
    Policy,
    Rollback,
    batch_of,
    check_loss,
    read_policy,
    skip_batches,
)
from firth.training.state import TrainState

NAMES = ["encoder/a", "encoder/b"]
FINE = np.array([1.0, 2.0], np.float32)


def run_of(losses, deviations=3.0, window=4, squares=FINE):
    """What `check_loss` says of each loss in turn, and the window at the end."""
    kept, said = jnp.full(window, jnp.nan), []
    for loss in losses:
        finite, spike, kept = jax.jit(check_loss)(kept, jnp.float32(loss), squares, deviations)
        said.append("spike" if spike else "fine" if finite else "bad")
    return said, np.asarray(kept)


def test_no_spike_before_the_window_is_full():
    assert run_of([1.0, 100.0, 1.0, 1000.0])[0] == ["fine"] * 4


def test_a_spike_lies_above_mean_and_deviations():
    steady = [1.0, 1.2, 0.9, 1.1]
    bound = np.mean(steady) + 3 * np.std(steady)
    assert run_of([*steady, bound + 1e-3])[0][-1] == "spike"
    assert run_of([*steady, bound - 1e-3])[0][-1] == "fine"
    assert run_of([*steady, -50.0])[0][-1] == "fine", "a fall is no spike"


def test_a_spike_enters_at_the_bound_and_what_is_not_finite_not_at_all():
    steady = [1.0, 1.2, 0.9, 1.1]
    bound = np.mean(steady) + 3 * np.std(steady)
    np.testing.assert_allclose(run_of([*steady, 99.0])[1], [*steady[1:], bound], rtol=1e-6)
    said, kept = run_of([*steady, np.nan, np.inf])
    assert said[-2:] == ["bad", "bad"]
    np.testing.assert_allclose(kept, steady)
    assert run_of([*steady, 1.0], squares=np.array([1.0, np.inf], np.float32))[0] == ["bad"] * 5


def test_a_loss_that_has_risen_for_good_is_soon_no_spike():
    said, _ = run_of([1.0, 1.2, 0.9, 1.1] + [3.0] * 20)
    assert said[4] == "spike" and said[-1] == "fine"


def test_without_a_window_only_finiteness_counts():
    for loss, fine in ((1e30, True), (np.nan, False)):
        finite, spike, kept = check_loss(None, jnp.float32(loss), FINE, 0.0)
        assert bool(finite) == fine and not spike and kept is None


# ---------------------------------------------------------------------------------- batches


def test_batches_count_on_from_the_newest_rollback_that_applies():
    assert [batch_of(step, []) for step in (0, 7)] == [0, 7]
    once = [{"step": 20, "batch": 26}]
    assert [batch_of(step, once) for step in (0, 19, 20, 24)] == [0, 19, 26, 30]
    twice = [*once, {"step": 19, "batch": 31}]  # further back than the first one
    assert [batch_of(step, twice) for step in (18, 19, 20, 24)] == [18, 31, 32, 36]
    apart = [*once, {"step": 40, "batch": 52}]
    assert [batch_of(step, apart) for step in (19, 39, 40)] == [19, 45, 52]


def test_rows_begin_another_text_where_the_number_of_the_batch_jumps():
    """Batches 20 to 25 are left out: batch 26 does not go on where batch 19 ended."""

    def view(number):  # the last batch of every ten begins its streams anew
        return {"number": number, "reset": np.array([number % 10 == 9, False])}

    batch = skip_batches(view, [{"step": 20, "batch": 26}])
    assert [batch(step)["number"] for step in (0, 19, 20, 21)] == [0, 19, 26, 27]
    assert [batch(step)["reset"].tolist() for step in (0, 9, 19, 20, 21, 23)] == [
        [False, False],
        [True, False],
        [True, False],
        [True, True],
        [False, False],
        [True, False],
    ]
    first = skip_batches(view, [{"step": 0, "batch": 6}])  # nothing is remembered before step 0
    assert not first(0)["reset"].any() and first(0)["number"] == 6
    assert skip_batches(lambda number: {"number": number}, [{"step": 2, "batch": 5}])(2) == {
        "number": 5
    }


@pytest.fixture(scope="module")
def remembering():
    """(state, function of a state and a poison) of the train step of a tiny Transformer-XL."""
    config = small("transformer_xl", {"spike.deviations": 9.0, "spike.window": 2})
    run = outline(config)
    objective = Poisoned(run.objective)
    optimizer = create_optimizer(config.optimizer)
    schedule = create_schedule(config.schedule, 10)
    batch = random_batch(run.batch, np.random.default_rng(0)) | {"reset": np.zeros(ROWS, bool)}
    params = jit(run.model.init)(jax.random.key(0), batch["tokens"])["params"]
    carry = objective.carry(run.model, ROWS)
    step = jit(make_step(run.model, objective, optimizer, schedule, config))

    def poisoned(state, poison=0.0):
        return step(state, batch | {"poison": np.full(ROWS, poison, np.float32)})[:2]

    return TrainState.create(params, optimizer, carry, window=2), poisoned


@pytest.mark.parametrize(("poison", "said"), [(np.nan, "skipped"), (1e4, "spike")])
def test_a_step_that_is_left_out_forgets_what_was_remembered(remembering, poison, said):
    """The batch after it does not go on where the one before it ended."""
    state, step = remembering
    for _ in range(3):
        state, _ = step(state)
    assert int(state.skipped) == 0 and (np.asarray(state.carry["filled"]) > 0).all()
    after, measured = step(state, poison)
    assert int(after.skipped) == 1 and bool(measured["spike"][0]) == (said == "spike")
    assert not np.asarray(after.carry["filled"]).any()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.carry))
    for one, other in zip(
        jax.tree.leaves(state.params), jax.tree.leaves(after.params), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    further, _ = step(after)
    assert np.asarray(further.carry["filled"]).all(), "it remembers anew"


# ----------------------------------------------------------------------------------- policy


class Recorder:
    """In the place of the journal and the bar."""

    def __init__(self):
        self.lines, self.said = [], []

    def write(self, step, values):
        self.lines.append((step, values))

    def say(self, message):
        self.said.append(message)


def policy_of(changes) -> Policy:
    """The policy of a recipe that gives these fields alone."""
    return read_policy(completed(with_fields(ml_collections.ConfigDict(), changes)))


def watch(rollbacks=(), **policy):
    record = Recorder()
    policy = dataclasses.replace(policy_of({}), **policy)
    return record, Guard(policy, NAMES, list(rollbacks), record, record)


def step(loss=1.0, spike=None):
    return {"loss": (loss, 1.0)} | ({} if spike is None else {"spike": (spike, 1.0)})


def test_a_sound_step_passes_as_it_is():
    record, check = watch()
    measured = step(spike=0.0)
    assert check.check(5, measured, FINE) is measured
    assert record.lines == record.said == []


@pytest.mark.parametrize(
    ("loss", "squares", "where"),
    [
        (np.nan, FINE, "the loss"),
        (np.nan, np.array([1, np.nan]), "the gradient of encoder/b"),
        (1.0, np.array([np.inf, 1]), "the gradient of encoder/a"),
        (1.0, np.array([2e38, 2e38], np.float32), "the norm of the gradient"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_what_is_not_finite_is_named(loss, squares, where):
    record, check = watch(nonfinite="stop")
    with pytest.raises(FirthError, match=f"step 5: {where} is not finite.*nonfinite=skip"):
        check.check(5, step(loss), squares)
    assert record.lines == [(5, {"train/nonfinite": 1.0, "train/nonfinite_in": where})]
    record, check = watch(nonfinite="skip")
    assert check.check(5, step(loss), squares) == {"nonfinite": (1.0, 1.0)}
    assert record.said[0].endswith("skipped")


def test_spikes_have_a_policy_of_their_own():
    for policy, raised in (("stop", FirthError), ("rollback", Rollback)):
        with pytest.raises(raised, match="step 5: the loss leapt to 7, more than 6 standard dev"):
            watch(nonfinite="skip", spike=policy, deviations=6.0, window=9)[1].check(
                5, step(7.0, spike=1.0), FINE
            )
    record, check = watch(spike="skip", deviations=6.0, window=9)
    assert check.check(5, step(7.0, spike=1.0), FINE) == {"spike": (1.0, 1.0)}
    assert record.lines == [(5, {"train/spike_loss": 7.0})]


def test_a_rollback_leaves_out_the_batches_up_to_the_bad_one():
    with pytest.raises(Rollback, match=r"back to step 20, leaving out batches 20 to 25") as found:
        watch(nonfinite="rollback", batches=6)[1].check(26, step(np.nan), FINE)
    (first,) = found.value.rollbacks
    assert (first["step"], first["batch"]) == (20, 26)
    with pytest.raises(Rollback, match=r"back to step 19, leaving out batches 19 to 30") as found:
        watch([first], nonfinite="rollback", batches=6)[1].check(25, step(np.nan), FINE)
    assert [b["step"] for b in found.value.rollbacks] == [20, 19]
    with pytest.raises(Rollback, match="back to step 0, leaving out batches 0 to 2"):
        watch(nonfinite="rollback", batches=6)[1].check(3, step(np.nan), FINE)


def test_rollbacks_are_bounded():
    before = [{"step": 3, "batch": 9, "why": ""}, {"step": 5, "batch": 19, "why": ""}]
    with pytest.raises(FirthError, match=r"limit=2 is reached \(back to steps 3, 5\)"):
        watch(before, nonfinite="rollback", limit=2)[1].check(26, step(np.nan), FINE)


def test_the_first_step_after_a_rollback_tells_of_it():
    record, check = watch([{"step": 20, "batch": 26, "why": "a reason"}])
    for number in (20, 21, 22):
        check.check(number, step(), FINE)
    assert record.lines == [(21, {"train/rollback": "a reason"})]


# ----------------------------------------------------------------------------------- recipes


def test_a_recipe_without_these_sections_has_the_defaults():
    assert policy_of({"nonfinite": "skip"}).nonfinite == "skip"
    assert policy_of({}) == Policy("stop", "rollback", 0.0, window=0, batches=100, limit=3)
    assert policy_of({}).rollback_steps == 0


def test_reach_is_how_far_a_rollback_goes_back():
    changes = {"rollback.batches": 7, "spike.policy": "rollback"}
    assert policy_of(changes | {"nonfinite": "rollback"}).rollback_steps == 7
    changes["nonfinite"] = "skip"
    assert policy_of(changes).rollback_steps == 0, "no spikes looked for"
    assert policy_of(changes | {"spike.deviations": 5.0}).rollback_steps == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nonfinite": "ignore"}, "nonfinite='ignore' is unknown; choose one of stop, skip"),
        ({"spike.policy": "halt"}, r"spike\.policy='halt'"),
        ({"spike.deviations": -1.0}, r"spike\.deviations=-1\.0 should be at least 0"),
        ({"spike.deviations": 3.0, "spike.window": 1}, r"spike\.window=1 should be at least 2"),
        ({"rollback.batches": 0}, r"rollback\.batches=0 should be at least 1"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(changes, message):
    with pytest.raises(FirthError, match=message):
        policy_of(changes)


def test_a_fresh_state_has_seen_no_loss():
    """Zeros would make a spike of the first losses."""
    state = TrainState.create({"a": jnp.ones(2)}, optax.identity(), window=3)
    assert np.isnan(state.losses).all() and state.losses.shape == (3,)
    assert state.losses.dtype == np.float32 and int(state.step) == int(state.skipped) == 0
    without = TrainState.create({"a": jnp.ones(2)}, optax.identity())
    assert without.losses is None


def test_a_checkpoint_stores_what_holds_something():
    """So a run without memory and window restores what was saved before there was either."""
    state = TrainState.create({"a": jnp.ones(2)}, optax.sgd(0.1, momentum=0.9))
    assert state.parts().keys() == {"step", "skipped", "params", "opt_state"}
    state = TrainState.create({"a": jnp.ones(2)}, optax.identity(), {"memory": jnp.ones(2)}, 3)
    assert state.parts().keys() == {"step", "skipped", "params", "carry", "losses"}


def test_a_run_keeps_the_checkpoints_that_a_rollback_needs(store, tmp_path, monkeypatch, capsys):
    def opened(workdir, **options):
        raise FirthError(f"keeps {options['rollback_steps']}")

    monkeypatch.setattr(train, "open_checkpoints", opened)
    changes = dict(nonfinite="rollback", rollback__batches=7)
    assert main(["train", *arguments(store, tmp_path, **changes)]) == 2
    assert "keeps 7" in capsys.readouterr().err
