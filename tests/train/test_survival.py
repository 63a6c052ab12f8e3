"""Whole runs whose loss leaps or is not finite: rolled back, and the same however often killed."""

import json
import random
import sys
import time

import pytest
from helpers.kills import campaign
from helpers.poison import program
from helpers.runs import COMMAND, TINY, arguments, assert_same_bytes, logged, start

STEPS = 36
POISON = {25: float("nan"), 30: 200.0}  # by number of the batch
# Batch 25 is step 26's: back to step 20, on with batch 26. Then 30 is step 25's: back to 19.
LEFT_OUT = range(19, 31)
CHANGES = {
    "steps": STEPS,
    "model.num_layers": 1,
    "eval.every": 30,
    "nonfinite": "rollback",
    "spike.deviations": 12.0,
    "spike.window": 10,
    "rollback.batches": 6,
}


def train(store, workdir, poisons, without=range(0), status=0, **changes) -> str:
    """Run to the end; returns what was said."""
    argv = arguments(store, workdir, **CHANGES | changes)
    process = start(argv, program(poisons, without))
    _, said = process.communicate(timeout=1200)
    assert process.returncode == status, said
    return said


@pytest.fixture(scope="module")
def rolled_back(store, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("rolled")
    train(store, workdir, POISON)
    return workdir


@pytest.mark.slow
def test_after_a_rollback_the_run_is_one_that_never_saw_these_batches(store, rolled_back, tmp_path):
    train(store, tmp_path, {}, without=LEFT_OUT)
    assert_same_bytes(tmp_path, rolled_back, STEPS)
    lines = logged(rolled_back)
    told = [line for line in lines if "train/rollback" in line]
    assert [line["step"] for line in told] == [20, 21]
    assert "step 25: the loss leapt" in told[0]["train/rollback"]
    assert told[1]["train/rollback"].startswith("step 26: the gradient of ")
    assert [line for line in lines if line not in told] == logged(tmp_path)
    meta = next((rolled_back / "checkpoints" / str(STEPS)).glob("meta/*"))
    assert [b["step"] for b in json.loads(meta.read_text())["rollbacks"]] == [20, 19]
    account = json.loads((rolled_back / "goodput.json").read_text())
    assert account["seconds"]["lost"] > 0 and account["alive"] is None


@pytest.mark.slow
@pytest.mark.nightly
def test_too_many_rollbacks_stop_the_run(store, tmp_path):
    said = train(store, tmp_path, POISON, status=2, **{"rollback.limit": 1}).splitlines()
    assert "rollback.limit=1 is reached (back to steps 20)" in said[-1]
    assert "the loss leapt" in said[-1]
    train(store, tmp_path, POISON, **{"spike.policy": "skip"})  # a policy may change


@pytest.mark.slow
@pytest.mark.nightly
def test_killed_at_any_time_it_rolls_back_to_the_same_bytes(store, rolled_back, tmp_path):
    """SIGKILL before, in and after the rollbacks, with saves at every step."""
    rng, reached = random.Random(1), set()
    for kill in range(8):
        changes = CHANGES | {"checkpoint.minutes": 0.0}
        process = start(arguments(store, tmp_path, **changes), program(POISON))
        target, newest, deadline = 4 * kill + rng.randrange(4), 0, time.monotonic() + 600
        while process.poll() is None and newest < target and time.monotonic() < deadline:
            time.sleep(0.002)
            names = [p.name for p in (tmp_path / "checkpoints").glob("[0-9]*")]
            newest = max((int(name) for name in names if name.isdigit()), default=0)
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.communicate()
        reached.add(newest)
    assert len(reached) > 4, "the kills all fell at the same place"
    train(store, tmp_path, POISON)
    assert_same_bytes(rolled_back, tmp_path, STEPS)
    assert logged(rolled_back) == logged(tmp_path)


@pytest.mark.slow
def test_killed_inside_its_saves_the_babysitter_brings_it_to_the_same_bytes(store, tmp_path):
    """Compiled as users do. A hundred of these and twenty SIGTERMs: experiments/survival."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(arguments(store, whole), XLA_FLAGS="")
    _, said = process.communicate(timeout=1200)
    assert process.returncode == 0, said
    argv = arguments(store, killed, checkpoint__minutes=0.0)
    found = campaign(
        [sys.executable, "-m", "firth", "train", *argv],
        killed,
        kills=4,
        terms=1,
        environment=COMMAND | {"XLA_FLAGS": ""},
    )
    assert found["write"] + found["checksums"] == 4 and found["term"] == 1
    assert_same_bytes(whole, killed, TINY["steps"])
    assert logged(whole) == logged(killed)
