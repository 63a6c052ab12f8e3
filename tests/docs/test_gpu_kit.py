"""The kit of experiments/gpu: what it measures next, what it keeps, and every stage on a CPU."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.cases import nightly

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

    def measure(stage, cell, *_):
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
    def measure(stage, cell, *_):
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


def run(*arguments, env=None):
    """The kit's command."""
    command = [sys.executable, KIT / "run.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env)


def write_data(folder: Path) -> list:
    """A small text and a small CoLA, and the flags that name them."""
    words = ["the", "a", "vase", "broke", "man", "house", "old", "ran", "sat", "at", "her", "of"]

    def sentence(i):
        return " ".join(words[(i * k + k * k) % len(words)] for k in range(3, 9))

    (folder / "CoLA").mkdir()
    documents = ["\n".join(f"{sentence(6 * i + j)} ." for j in range(6)) for i in range(120)]
    (folder / "corpus.txt").write_text("\n\n".join(documents))
    for split, count in (("train", 24), ("dev", 8)):
        lines = [f"x\t{int(i % 3 > 0)}\t\t{sentence(i)}\n" for i in range(count)]
        (folder / "CoLA" / f"{split}.tsv").write_text("".join(lines))
    (folder / "CoLA" / "test.tsv").write_text(f"index\tsentence\n0\t{sentence(0)}\n")
    return ["--corpus", folder / "corpus.txt", "--glue", folder]


STAGES = ("attention", "steps", "families", "inference", "pretrain")


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """(the folder of a run with --tiny, the flags of it)."""
    folder = tmp_path_factory.mktemp("kit")
    return folder, ["--out", folder, "--tiny", *write_data(folder)]


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [STAGES[0], *(nightly(name) for name in STAGES[1:])])
def test_a_stage_runs_on_a_cpu(tried, stage):
    folder, flags = tried
    done = run(*flags, "--stage", stage)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row for row in rows_of(folder) if row["stage"] == stage]
    assert rows
    without = [row for row in rows if "skipped" in row]
    assert all("no NVIDIA GPU" in row["skipped"] for row in without)
    assert all("cudnn" in (row.get("way") or row["side"]) for row in without)
    figures = ("both_ms", "step_ms", "tflops", "texts_s", "tokens_s", "compile_s", "tokens")
    for row in rows:
        known = any(row.get(name, 0) > 0 for name in (*figures, "steps"))
        assert row in without or known or row["part"] in ("majority", "tune")
    if stage == "pretrain":
        assert rows[1]["steps"] == rows[1]["of"] == 8 and rows[1]["heldout"]["mlm_loss"] > 0
        assert rows[2]["dev"]["accuracy"] == 0.625  # 5 of 8 are acceptable, as most of train are
        assert [row["weights"] for row in rows if "mean" in row] == ["pretrained", "random"]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_second_command_finds_all_stages_done(tried):
    folder, flags = tried
    assert run(*flags).returncode == 0
    before = rows_of(folder)
    again = run(*flags)
    assert again.returncode == 0 and "{" not in again.stdout.partition("\n")[2]
    assert rows_of(folder) == before and {row["stage"] for row in before} == set(STAGES)
    shown = subprocess.run([sys.executable, KIT / "table.py", folder], capture_output=True)
    assert shown.returncode == 0 and "bert.py:tiny, random" in shown.stdout.decode()


def test_a_stage_without_its_data_is_skipped_with_the_reason(tmp_path):
    stage = load("pretrain_stage")
    lacking = SimpleNamespace(corpus=[tmp_path / "text"], glue=tmp_path)
    said = f"no {tmp_path / 'text'}; give --corpus FILE ... and --glue DIR"
    assert stage.lacks(lacking) == said
    (tmp_path / "text").touch()
    assert stage.lacks(lacking) == ""


def test_a_run_ends_after_its_minutes_in_however_many_stages(tmp_path, monkeypatch):
    stage, clock, limits = load("pretrain_stage"), [0.0], []
    monkeypatch.setattr(stage.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(stage, "GPU", {})
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"steps": 12000}')
    told = '{"step": 700, "heldout/mlm_loss": 3.5}'
    monkeypatch.setattr(stage.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=told))

    def firth(args, *argv, limit):
        limits.append(limit)
        clock[0] += min(limit, 500.0)  # a stage of 500 seconds

    monkeypatch.setattr(stage, "firth", firth)
    args = SimpleNamespace(work=tmp_path, pretrain_minutes=20.0, tiny=False)
    cell = {"part": "pretrain", "recipe": "bert.py:small"}
    assert stage.pretrain(cell, args) is None and stage.pretrain(cell, args) is None
    found = stage.pretrain(cell, args)
    assert limits == [1200.0, 700.0, 200.0]
    assert found == {"steps": 700, "of": 12000, "minutes": 20.0, "heldout": {"mlm_loss": 3.5}}


def test_what_goes_on_in_the_next_command_is_not_written(cells, tmp_path, monkeypatch):
    monkeypatch.setattr(cells.sys, "executable", "false")  # ends with 1
    assert cells.in_process("pretrain", {}, tmp_path, 9, True) == {
        "failed": "the process ended with 1"
    }
    script = tmp_path / "unfinished"
    script.write_text("#!/bin/sh\nexit 75\n")
    script.chmod(0o755)
    monkeypatch.setattr(cells.sys, "executable", str(script))
    with pytest.raises(cells.OutOfTimeError):
        cells.in_process("pretrain", {}, tmp_path, 9, True)


def step(side: str, ms: float, recipe="bert.py:base", length=512, rate=0.0, **fields) -> dict:
    row = {"device": "x", "recipe": recipe, "length": length, "rows": 128, "rate": rate}
    row |= {"side": side, "round": 0, "step_ms": ms, "gib": 1.0, "compile_s": 9.0}
    return row | {"tokens_s": 1000 * 128 * length / ms, "tflops": 40000 / ms} | fields


def test_the_table_says_which_goals_are_met(tmp_path, capsys, monkeypatch):
    table = load("table")
    rows = [
        {"device": "x", "product": [8192] * 3, "tflops": 800.0},
        *(step("firth cudnn", ms) for ms in (76.0, 80.0, 90.0)),
        step("firth plain", 160.0),
        step("torch sdpa", 100.0),
        step("torch eager", 200.0),
        step("firth plain", 160.0, rate=0.1),
        step("torch sdpa", 176.0, rate=0.1),
        step("firth plain", 8.0, "electra.py:small", 128),
        {"device": "x", "recipe": "bert.py:base", "side": "torch compile", "skipped": "no memory"},
        {"device": "x", "compile": "bert.py:base", "scan": True, "failed": "once"},
        {"device": "x", "compile": "bert.py:base", "scan": True, "trace_s": 1, "compile_s": 2}
        | {"cached_s": 0.5},
    ]
    steps = table.Steps(rows)
    verdicts = {line[0]: line[2:] for line in table.goals(steps)[1:]}
    base = "bert base, 512 tokens, dropout of attention "
    assert verdicts[base + "0"] == ["0.819 M tokens/s", "**met**"]
    assert verdicts[base + "0, best PyTorch"] == ["1.25 x", "**met**"]
    assert verdicts[base + "0.1"] == ["0.41 M tokens/s", "**not met**"]
    assert verdicts[base + "0.1, best PyTorch"] == ["1.1 x", "**not met**"]
    assert verdicts["ELECTRA-small, the paper's 1M steps of 128 x 128"] == ["2.22 h", "**met**"]
    assert verdicts["bert large, 512 tokens"] == ["", "not measured"]
    lines = {line[4]: line for line in steps.table()[1:5]}
    assert lines["firth cudnn"][7:9] == ["1.25 x", "62%"]  # 40 TFLOP in 80 ms, of 800 TFLOP/s
    assert lines["torch eager"][7:9] == ["0.50 x", "25%"]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "argv", ["table.py", str(tmp_path)])
    assert table.main() == 0
    shown = capsys.readouterr().out
    assert "| bert.py:base torch compile | no memory |" in shown
    assert "| bert.py:base | True |  | 1 | 2 | 0.5 |" in shown and "once" not in shown
    monkeypatch.setattr(sys, "argv", ["table.py", str(tmp_path / "none")])
    assert table.main() == 2
    assert "has no results" in capsys.readouterr().err


@pytest.mark.slow
def test_what_the_user_can_mend_ends_the_command(tmp_path):
    found = run("--out", tmp_path, env={"JAX_PLATFORMS": "cpu", "PATH": ""})
    assert found.returncode == 2 and not list(tmp_path.iterdir())
    assert found.stderr == "run.py: JAX sees no GPU but cpu; --tiny tries the stages on a CPU\n"
    assert run("--out", tmp_path, "--minutes", "0").returncode == 2
    assert run("--out", tmp_path, "--stage", "flight").returncode == 2
    assert run("--out", tmp_path, "--glue", tmp_path / "none").returncode == 2
    (tmp_path / "file").touch()
    assert run("--out", tmp_path / "file" / "x", "--tiny").returncode == 2
