"""What runs came to: read from their workdirs, summed up by cell, and drawn."""

import json
import statistics

import pytest

from firth.run.sweeping.grid import SweepRun
from firth.run.sweeping.outcome import cells, draw, is_finished, outcome, table

CONSTANT = 0.6


@pytest.fixture
def made(tmp_path):
    """made(lr, seed, accuracies, ...): a run as its workdir tells of it."""

    def make(lr, seed, accuracies, ended="finished", constant=CONSTANT):
        workdir = tmp_path / f"lr={lr}" / f"seed-{seed}"
        workdir.mkdir(parents=True)
        files = {
            "config.json": {"steps": 9, "checkpoint": {"best_mode": "max"}},
            "model.json": {"best": "dev/accuracy"},
            "goodput.json": {"ended": ended},
            "baselines.json": {"dev": {"accuracy": constant}},
        }
        for name, value in files.items():
            (workdir / name).write_text(json.dumps(value))
        entries = [
            {"step": step, "eval/dev/accuracy": value, "eval/dev/task_loss": 1 - value + step}
            for step, value in enumerate(accuracies)
        ]
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        (workdir / "metrics.jsonl").write_text(lines)
        return SweepRun({"lr": lr}, seed, workdir, ())

    return make


def test_a_run_is_told_by_its_best_evaluation(made):
    one = outcome(made(0.1, 0, [0.5, 0.9, 0.8]))
    assert (one.state, one.metric, one.best) == ("finished", "dev/accuracy", 0.9)
    assert one.measures == {"dev/accuracy": 0.9, "dev/task_loss": pytest.approx(1.1)}
    assert one.baseline == CONSTANT and not one.unstable and not one.lower
    other = outcome(made(0.1, 1, [0.5, 0.9, 0.8]), "dev/task_loss")
    assert other.lower and other.best == pytest.approx(0.5) and other.baseline is None


@pytest.mark.parametrize(
    "best, ended, unstable",
    [
        (0.6, "finished", True),
        (0.61, "finished", False),
        (0.2, "stopped", False),
        (0.9, "failed: out of memory", True),
    ],
)
def test_a_run_no_better_than_a_constant_answer_is_unstable(made, best, ended, unstable):
    assert outcome(made(0.1, 0, [best], ended)).unstable == unstable


def test_a_run_that_was_refused_says_why(tmp_path):
    run = SweepRun({}, 0, tmp_path / "seed-0", ())
    run.log.write_text("note: something\nfirth train: error: no such file\n\n")
    one = outcome(run)
    assert (one.state, one.best, one.unstable) == ("failed", None, True)
    assert one.reason == "firth train: error: no such file"
    assert not is_finished(run)


def test_cells_have_the_figures_of_their_runs_and_the_best_is_first(made):
    values = {0.1: [0.7, 0.75, 0.6], 0.2: [0.9, 0.7, 0.95], 0.3: [0.8]}
    found = [
        outcome(made(lr, seed, [value]))
        for lr, own in values.items()
        for seed, value in enumerate(own)
    ]
    first, second, third = cells(found)
    assert [cell["setting"]["lr"] for cell in (first, second, third)] == [0.2, 0.3, 0.1]
    assert first["mean"] == pytest.approx(statistics.mean(values[0.2]))
    assert first["sd"] == pytest.approx(statistics.stdev(values[0.2]))
    assert (first["median"], first["best"], first["runs"], first["unstable"]) == (0.9, 0.95, 3, 0)
    assert second["sd"] is None and third["unstable"] == 1
    text = table(found)
    assert "0.8500" in text.splitlines()[2] and "a constant answer has 0.6000" in text


def test_where_low_is_good_the_lowest_is_first(made):
    found = [outcome(made(lr, 0, [lr]), "dev/task_loss") for lr in (0.2, 0.8, 0.4)]
    assert [cell["setting"]["lr"] for cell in cells(found)] == [0.8, 0.4, 0.2]


def test_boxes_are_drawn(made, tmp_path):
    found = [outcome(made(lr, s, [lr + s / 10])) for lr in (0.1, 0.2) for s in range(3)]
    draw(found, tmp_path / "boxes.svg")
    text = (tmp_path / "boxes.svg").read_text()
    assert "<svg" in text and "lr=0.2" in text and "dev/accuracy" in text
