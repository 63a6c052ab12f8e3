"""Curves: the right points in the right places, and a picture that harms no run."""

import logging
import sys

import numpy as np
import pytest
from helpers.workdirs import TASK, journal, make_workdir

from firth.cli import main
from firth.display import curves
from firth.display.curves import curves_of, draw, draw_workdir, figure, mean
from firth.display.runs import read_run
from firth.errors import FirthError

LOSSES = (5.0, 4.0, 3.0, 3.5)


@pytest.fixture
def run(tmp_path):
    return read_run(make_workdir(tmp_path / "run"))


@pytest.mark.parametrize("width", [1, 2, 3, 4, 9, 50])
def test_a_smooth_curve_is_a_mean_around_each_point(width):
    values = np.random.default_rng(0).normal(size=20)
    before, after = width // 2, (width - 1) // 2
    expected = [values[max(i - before, 0) : i + after + 1].mean() for i in range(20)]
    np.testing.assert_allclose(mean(values, width), expected, rtol=1e-12)


def test_the_series_of_a_metric():
    training, held_out = curves_of(journal(LOSSES), "mlm_loss", smooth=2)
    assert training.held_out == "" and held_out.held_out == "heldout"
    assert training.y.tolist() == [5.0, 4.5, 3.5, 3.25] and held_out.y.tolist() == [
        5.5,
        4.5,
        3.5,
        4.0,
    ]
    assert training.x.tolist() == held_out.x.tolist() == [10, 20, 30, 40]
    (one,) = curves_of(journal(LOSSES), "heldout/mlm_loss")
    assert one.tag == "eval/heldout/mlm_loss" and not curves_of(journal(LOSSES), "lm_loss")


def test_places_in_tokens_and_hours():
    """128 tokens a step; a tenth of a second a step after 30 s, not counting the time dead."""
    (tokens, _), (hours, _) = (
        curves_of(journal(LOSSES), "mlm_loss", x) for x in ("tokens", "hours")
    )
    np.testing.assert_allclose(tokens.x, [1280, 2560, 3840, 5120])
    np.testing.assert_allclose(hours.x * 3600, [31, 32, 33, 34])
    older = [{k: v for k, v in e.items() if "seconds" not in k} for e in journal(LOSSES)]
    np.testing.assert_allclose(curves_of(older, "mlm_loss", "hours")[0].x * 3600, [1, 2, 3, 4])
    with pytest.raises(FirthError, match="no speeds, which x=hours needs"):
        curves_of([{"step": 1, "train/loss": 1.0}], "loss", "hours")


def test_values_that_were_not_finite_are_left_out():
    entries = [{"step": 1, "train/loss": None}, {"step": 2, "train/loss": 2.0}]
    entries += [{"step": 3, "train/nonfinite_in": "loss"}]
    assert curves_of(entries, "loss")[0].x.tolist() == [2]


def lines(axes):
    return {line.get_linewidth(): line.get_ydata().tolist() for line in axes.lines}


def test_the_default_panels(tmp_path, run):
    (axes,) = figure([run]).axes
    assert lines(axes) == {1: list(LOSSES), 1.8: [x + 0.5 for x in LOSSES]}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "masked-LM loss (nats)")
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["training", "held out"]
    entries = [{"step": 5, "train/task_loss": 0.7}, {"step": 5, "eval/dev/accuracy": 0.5}]
    task = make_workdir(tmp_path / "t", fields=TASK, entries=entries, best="dev/accuracy")
    axes = figure([read_run(task)]).axes
    assert [a.get_ylabel() for a in axes] == ["task loss", "accuracy"]


def test_several_runs_are_told_by_what_differs(tmp_path, run):
    other = read_run(make_workdir(tmp_path / "other", fields={"schedule": {"lr": 0.5}}))
    drawn = figure([run, other], ["mlm_loss", "loss", "step_ms"])
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["lr=0.0001", "lr=0.5"]
    colours = [line.get_color() for line in drawn.axes[0].lines]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    assert len([axes for axes in drawn.axes if axes.get_visible()]) == 3


def test_many_runs_have_a_style_each(run):
    drawn = figure([run] * 30, ["loss"])
    styles = {(x.get_color(), x.get_linestyle()) for x in drawn.axes[0].lines[:28]}
    assert len(styles) == 28


@pytest.mark.parametrize(
    ("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")]
)
def test_the_ending_chooses_the_format(tmp_path, run, name, begins):
    output = tmp_path / name
    assert main(["plot", str(run.path), "--output", str(output)]) == 0
    assert output.read_bytes().startswith(begins)
    assert {path.name for path in tmp_path.iterdir()} == {"run", name}, "a file is left over"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["RUN", "--metric", "mlm_los"], "no metric 'mlm_los'; did you mean 'mlm_loss'?"),
        (["RUN", "--output", "a.jpg"], "--output a.jpg: expected a file that ends in .png"),
        (["RUN", "--output", "no/a.png"], "--output no/a.png"),
        (["nowhere"], "nowhere: no such folder"),
        (["."], "no run in .; name a workdir"),
        (["DAMAGED"], "config.json:1: not valid JSON"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(tmp_path, run, monkeypatch, capsys, argv, said):
    damaged = make_workdir(tmp_path / "damaged")
    (damaged / "config.json").write_text("{")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    named = {"RUN": str(run.path), "DAMAGED": str(damaged)}
    assert main(["plot", *(named.get(item, item) for item in argv)]) == 2
    error = capsys.readouterr().err
    assert said in error.replace("no journal has the metric", "no metric")
    assert error.count("\n") == 1 and not list((tmp_path / "empty").iterdir())


def test_a_picture_in_the_workdir(run):
    draw_workdir(run.path)
    assert (run.path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("wrong", ["matplotlib", "disk", "journal"])
def test_a_picture_that_cannot_be_drawn_fails_no_run(run, monkeypatch, caplog, wrong):
    if wrong == "matplotlib":
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    elif wrong == "journal":
        (run.path / "metrics.jsonl").unlink()
    else:
        (run.path / "curves.png").mkdir()  # root may write where others may not
    with caplog.at_level(logging.WARNING, "firth"):
        draw_workdir(run.path)
    (record,) = caplog.records
    assert record.message.startswith("no curves.png: ") and "\n" not in record.message


def test_a_file_is_replaced_as_a_whole(run, tmp_path, monkeypatch):
    output = tmp_path / "a.png"
    output.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(curves.os, "replace", fail)
    with pytest.raises(FirthError, match=r"a\.png cannot be written: No space left"):
        draw([run], output)
    assert output.read_text() == "old" and {p.name for p in tmp_path.iterdir()} == {"run", "a.png"}
