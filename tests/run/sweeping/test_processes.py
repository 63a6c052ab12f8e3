"""Real sweeps: runs that end, one that fails, what is gone on with, and a stop."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.runs import arguments

from firth import cli
from firth.run.sweeping.processes import cores

LINES = "the cat sat on the mat\nthe dog ran\na cat ran to the dog\nthe dog sat\n"


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A store of a few words."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "text.txt").write_text(LINES)
    paths = [f"--input={folder}/text.txt", f"--tokenizer={folder}/tok", f"--output={folder}/store"]
    assert cli.main(["prepare", *paths, "--sentences=line", "--train-tokenizer=word"]) == 0
    return folder / "store"


def read(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_a_sweep_ends_with_its_results_and_goes_on_where_a_run_failed(words, tmp_path, capsys):
    folder = tmp_path / "sweep"
    fields = [f"--config.data.{name}={words}" for name in ("store", "heldout_store")]
    argv = ["sweep", "--config=ngram.py:2", f"--workdir={folder}", "--jobs=2", *fields]
    argv.append("smoothing=mle,kneser_ney,add_k")
    assert cli.main(argv) == 2
    said = capsys.readouterr()
    assert "1 of 3 runs have not finished: 1 of them failed" in said.err
    assert "smoothing=kneser_ney/seed-0 failed" in said.out and "discount_fallback" in said.out
    states = {one["setting"]["smoothing"]: one["state"] for one in read(folder)}
    assert states == {"mle": "finished", "kneser_ney": "failed", "add_k": "finished"}
    table = (folder / "sweep.md").read_text()
    assert [row.split()[1] for row in table.splitlines()[2:5]] == ["mle", "add_k", "kneser_ney"]
    assert (folder / "sweep.png").exists()
    before = (folder / "smoothing=mle" / "seed-0.log").stat().st_mtime_ns
    argv[-1] = "smoothing=mle,add_k"
    assert cli.main(argv) == 0
    assert (folder / "smoothing=mle" / "seed-0.log").stat().st_mtime_ns == before
    assert len(read(folder)) == 2


def test_cores_are_shared_out():
    own = os.sched_getaffinity(0)
    assert set().union(*(cores(slot, 2) for slot in range(2))) == own
    assert cores(0, 1) == own
    if len(own) > 1:
        assert not cores(0, 2) & cores(1, 2)
    assert all(len(cores(slot, 99)) == 1 for slot in range(99))


@pytest.mark.slow
def test_a_stopped_sweep_saves_and_goes_on(store, tmp_path):
    folder = tmp_path / "sweep"
    fields = arguments(store, folder, **{"schedule.lr": None})
    fields = [item for item in fields if item.startswith("--config.") and ".seed=" not in item]
    command = [sys.executable, "-m", "firth", "sweep", "--config=bert.py:tiny,length=32"]
    command += [f"--workdir={folder}", "lr=1e-3", "seeds=2", *fields]
    process = subprocess.Popen(command)
    journal = folder / "lr=0.001" / "seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if journal.exists() and journal.read_text():
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 2
    assert list((folder / "lr=0.001" / "seed-0" / "checkpoints").glob("[0-9]*"))
    assert not (folder / "lr=0.001" / "seed-1").exists()
    assert subprocess.run(command, timeout=600).returncode == 0
    assert [one["state"] for one in read(folder)] == ["finished"] * 2
