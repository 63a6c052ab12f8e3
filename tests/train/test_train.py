"""The loop's promises: exact resume, equal numbers on any mesh, nothing lost, nothing hidden."""

import json
import os
import random
import re
import shutil
import signal
import time

import numpy as np
import pytest
from helpers.cases import nightly
from helpers.runs import (
    TINY,
    arguments,
    assert_same_bytes,
    final_state,
    finish,
    logged,
    start,
    struck,
    trained,
)

from firth import train
from firth.cli import main
from firth.display.runs import read_run
from firth.errors import FirthError
from firth.planning import forecast
from firth.run.stopping import INTERRUPTED, TERMINATED
from firth.training import partition
from firth.training.checkpoint import Checkpoints
from firth.training.meter import Meter


@pytest.fixture(scope="session")
def straight(store, tmp_path_factory):
    """A workdir that was trained without interruption, in a process of its own."""
    workdir = tmp_path_factory.mktemp("straight")
    said = finish(arguments(store, workdir, progress=True, curves=True))
    (workdir / "said.txt").write_text(said)
    return workdir


def test_the_run_says_what_it_takes_and_leaves_a_picture(straight):
    steps = TINY["steps"]
    said = (straight / "said.txt").read_text()
    assert f"{steps} steps of 8 x 32 tokens, {steps * 8 * 32:,} in all; memory: " in said
    left = steps - 11  # the first compiles, and ten are timed
    assert re.search(rf"about \d+ s for the other {left} steps at [\d.e-]+ s a step", said)
    assert (straight / "curves.png").read_bytes().startswith(b"\x89PNG")
    run = read_run(straight)
    assert (run.state, run.step, run.steps) == ("finished", steps, steps)
    assert run.recipe == "bert.py:tiny,length=32" and run.metric == "heldout/mlm_loss"
    entries = [entry for entry in logged(straight) if "eval/heldout/mlm_loss" in entry]
    assert run.last == entries[-1]["eval/heldout/mlm_loss"] and run.speed > 0


def test_the_run_learns_and_crosses_an_epoch_end(straight):
    entries = logged(straight)
    losses = [e["train/loss"] for e in entries if "train/loss" in e]
    assert losses[-1] < losses[0] - 0.2
    epochs = json.loads((straight / "epochs.json").read_text())
    assert len(epochs["sizes"]) > 1, "one epoch was enough: the promise was not tested"


def test_what_is_asked_for_every_so_many_steps_comes_then(straight):
    entries, steps = logged(straight), TINY["steps"]
    for tag, every in (("train/loss", "log_every"), ("eval/heldout/mlm_loss", "eval.every")):
        found = [entry["step"] for entry in entries if tag in entry]
        assert found == list(range(TINY[every], steps + 1, TINY[every])), tag
    saved = {int(seal.stem) for seal in (straight / "seals").iterdir()}
    assert saved >= {*range(7, steps, TINY["checkpoint.every"]), steps}


@pytest.mark.parametrize(
    ("sig", "status"),
    [
        (signal.SIGKILL, -9),
        nightly(signal.SIGTERM, TERMINATED),
        nightly(signal.SIGINT, INTERRUPTED),
    ],
)
def test_resume_is_exact(store, straight, tmp_path, sig, status):
    ended, errors = struck(arguments(store, tmp_path), tmp_path, TINY["steps"], sig)
    assert ended == status, errors
    assert read_run(tmp_path).state == ("failed" if sig == signal.SIGKILL else "stopped")
    finish(arguments(store, tmp_path))
    assert read_run(tmp_path).state == "finished"
    assert_same_bytes(straight, tmp_path)
    assert logged(straight) == logged(tmp_path)


def newest_step(workdir) -> int:
    """The newest complete checkpoint; a save under way has a longer name."""
    names = (folder.name for folder in (workdir / "checkpoints").glob("[0-9]*"))
    return max((int(name) for name in names if name.isdigit()), default=0)


@pytest.mark.slow
@pytest.mark.nightly  # with each change test_survival kills, inside saves
def test_kills_at_random_times_change_nothing(store, tmp_path):
    """SIGKILL, a new process each time: the same bytes and journal. FIRTH_KILLS=20 kills more."""
    wanted = int(os.environ.get("FIRTH_KILLS", 4))
    changes = dict(steps=400, log_every=10, eval__every=100, checkpoint__minutes=0.01)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(arguments(store, whole, **changes))
    rng, kills, reached = random.Random(0), 0, set()
    while kills < wanted:
        process = start(arguments(store, killed, **changes))
        newest = newest_step(killed)
        # The first kill may fall before the first save. Each later one waits for a newer save,
        # so a machine that is slow to start does not die at one place again and again.
        target = newest + rng.randrange(min(kills, 1), 22)
        while process.poll() is None and newest < target:
            time.sleep(rng.random() * 0.05)
            newest = newest_step(killed)
        time.sleep(rng.random() * 0.05)
        assert process.poll() is None, f"finished after {kills} kills: give it more steps"
        process.kill()
        process.wait()
        kills += 1
        reached.add(newest)
    finish(arguments(store, killed, **changes))
    assert len(reached) > 3, "the kills all fell at the same place"
    assert_same_bytes(whole, killed, 400)
    assert logged(whole) == logged(killed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [nightly(dict(data=8)), dict(data=2, fsdp=2, tensor=2)],
)
def test_eight_devices_equal_one(store, straight, tmp_path, mesh):
    changes = {f"mesh.{axis}": size for axis, size in mesh.items()}
    finish(arguments(store, tmp_path, **changes), JAX_NUM_CPU_DEVICES="8")
    assert "8 x" in (tmp_path / "env.txt").read_text()
    for one, other in zip(logged(straight), logged(tmp_path), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=2e-3, atol=2e-4, err_msg=name)


def test_a_damaged_checkpoint_falls_back_and_the_result_is_the_same(store, straight, tmp_path):
    workdir = tmp_path / "copy"
    shutil.copytree(straight, workdir)
    newest = workdir / "checkpoints" / str(TINY["steps"])
    victim = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    said = finish(arguments(store, workdir))
    assert victim.name in said and "falling back" in said
    assert_same_bytes(straight, workdir)
    assert logged(straight) == logged(workdir)


# ------------------------------------------------------------------------------- bad input


def refused(capsys, argv) -> str:
    """The one line that the command prints when it refuses, with status 2."""
    assert main(["train", *map(str, argv)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("firth train: error: ")
    return lines[-1]


@pytest.mark.slow
def test_divergence_stops_the_run_names_the_tensor_and_keeps_no_bad_checkpoint(
    store, tmp_path, capsys
):
    changes = dict(schedule__lr=1e25, schedule__name="constant", schedule__warmup=0, steps=30)
    line = refused(capsys, arguments(store, tmp_path, **changes))
    assert "not finite" in line and "gradient of" in line
    entries = logged(tmp_path)
    assert entries[-1]["train/nonfinite"] == 1.0
    run = read_run(tmp_path)
    assert run.state == "failed" and "not finite" in run.reason
    for folder in (tmp_path / "checkpoints").glob("[0-9]*"):
        for name, leaf in final_state(tmp_path, folder.name).items():
            assert np.isfinite(leaf).all(), name
    changes["nonfinite"] = "skip"
    other = tmp_path / "skipping"
    assert main(["train", *map(str, arguments(store, other, **changes))]) == 0
    assert int(final_state(other, 30)["['skipped']"]) > 0


def test_bad_input_is_one_line_and_leaves_nothing(store, tmp_path, capsys):
    work = tmp_path / "work"
    cases = {
        "data.store is not set": arguments("", work),
        "no-such-store": arguments(tmp_path / "no-such-store", work),
        "did you mean 'batch_size'": [*arguments(store, work), "--config.batchsize=3"],
        "no recipe 'bart.py'": arguments(store, work, recipe="bart.py"),
        "no size 'minni'": arguments(store, work, recipe="bert.py:minni"),
        "position table": arguments(store, work, recipe="bert.py:tiny,length=64"),
        "vocab_size is 50": arguments(store, work, model__vocab_size=50),
        "multiple of": arguments(store, work, accumulate=3),
        "needs data.view='pairs'": arguments(
            store, work, recipe="bert.py:tiny,length=32,view=packed", objective__pairs="nsp"
        ),
        "data.order='sop', not 'pairs' and 'nsp'": arguments(store, work, objective__pairs="sop"),
        "expected at least 50": arguments(store, work, objective__rate=0.02),
        "optimizer.name='sgdd'": arguments(store, work, optimizer__name="sgdd"),
        "schedule.name='cosine'": arguments(store, work, schedule__name="cosine"),
        "--workdir is required": [f"--config={'bert.py:tiny'}"],
    }
    for expected, argv in cases.items():
        assert expected in refused(capsys, argv), expected
        assert not (work / "checkpoints").exists() and not (work / "config.json").exists()


def test_a_workdir_of_another_config_is_refused(store, straight, capsys):
    line = refused(capsys, arguments(store, straight, seed=7))
    assert "seed: 0 there, 7 now" in line


def test_two_runs_in_one_workdir_are_refused(store, tmp_path, capsys):
    with train.lock_workdir(tmp_path):
        assert "another run is using" in refused(capsys, arguments(store, tmp_path))


def test_a_single_document_cannot_train_nsp(tmp_path, capsys):
    corpus = tmp_path / "one.txt"
    corpus.write_text("the bank by the river .\n" * 50)
    command = f"prepare --input {corpus} --tokenizer {tmp_path}/tok --train-tokenizer wordpiece "
    command += f"--vocab-size 60 --sentences line --output {tmp_path}/store"
    assert main(command.split()) == 0
    line = refused(capsys, arguments(tmp_path / "store", tmp_path / "work", data__heldout=0.0))
    assert "document" in line


def test_without_held_out_text_nothing_is_said_of_it(store, tmp_path):
    changes = {"data__heldout": 0.0, "steps": 4, "eval__every": 2, "progress": True}
    said = trained(arguments(store, tmp_path, **changes)).splitlines()
    assert any(line.startswith("4 steps of ") for line in said)
    assert not [line for line in said if line.startswith("step ")]


@pytest.mark.parametrize("long", [-1.0, 1e9])
def test_a_long_step_ends_before_another_starts(store, tmp_path, monkeypatch, long):
    """On a CPU two of them would need the memory of both."""
    order, put, add = [], partition.put_batch, Meter.add
    monkeypatch.setattr(forecast, "LONG", long)
    monkeypatch.setattr(partition, "put_batch", lambda *args: order.append("start") or put(*args))
    monkeypatch.setattr(Meter, "add", lambda self, *args: order.append("end") or add(self, *args))
    argv = arguments(store, tmp_path, data__heldout=0.0, steps=6, checkpoint__every=6)
    assert main(["train", *argv]) == 0
    one_by_one = ["start", "end"] * 6
    assert order == one_by_one if long < 0 else order[:4] == one_by_one[:4] and order != one_by_one


def test_evaluate_measures_what_training_measured(straight, capsys):
    assert main(["evaluate", "--workdir", str(straight)]) == 0
    found = json.loads((straight / "evaluation.json").read_text())
    last = logged(straight)[-1]
    for name, value in found.items():
        if name != "step":
            np.testing.assert_allclose(last[f"eval/{name}"], value, rtol=1e-5)
    with pytest.raises(FirthError, match="no checkpoint 3 under"):
        Checkpoints(straight).restore_params(3)


def test_evaluate_takes_another_store_and_more_of_it(store, straight, capsys):
    """Held out is a fifth of the documents, of which training measured two batches."""
    capsys.readouterr()
    found = []
    for changes in (["--config.eval.batches=1000"], [f"--config.data.heldout_store={store}"]):
        assert main(["evaluate", "--workdir", str(straight), *changes]) == 0
        assert changes[0].partition("=")[2] in capsys.readouterr().out
        found.append(json.loads((straight / "evaluation.json").read_text()))
    assert found[0]["eval.batches"] == 1000 and found[1]["data.heldout_store"] == str(store)
    assert (
        len(
            {logged(straight)[-1]["eval/heldout/mlm_loss"]}
            | {one["heldout/mlm_loss"] for one in found}
        )
        == 3
    )
    for changes, words in (
        ("--config.eval.batches=many", "expected a value like 2"),
        ("--config.steps=3", "a run is not measured by 'steps'"),
        ("--best", "there is no option --best"),
    ):
        assert main(["evaluate", "--workdir", str(straight), changes]) == 2
        assert words in capsys.readouterr().err


def test_a_run_goes_on_from_another_runs_checkpoint(store, straight, tmp_path, capsys):
    """`resume` takes the whole state: at the last step of the other run nothing is left to do."""
    assert main(["train", *map(str, arguments(store, tmp_path, resume=straight))]) == 0
    assert not (tmp_path / "checkpoints" / str(TINY["steps"])).exists()
    measured = logged(tmp_path)[-1]
    for name, value in logged(straight)[-1].items():
        np.testing.assert_allclose(measured[name], value, rtol=1e-4)
    line = refused(capsys, arguments(store, tmp_path / "other", resume=tmp_path / "nowhere"))
    assert "no checkpoint there" in line and not (tmp_path / "nowhere").exists()
