"""The kit of experiments/gpu: what it measures next, what it keeps, and every stage on a CPU."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

KIT = Path(__file__).parents[2] / "experiments" / "gpu"


def load(name: str):
    """A file of the kit as a module."""
    spec = importlib.util.spec_from_file_location(f"kit_{name}", KIT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cells():
    return load("cells")


def test_a_cell_is_measured_once_and_a_failed_one_again(cells, tmp_path, monkeypatch):
    wanted = [{"n": n, "device": "x"} for n in range(4)]
    cells.write(tmp_path, wanted[0] | {"ms": 1.0})
    cells.write(tmp_path, wanted[1] | {"skipped": "too little memory"})
    cells.write(tmp_path, wanted[2] | {"failed": "KeyError"})
    cells.write(tmp_path, wanted[3] | {"device": "another", "ms": 2.0})
    assert cells.remaining(wanted, cells.read(tmp_path)) == wanted[2:]
    asked = []

    def measure(stage, cell, out, seconds, tiny):
        asked.append(cell["n"])
        return {"failed": "again"} if cell["n"] == 2 else {"ms": 3.0}

    monkeypatch.setattr(cells, "in_process", measure)
    assert cells.run("steps", wanted, tmp_path, time.monotonic() + 99, True) == (0, 1)
    assert asked == [2, 3]
    assert cells.remaining(wanted, cells.read(tmp_path)) == [wanted[2]]


def test_a_half_written_line_is_dropped_and_the_next_is_whole(cells, tmp_path):
    (tmp_path / "results.jsonl").write_text('{"n": 1}\n{"n": 2, "m')
    cells.write(tmp_path, {"n": 3})
    assert cells.read(tmp_path) == [{"n": 1}, {"n": 3}]


def test_what_is_measured_is_kept_when_time_is_over(cells, tmp_path, monkeypatch, capsys):
    def measure(stage, cell, out, seconds, tiny):
        if cell["n"]:
            raise cells.OutOfTimeError
        return {"ms": 1.0}

    monkeypatch.setattr(cells, "in_process", measure)
    wanted = [{"n": n} for n in range(3)]
    assert cells.run("steps", wanted, tmp_path, time.monotonic() + 99, True) == (2, 0)
    assert "1 of 3 done, 2 left when time was over" in capsys.readouterr().out
    assert cells.run("steps", wanted, tmp_path, time.monotonic(), True) == (2, 0)
    assert len(cells.read(tmp_path)) == 1


@pytest.mark.parametrize(
    ("log", "status", "found"),
    [
        ("a\nRESOURCE_EXHAUSTED: Out of memory\nb", 1, {"skipped": "too little memory"}),
        ("", -9, {"skipped": "too little memory"}),
        ("Traceback\n  x\nKeyError: 'n'\n", 1, {"failed": "KeyError: 'n'"}),
        ("", 3, {"failed": "the process ended with 3"}),
    ],
)
def test_why_a_process_gave_nothing(cells, log, status, found):
    assert cells.reason(log, status) == found


def run(*arguments, **options):
    command = [sys.executable, KIT / "run.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.mark.slow
def test_every_stage_runs_on_a_cpu(tmp_path):
    done = run("--out", tmp_path, "--tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {row["stage"] for row in rows} == {"attention", "steps", "families"}
    without = [row for row in rows if "skipped" in row]
    assert all("no NVIDIA GPU" in row["skipped"] for row in without)
    assert all("cudnn" in (row.get("way") or row["side"]) for row in without)
    for row in rows:
        named = "both_ms", "step_ms", "tflops"
        assert row in without or any(row.get(name, 0) > 0 for name in named)
    again = run("--out", tmp_path, "--tiny")
    assert again.returncode == 0 and "{" not in again.stdout.partition("\n")[2]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == len(rows)


@pytest.mark.slow
def test_what_the_user_can_mend_ends_the_command(tmp_path):
    found = run("--out", tmp_path, env={"JAX_PLATFORMS": "cpu", "PATH": ""})
    assert found.returncode == 2 and not list(tmp_path.iterdir())
    assert found.stderr == "run.py: JAX sees no GPU but cpu; --tiny tries the stages on a CPU\n"
    assert run("--out", tmp_path, "--minutes", "0").returncode == 2
    assert run("--out", tmp_path, "--stage", "flight").returncode == 2
    (tmp_path / "file").touch()
    assert run("--out", tmp_path / "file" / "x", "--tiny").returncode == 2
