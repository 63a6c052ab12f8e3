"""The sections of a report: from journals, records, and what a model got wrong."""

import json

import numpy as np
import pytest
from helpers.workdirs import journal, make_workdir
from matplotlib.figure import Figure

from firth.display import report
from firth.display.published import Published
from firth.display.runs import find_runs, read_run
from firth.errors import FirthError
from firth.inference.judging.judged import Judged, Wrong, calibrate

PNG = b"\x89PNG"


@pytest.fixture
def run(tmp_path):
    return read_run(make_workdir(tmp_path / "run"))


def judged(**more):
    right = np.array([1.0, 1.0, 0.0, 1.0])
    given = dict(
        split="dev", source="dev.csv", examples=4, metrics={"accuracy": 0.75},
        words=np.array([1, 2, 12, 40]), score=right, labels=("bad", "good"),
        confusion=np.array([[1, 0], [1, 2]]), calibration=calibrate(right * 0.3 + 0.6, right > 0),
        by_label={"bad": {"precision": 0.5, "recall": 1.0, "f1": 0.67, "examples": 1}},
        worst=(Wrong({"text": "<b>so</b>"}, "good", "bad", "right: 10.0%"),), wrong=1,
    )  # fmt: skip
    return Judged(**(given | more))


def test_what_a_run_is_and_how_far_it_came(run, tmp_path):
    said = report.overview([run])
    for words in ("bert.py:tiny", "finished", ">40<", "masked-LM loss (nats)", ">3.5<", "tokens/s"):
        assert words in said
    (tmp_path / "run" / "metrics.jsonl").write_text("nothing\n")
    damaged = read_run(tmp_path / "run")
    assert "no line is an entry of a journal" in report.overview([damaged])


def test_several_runs_are_named_by_what_differs(tmp_path):
    for seed in (0, 1):
        make_workdir(tmp_path / f"r{seed}", fields={"seed": seed})
    runs = find_runs([tmp_path])
    said = report.overview(runs) + report.settings(runs)
    assert "seed=0" in said and "seed=1" in said and said.count("<td>differs</td>") == 1


def test_a_curve_for_each_metric_that_the_journal_has(run, tmp_path):
    said = report.curves([run])
    assert said.count("<svg") == 1  # the journal has neither rates nor norms
    entries = [entry | {"train/grad_norm": 1.0} for entry in journal()]
    more = read_run(make_workdir(tmp_path / "more", entries=entries))
    assert report.curves([more]).count("<svg") == 2
    assert "nothing is logged yet" in report.curves(
        [read_run(make_workdir(tmp_path / "n", entries=[]))]
    )


def test_where_the_seconds_went(run, tmp_path):
    said = report.time(run)
    assert "up to step 40" in said and ">start<" in said and ">30<" in said and "3,600" in said
    assert report.time(read_run(make_workdir(tmp_path / "n", entries=[]))) == ""


def test_settings_that_the_command_sets_come_first(tmp_path):
    command = "firth train --config=bert.py:tiny --config.schedule.lr=1e-4"
    run = read_run(make_workdir(tmp_path / "run", command=command))
    said = report.settings([run])
    assert said.index("schedule.lr") < said.index("batch_size") and "set by the command" in said
    assert said.count("set by the command") == 1 and "command: firth train" in said


def test_results_stand_beside_a_constant_answer(run):
    said = "".join(report.judged(judged(), {"accuracy": 0.5}))
    for words in (">0.75<", ">0.5<", "constant answer", "4 examples of dev (dev.csv)"):
        assert words in said
    assert (
        "&lt;b&gt;so&lt;/b&gt;" in said and "right: <b>good</b>" in said and "right: 10.0%" in said
    )
    assert "Expected calibration error 0.2250" in said  # three at .9 are right, one at .6 is not
    assert "The 1 worst of 1" in said and "constant" not in "".join(report.judged(judged(), {}))


def test_what_papers_report_stands_below():
    others = [Published("A", "f1", 0.886, "Who 2019"), Published("B", "", 0.9, "Else 2020")]
    said = "".join(report.judged(judged(), {}, others))
    assert "What others report on dev:" in said and said.count("2020") == 1
    for words in (">A<", ">0.886<", ">f1<", ">Who 2019<"):
        assert words in said
    assert "others" not in "".join(report.judged(judged(), {}))


def test_lengths_are_in_ten_equal_bins_with_their_scores():
    words = np.array([1, 4, 5, 40, 40])
    said = report._lengths(judged(words=words, score=np.array([0.0, 1.0, 1.0, 1.0, 0.0])))
    assert "1 to 4" in said and "5 to 8" in said and "37 to 40" in said and said.count("<tr>") == 4
    assert said.count(">0.5<") == 2  # of the first bin, and of the last
    assert "accuracy" in said
    assert "accuracy" not in report._lengths(judged(score=None))


def test_scores_are_drawn_and_no_error_is_said(run):
    scores = np.array([[1.0, 2.0], [2.0, 2.5]])
    said = "".join(
        report.judged(
            judged(scores=scores, confusion=None, calibration=None, score=None, worst=()), {}
        )
    )
    assert said.count("<svg") == 1 and "none: every example is right" in said
    assert "Confusion" not in said and "Calibration" not in said


def test_an_experiment_is_its_readme_and_its_records(tmp_path):
    Figure().savefig(tmp_path / "a.png")
    text = "# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    text += "[words](http://x.org) ![drawn](a.png) <b>h</b>\n"
    (tmp_path / "README.md").write_text(text)
    rows = [{"row": "a", "test": 1.5}, {"row": "b", "more": list(range(99))}]
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    said = "".join(report.experiment(tmp_path))
    assert "<h2>Title</h2>" in said and '<div class="wide"><table>' in said
    assert "x.org" not in said and "words" in said and "data:image/png;base64," in said
    assert "&lt;b&gt;h&lt;/b&gt;" in said
    assert "2 lines of results.jsonl" in said and ">1.5<" in said and "[0, 1, 2" in said
    assert "98]" not in said and said.count("...") == 1
    (tmp_path / "results.jsonl").write_text('{"a": 1}\n[2]\n')
    with pytest.raises(
        FirthError, match=r"results\.jsonl:2: expected a JSON object, found '\[2\]'"
    ):
        report.experiment(tmp_path)
    (tmp_path / "results.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(501)))
    assert "501 lines of results.jsonl, the first 500 here" in "".join(report.experiment(tmp_path))
    assert not report.is_experiment(tmp_path / "none")
    with pytest.raises(FirthError, match=r"holds no run of `firth train`, no README\.md"):
        report.experiment(tmp_path / "none")


def test_what_a_sweep_leaves(tmp_path):
    assert report.sweep(tmp_path) == ""
    (tmp_path / "sweep.md").write_text("| lr | mean |\n|---|---|\n| 1 | .5 |\n")
    (tmp_path / "sweep.png").write_bytes(PNG)
    said = report.sweep(tmp_path)
    assert "<td>.5</td>" in said and "data:image/png" in said


def test_seeds_have_their_mean_and_each_value(tmp_path):
    entry = {"mean": 0.8, "std": 0.1, "median": 0.75, "seeds": 2, "values": {"0": 0.7, "1": 0.9}}
    (tmp_path / "summary.json").write_text(json.dumps({"dev/accuracy": entry}))
    for seed in (0, 1):
        make_workdir(tmp_path / f"seed-{seed}", fields={"seed": seed})
    (whole,) = (run for run in find_runs([tmp_path]) if run.seeds)
    said = report.seeds([whole])
    assert ">0.8<" in said and ">0.1<" in said and "0.7, 0.9" in said and ">0.75<" in said
