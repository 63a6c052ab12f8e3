"""Whole runs whose loss leaps or is not finite: rolled back, and the same however often killed."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from made_poison import poison
from made_runs import CACHE, arguments, assert_same_bytes, logged, make_store

from firth import experiment
from firth.cli import main

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


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The runs of this process, which differ in nothing that is compiled, compile once."""
    changes = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    before = {name: getattr(jax.config, name) for name in changes}
    for name, value in changes.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def run(monkeypatch, store, workdir, poisons, without=range(0), **changes) -> int:
    monkeypatch.setattr(experiment, "build", poison(poisons, without, BUILD))
    return main(["train", *arguments(store, workdir, **CHANGES | changes)])


BUILD = experiment.build


@pytest.fixture(scope="module")
def rolled_back(store, compiled, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("rolled")
    with pytest.MonkeyPatch.context() as patch:
        assert run(patch, store, workdir, POISON) == 0
    return workdir


def test_after_a_rollback_the_run_is_one_that_never_saw_these_batches(
    store, rolled_back, tmp_path, monkeypatch
):
    assert run(monkeypatch, store, tmp_path, {}, without=LEFT_OUT) == 0
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
def test_too_many_rollbacks_stop_the_run(store, compiled, tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, store, tmp_path, POISON, rollback__limit=1) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "rollback.limit=1 is reached (back to steps 20)" in line and "the loss leapt" in line
    assert run(monkeypatch, store, tmp_path, POISON, spike__policy="skip") == 0, "may change"


@pytest.mark.slow
def test_killed_at_any_time_it_rolls_back_to_the_same_bytes(store, tmp_path):
    """SIGKILL before, in and after the rollbacks, saves by the clock among those by step."""
    script = Path(__file__).parent / "made_poison.py"
    poisons = json.dumps({str(number): str(value) for number, value in POISON.items()})

    def begin(workdir, minutes):
        argv = arguments(store, workdir, **CHANGES, checkpoint__minutes=minutes)
        return subprocess.Popen(
            [sys.executable, script, poisons, "0", "0", *map(str, argv)],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""} | CACHE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert begin(whole, 10.0).wait(300) == 0
    rng, reached = random.Random(1), set()
    for kill in range(8):
        process = begin(killed, 0.0)  # a save at every step
        target, deadline = 4 * kill + rng.randrange(4), time.monotonic() + 200
        while process.poll() is None and time.monotonic() < deadline:
            names = [p.name for p in (killed / "checkpoints").glob("[0-9]*") if p.name.isdigit()]
            newest = max(map(int, names), default=0)
            if newest >= target:
                break
            time.sleep(0.002)
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.wait()
        reached.add(newest)
    assert len(reached) > 4, "the kills all fell at the same place"
    assert begin(killed, 10.0).wait(300) == 0
    assert_same_bytes(whole, killed, STEPS)
    assert logged(whole) == logged(killed)
