"""Whole runs fed by the real tf.data, against the same run fed by the thread."""

import json
import re
import shutil
import signal
import time

import pytest
from helpers.datasets import prepare, tfds
from helpers.runs import (
    BY_TF_DATA,
    TINY,
    arguments,
    assert_same_bytes,
    final_state,
    logged,
    start,
)

from firth.cli import main
from firth.run.stopping import TERMINATED

# Lines in which the compiler complains of a busy machine.
SLOW = re.compile(r"slow_operation_alarm|^\*+$|^\[Compiling module|^$")


def ended(process, timeout=600):
    _, errors = process.communicate(timeout=timeout)
    lines = [line for line in errors.splitlines() if not SLOW.search(line)]
    return process.returncode, "\n".join(lines)


KEEP = {"checkpoint__keep": 9}  # or a run says that it keeps more


@pytest.fixture(scope="session")
def by_thread(store, tmp_path_factory):
    """A workdir that was trained by the thread without interruption."""
    workdir = tmp_path_factory.mktemp("thread")
    assert ended(start(arguments(store, workdir, **KEEP))) == (0, "")
    return workdir


@pytest.mark.slow
def test_what_one_loader_began_the_other_ends(store, by_thread, tmp_path):
    """Half by tf.data up to SIGTERM, then by the thread; and its last steps by tf.data again."""
    argv = arguments(store, tmp_path / "work", data__loader="tf.data", **KEEP)
    process = start([tmp_path / "first", *argv], program=("-c", BY_TF_DATA))
    deadline = time.monotonic() + 200
    while not list((tmp_path / "work" / "seals").glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (TERMINATED, "")
    assert int((tmp_path / "first").read_text()) > 4
    assert not (tmp_path / "work" / "checkpoints" / str(TINY["steps"])).exists(), "over too soon"
    assert ended(start(arguments(store, tmp_path / "work", **KEEP))) == (0, "")
    assert_same_bytes(by_thread, tmp_path / "work")
    assert logged(by_thread) == logged(tmp_path / "work")

    shutil.copytree(by_thread, tmp_path / "copy")
    last = TINY["steps"]
    shutil.rmtree(tmp_path / "copy" / "checkpoints" / str(last))
    (tmp_path / "copy" / "seals" / f"{last}.json").unlink()
    argv = arguments(store, tmp_path / "copy", data__loader="tf.data", **KEEP)
    status, errors = ended(start([tmp_path / "second", *argv], program=("-c", BY_TF_DATA)))
    assert (status, errors) == (0, "") and int((tmp_path / "second").read_text()) >= 2
    assert_same_bytes(by_thread, tmp_path / "copy")
    assert logged(by_thread) == logged(tmp_path / "copy")


@pytest.mark.slow
def test_a_short_run_ends_well_and_says_nothing(store, tmp_path):
    """As users have it: "auto", with TensorFlow half imported when the run is over."""
    changes = dict(data__loader=None, steps=2, eval__every=2)
    assert ended(start(arguments(store, tmp_path, **changes))) == (0, "")
    assert "\ntensorflow: 2." in (tmp_path / "env.txt").read_text()
    assert (tmp_path / "checkpoints" / "2").exists()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_run_that_fails_early_ends_with_its_error_alone(store, tmp_path):
    changes = dict(data__loader=None, checkpoint__best="no/such", steps=3, eval__every=1)
    status, errors = ended(start(arguments(store, tmp_path, **changes)))
    assert status == 2 and len(errors.splitlines()) == 1 and "no/such" in errors


@pytest.mark.slow
def test_fine_tuning_on_a_dataset_of_tfds(by_thread, tmp_path, capsys):
    """Slices of its split, from the folder that data.dir names; labels by their names."""
    label = tfds.features.ClassLabel(names=["bad", "good"])
    features = {"text": tfds.features.Text(), "label": label}
    rows = [{"text": f"the film was {('bad', 'good')[n % 2]}", "label": n % 2} for n in range(64)]
    prepare(tmp_path, "MadeFilms", features, {"train": rows}, ("text", "label"))
    command = f"train --config=finetune.py:task=tfds:made_films,init={by_thread},length=16"
    command += f" --workdir={tmp_path}/tuned --config.data.dir={tmp_path} --config.batch_size=16"
    command += " --config.data.train=train[:75%] --config.data.dev=train[75%:] --config.epochs=2.0"
    command += " --config.progress=False"
    capsys.readouterr()
    assert main(command.split()) == 0
    assert json.loads((tmp_path / "tuned" / "model.json").read_text())["labels"] == ["bad", "good"]
    assert "eval/dev/accuracy" in logged(tmp_path / "tuned")[-1]
    assert final_state(tmp_path / "tuned", 6)["['step']"] == 6, "48 examples, 16 a batch, twice"
