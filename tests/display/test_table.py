"""The table of runs: what differs between them, its order, and its forms."""

import csv
import io
import json
import re

import pytest
from helpers.workdirs import TASK, journal, make_workdir

from firth.cli import main
from firth.display import table
from firth.display.runs import find_runs
from firth.errors import FirthError


@pytest.fixture
def runs(tmp_path):
    """Two runs of bert.py:tiny with other rates, and one of bert.py:mini that sets its rate."""
    slow, fast = {"schedule": {"lr": 1e-4}}, {"schedule": {"lr": 1e-3}, "log_every": 7}
    wide = {"schedule": {"lr": 2e-4}, "model": {"family": "bert", "dropout": 0.2}}
    make_workdir(tmp_path / "slow", fields=slow)
    make_workdir(tmp_path / "fast", fields=fast, entries=journal((5.0, 2.0)), ended="failed: NaN")
    command = "firth train --config bert.py:mini --config.schedule.lr=2e-4"
    make_workdir(tmp_path / "wide", fields=wide, command=command, entries=[])
    return {run.path.name: run for run in find_runs([tmp_path])}


def test_what_differs(runs):
    """Neither what changes no result (log_every), nor what the recipe's arguments decide."""
    assert table.differing([runs["slow"], runs["fast"]]) == ["schedule.lr"]
    assert table.differing([runs["slow"], runs["wide"]]) == ["schedule.lr"]
    assert table.differing([runs["slow"]]) == []
    assert table.labels(list(runs.values())) == [
        "bert.py:tiny lr=0.001",
        "bert.py:tiny lr=0.0001",
        "bert.py:mini lr=0.0002",
    ]
    assert table.labels([runs["slow"], runs["fast"]]) == ["lr=0.0001", "lr=0.001"]
    assert table.labels([runs["slow"], runs["slow"]]) == [runs["slow"].name] * 2


def test_names_are_short_where_that_is_clear():
    names = ["schedule.lr", "data.length", "eval.length", "seed"]
    short = {"schedule.lr": "lr", "data.length": "data.length", "eval.length": "eval.length"}
    assert table.short_names(names) == short | {"seed": "seed"}


@pytest.mark.parametrize(
    ("field", "order"),
    [
        ("best", "fast slow wide"),  # wide has none: last, whichever way
        ("-best", "slow fast wide"),
        ("schedule.lr", "slow wide fast"),
        ("-lr", "fast wide slow"),
        ("steps", "fast slow wide"),
        ("recipe", "wide slow fast"),
        ("run", "fast slow wide"),
    ],
)
def test_order(runs, field, order):
    given = [runs["slow"], runs["wide"], runs["fast"]]
    assert [run.path.name for run in table.ordered(given, field)] == order.split()


def test_an_unknown_order_is_refused_with_the_nearest(runs):
    with pytest.raises(FirthError, match="--sort bset: no such field; did you mean 'best'"):
        table.ordered(list(runs.values()), "bset")


def test_json_and_csv_hold_the_same(runs, tmp_path, capsys):
    assert main(["runs", str(tmp_path), "--json", "--sort=run"]) == 0
    fast, slow, wide = json.loads(capsys.readouterr().out)
    assert (slow["step"], slow["best"], slow["unit"]) == (40, 3.5, "tokens/s")
    assert (fast["state"], fast["reason"]) == ("failed", "NaN")
    assert [run["differs"]["schedule.lr"] for run in (fast, slow, wide)] == [1e-3, 1e-4, 2e-4]
    assert main(["runs", str(tmp_path), "--csv", "--sort=run"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["schedule.lr"] for row in rows] == ["0.001", "0.0001", "0.0002"]
    assert rows[1]["run"] == str(tmp_path / "slow") and float(rows[1]["last"]) == 4.0
    assert main(["runs", str(tmp_path), "--csv", "--json"]) == 2


def test_plain_text_is_a_line_a_run_in_columns(runs):
    text = io.StringIO()
    table.show(list(runs.values()), text, now=runs["slow"].changed_at + 7260)
    head, *rows, reason = text.getvalue().splitlines()
    assert len(rows) == 3 and reason == f"failed: {runs['fast'].path}: NaN"
    assert {row.find("bert.py") for row in rows} == {head.find("recipe")}
    assert {row.find("lr=") for row in rows} == {head.find("differs")}
    for part in ("40/40", "1,280 tok/s", "finished", "2 h 1 min", " mlm_loss "):
        assert part in rows[1]
    assert "0/40" in rows[2]


def test_on_a_terminal_it_is_fitted_to_the_width(runs, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "120")
    text = Terminal()
    table.show(list(runs.values()), text)
    lines = re.sub(r"\x1b\[\d+m", "", text.getvalue()).splitlines()[:-1]
    assert len(lines) > 4 and max(map(len, lines)) <= 120 and "speed" in lines[0]
    monkeypatch.setenv("COLUMNS", "80")
    table.show(list(runs.values()), narrow := Terminal())
    lines = re.sub(r"\x1b\[\d+m", "", narrow.getvalue()).splitlines()[:-1]
    assert max(map(len, lines)) <= 80 and "speed" not in lines[0] and "best" in lines[0]


def test_seeds_have_a_spread(tmp_path):
    folder = tmp_path / "rte"
    entries = [{"step": 9, "eval/dev/accuracy": 0.7}]
    make_workdir(folder / "seed-0", fields=TASK, entries=entries, best="dev/accuracy")
    summary = {"dev/accuracy": {"mean": 0.7, "std": 0.0149}}
    (folder / "summary.json").write_text(json.dumps(summary))
    text = io.StringIO()
    table.show(find_runs([folder]), text)
    assert "0.7 ± 0.015" in text.getvalue() and "rte (1 seeds)" in text.getvalue()


def test_a_folder_without_runs_is_no_error(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert not out and f"no run in {tmp_path}" in err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (3599, "1 h"),
        (5400, "1 h 30 min"),
        (86400, "1 day"),
        (90000, "1 day 1 h"),
        (290 * 86400, "290 days"),
    ],
)
def test_durations_in_words(seconds, words):
    assert table.duration(seconds) == words
