"""The guard of experiments/speed: what it compares with, what it calls slower, and that it runs."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "speed"
KIND = {"cpu": "a", "cores": 2, "smallest": True}


@pytest.fixture
def guard(monkeypatch):
    """run.py as a module, on a machine of a known kind."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("speed_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "machine", lambda: {"cpu": "a", "cores": 2})
    monkeypatch.setattr(module.cases, "SMALLEST", {"steps": {}, "prepare": {}})
    return module


def call(guard, monkeypatch, path, measured, *flags) -> int:
    """The command's exit status, with these measurements in turn."""
    asked = iter(measured)
    monkeypatch.setattr(guard, "measure", lambda case, smallest: next(asked))
    monkeypatch.setattr(sys, "argv", ["run.py", "--smallest", f"--results={path}", *flags])
    return guard.main()


def seconds(ratio: float) -> dict:
    """Three rounds whose median is this ratio."""
    return {"bert": {"firth": [1.0, 2.0, 1.0], "other": [ratio, 2 * ratio, 9 * ratio]}}


SKIPPED = {"skipped": "no text"}


def test_what_is_recorded_is_compared(guard, monkeypatch, tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    assert call(guard, monkeypatch, path, [seconds(3.0), SKIPPED], "--record") == 0
    told = capsys.readouterr().out
    assert "nothing is recorded" in told and "prepare: skipped: no text" in told
    (row,) = map(json.loads, path.read_text().splitlines())
    assert (row["case"], row["name"], row["ratio"]) == ("steps", "bert", 3.0)
    assert KIND.items() <= row.items() and row["firth"] == [1.0, 2.0, 1.0]
    assert call(guard, monkeypatch, path, [seconds(2.71), SKIPPED]) == 0
    assert "ratio 2.71 (recorded 3, -10%)\n" in capsys.readouterr().out
    assert len(path.read_text().splitlines()) == 1  # only --record adds to it


def test_slower_is_measured_again_before_it_counts(guard, monkeypatch, tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    call(guard, monkeypatch, path, [seconds(9.0), SKIPPED], "--record")
    call(guard, monkeypatch, path, [seconds(3.0), seconds(3.0), SKIPPED], "--record")
    assert call(guard, monkeypatch, path, [seconds(2.6), seconds(2.8), SKIPPED]) == 0
    capsys.readouterr()
    assert call(guard, monkeypatch, path, [seconds(2.6), seconds(2.5), SKIPPED]) == 1
    told = capsys.readouterr().out
    assert "ratio 2.6 (recorded 3, -13%) SLOWER" in told and "slower: steps, bert" in told


def test_another_kind_of_machine_or_size_is_no_measure(guard, tmp_path):
    path = tmp_path / "results.jsonl"
    rows = [KIND | {"case": "steps", "name": "bert", "ratio": 3.0} | more for more in MORE]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert guard.recorded(path, KIND) == {("steps", "bert"): 2.0}
    assert guard.recorded(tmp_path / "none", KIND) == {}


MORE = [{"ratio": 2.0}, {"cores": 4}, {"cpu": "b"}, {"smallest": False}]


def test_a_case_that_fails_is_no_success(guard, monkeypatch, tmp_path, capsys):
    failed = {"failed": "KeyError: 'x'"}
    assert call(guard, monkeypatch, tmp_path / "r", [failed, SKIPPED]) == 1
    assert "steps: failed: KeyError: 'x'\n" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.nightly
def test_its_smallest_form_runs(tmp_path):
    path = tmp_path / "results.jsonl"
    command = [sys.executable, FOLDER / "run.py", "--smallest", "--record", f"--results={path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {"steps", "generation", "batches"} <= {row["case"] for row in rows}
    assert all(row["ratio"] > 0 and len(row["firth"]) == len(row["other"]) for row in rows)
