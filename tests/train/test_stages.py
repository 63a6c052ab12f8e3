"""One schedule over several runs: BERT's two lengths, where the second goes on from the first."""

import json
import shutil

import numpy as np
import pytest
from helpers.runs import arguments, assert_same_bytes, logged
from ml_collections import ConfigDict

from firth import recipe
from firth.cli import main
from firth.configs import bert
from firth.run.evaluator import evaluate
from firth.run.outline import outline
from firth.train import train as run
from firth.training.optim import create_schedule

STEPS, JOINT = 16, 12
CHANGES = {
    "steps": STEPS,
    "model.num_layers": 1,
    "log_every": 1,
    "eval.every": 0,
    "checkpoint.every": 0,
    "schedule.warmup": 4,
    "schedule.lr": 1e-3,
}


def train(store, workdir, length=16, status=0, **changes):
    argv = arguments(store, workdir, f"bert.py:tiny,length={length}", **CHANGES | changes)
    assert main(["train", *map(str, argv)]) == status
    return workdir


@pytest.fixture(scope="module")
def first(store, tmp_path_factory):
    return train(store, tmp_path_factory.mktemp("first"), until=JOINT)


def rates(workdir) -> dict[int, float]:
    lines = [line for line in logged(workdir) if "train/learning_rate" in line]
    return {line["step"]: line["train/learning_rate"] for line in lines}


def test_a_run_in_two_parts_is_the_run_in_one(store, first, tmp_path):
    """The moments, the count of steps and the rate go over: not one byte differs."""
    whole, second = tmp_path / "whole", tmp_path / "second"
    train(store, whole)
    train(store, second, resume=first)
    assert_same_bytes(whole, second, STEPS)
    assert rates(whole) == rates(first) | rates(second)


def test_a_run_goes_on_whose_config_lacks_later_fields(store, first, tmp_path):
    """Neither a workdir of before nor a config made by hand has them."""
    old = shutil.copytree(first, tmp_path / "old")
    fields = json.loads((old / "config.json").read_text())
    for name in ("product_dtype", "reduce_dtype", "reduce_async", "nonfinite", "spike", "rollback"):
        del fields[name]
    del fields["mesh"]["zero1"]
    (old / "config.json").write_text(json.dumps(fields))
    measured = evaluate(old)
    assert measured["step"] == JOINT and measured["heldout/mlm_loss"] > 0
    run(ConfigDict(fields | {"until": 0}), old)
    assert sorted(rates(old)) == list(range(1, STEPS + 1))


def test_another_length_goes_on_under_the_schedule_of_the_whole(store, first, tmp_path):
    second = train(store, tmp_path / "second", length=32, resume=first)
    found = rates(first) | rates(second)
    assert sorted(found) == list(range(1, STEPS + 1))
    for step, rate in found.items():  # bert_linear: up over 4 steps, then straight down to zero
        done = step - 1
        expected = 1e-3 * (done / 4 if done < 4 else 1 - done / STEPS)
        np.testing.assert_allclose(rate, expected, rtol=1e-5, err_msg=str(step))
    fractions = [line["train/masked_fraction"] for line in logged(second)[:1]]
    assert 0.1 < fractions[0] < 0.2
    assert recipe.read(second).data.length == 32 and recipe.read(first).data.length == 16


def test_the_same_command_extends_a_stage(store, first, tmp_path):
    """`until` may change in a workdir: it decides no number."""
    again = train(store, tmp_path / "again", until=5)
    assert max(rates(again)) == 5
    train(store, again, until=JOINT)
    assert_same_bytes(first, again, JOINT)


def test_a_stage_of_no_steps_is_refused(store, first, tmp_path, capsys):
    train(store, tmp_path / "a", status=2, until=STEPS + 1)
    assert f"until={STEPS + 1} is not within the {STEPS} steps" in capsys.readouterr().err
    train(store, tmp_path / "b", status=2, until=JOINT - 1, resume=first)
    said = capsys.readouterr().err
    assert f"is at step {JOINT}, but this run ends after {JOINT - 1}" in said


def test_the_documented_commands_share_one_schedule():
    """Phase two begins where phase one ended, at a tenth of the peak of 1e-4."""
    _, rest = bert.__doc__.split("--config.until=900000")
    assert "--config.resume=runs/128" in rest
    phases = [recipe.read_recipe(f"bert.py:base{more}") for more in ("", ",length=512")]
    assert phases[0].schedule == phases[1].schedule and phases[0].steps == phases[1].steps
    rate = create_schedule(phases[0].schedule, phases[0].steps)
    np.testing.assert_allclose(rate(900_000), 1e-5, rtol=1e-3)


def test_a_plan_counts_the_steps_of_its_stage():
    stage = recipe.read_recipe("bert.py:2x128", ["--config.until=900000"])
    assert outline(stage).steps == 900_000
    assert outline(recipe.read_recipe("bert.py:2x128")).steps == 1_000_000
