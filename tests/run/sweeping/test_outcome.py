"""What runs came to: read from their workdirs, summed up by cell, and drawn."""

import json
import statistics

import pytest

from firth.errors import FirthError
from firth.recipe import read_recipe
from firth.run.sweeping.grid import SweepRun, make_runs
from firth.run.sweeping.outcome import cells, check_metric, draw, is_finished, outcome, table

CONSTANT = 0.6


@pytest.fixture
def made(tmp_path):
    """made(lr, seed, accuracies, ...): a run as its workdir tells of it."""

    def make(lr, seed, accuracies, ended="finished", constant=CONSTANT, mode="max"):
        workdir = tmp_path / f"lr={lr}" / f"seed-{seed}"
        workdir.mkdir(parents=True)
        files = {
            "config.json": {"steps": 9, "checkpoint": {"best_mode": mode}},
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
    "values, ended, unstable",
    [
        ([0.6], "finished", True),
        ([0.61], "finished", False),
        ([0.7, 0.6], "finished", True),
        ([0.5, 0.7], "finished", False),
        ([0.2], "stopped", False),
        ([0.9], "failed: out of memory", True),
    ],
)
def test_a_run_that_ends_no_better_than_a_constant_answer_is_unstable(
    made, values, ended, unstable
):
    assert outcome(made(0.1, 0, values, ended)).unstable == unstable


def test_a_metric_of_ones_own_may_be_an_error(made):
    """By `checkpoint.best_mode`, where its name does not say so."""
    one = outcome(made(0.1, 0, [0.9, 0.2, 0.3], constant=0.25, mode="min"))
    assert one.lower and one.best == 0.2 and one.unstable
    assert not outcome(made(0.1, 1, [0.9, 0.2, 0.3], constant=0.35, mode="min")).unstable


def test_a_metric_that_no_run_has(made, tmp_path):
    found = [outcome(made(0.1, seed, [0.5]), "dev/acuracy") for seed in range(2)]
    with pytest.raises(FirthError, match=r"dev/acuracy: no run has it; did you mean .*accuracy"):
        check_metric(found, "dev/acuracy")
    check_metric(found, "dev/accuracy")
    check_metric([outcome(SweepRun({}, 0, tmp_path / "none", ()), "any")], "any")


def test_a_finished_run_goes_on_or_is_another(tmp_path):
    """Not finished where more epochs are asked for; refused where its settings were others."""
    begun = ["--config.data.train=a.csv", "--config.epochs=3"]
    grid = "finetune.py", tmp_path, ["lr=5e-5"]
    (run,) = make_runs(*grid, begun)
    run.workdir.mkdir(parents=True)
    config = read_recipe("finetune.py", run.arguments[2:])
    (run.workdir / "config.json").write_text(json.dumps(config.to_dict()))
    (run.workdir / "goodput.json").write_text(json.dumps({"ended": "finished"}))
    assert is_finished(run)
    (longer,) = make_runs(*grid, [*begun[:1], "--config.epochs=30"])
    assert longer.workdir == run.workdir and not is_finished(longer)
    (other,) = make_runs(*grid, [*begun, "--config.batch_size=7"])
    with pytest.raises(FirthError, match=r"another config .*batch_size: 32 there, 7 now"):
        is_finished(other)


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
