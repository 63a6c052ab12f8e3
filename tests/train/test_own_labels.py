"""Fine-tuning on files of one's own: what is found, said, scored, and how a run goes on."""

import contextlib
import csv
import io
import json
import os
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.labelled import NAMES, make_labelled
from helpers.runs import assert_same_bytes, logged

from firth.cli import main
from firth.progress import Progress
from firth.run import ending
from firth.run.ending import say_length


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT in `init`, and train.csv (with duplicates) and test.csv."""
    return make_labelled(
        tmp_path_factory.mktemp("own"), ("id", "Text", "Label"), num_layers=1, train=70, test=12
    )


def train(folder, workdir, *more, status=0, epochs=1.0) -> str:
    """`firth train` at a constant rate; returns what it said."""
    argv = [
        f"--config=finetune.py:init={folder}/init,length=16",
        f"--workdir={workdir}",
        f"--config.data.train={folder}/train.csv",
        f"--config.data.test={folder}/test.csv",
        f"--config.epochs={epochs}",
        *("--config.batch_size=16", "--config.log_every=1", "--config.data.loader=thread"),
        *("--config.schedule.name=constant", "--config.schedule.warmup=0"),
        *more,
    ]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main(["train", *argv]) == status, said.getvalue()
    return said.getvalue()


@pytest.fixture(scope="module")
def first(folder, tmp_path_factory):
    """(workdir, what was said) of one epoch."""
    workdir = tmp_path_factory.mktemp("first")
    return workdir, train(folder, workdir)


def labels_of(path):
    with path.open() as file:
        return [row["Label"] for row in csv.DictReader(file)]


def test_a_report_has_the_errors_of_a_split(first, tmp_path, capsys):
    """The dev split that was split off train, and the test split."""
    workdir, _ = first
    for split, count in (("dev", 7), ("test", 12)):
        argv = ["report", str(workdir), "--split", split, "--output", str(tmp_path / "r.html")]
        assert main(argv) == 0
        page = (tmp_path / "r.html").read_text()
        assert f"{count} examples of {split}" in page and "constant answer" in page
        for title in ("Curves", "Confusion", "Calibration", "Lengths", "Errors", "Time"):
            assert f"<h2>{title}</h2>" in page, title
    assert main(["report", str(workdir), "--split", "nosuch"]) == 2
    assert "no labelled split 'nosuch'; it has train, dev, test" in capsys.readouterr().err


def test_nothing_but_the_file_is_named(folder, first):
    workdir, said = first
    labels = labels_of(folder / "train.csv")
    lines = [line for line in said.splitlines() if line.startswith(("train: ", "dev: ", "test: "))]
    sizes = {line.partition(":")[0]: int(line.split()[1]) for line in lines[:3]}
    assert sizes == {"train": 63, "dev": 7, "test": 12} and "split off train" in lines[1]
    most = max(NAMES, key=labels.count)
    share = labels_of(folder / "test.csv").count(most) / 12
    assert lines[4] == f"test: majority baseline (always {most!r}): accuracy {share:.4f}"
    assert json.loads((workdir / "baselines.json").read_text())["test"]["accuracy"] == share
    described = json.loads((workdir / "model.json").read_text())
    assert described["labels"] == sorted(NAMES) and not described["regression"]


def test_the_test_file_is_scored_at_the_end_by_the_best_checkpoint(folder, first, capsys):
    workdir, said = first
    rows = (workdir / "predictions" / "test.tsv").read_text().splitlines()[1:]
    predicted = [row.split("\t")[1] for row in rows]
    right = np.mean(
        [a == b for a, b in zip(predicted, labels_of(folder / "test.csv"), strict=True)]
    )
    assert set(predicted) <= set(NAMES)
    (scored,) = (line for line in logged(workdir) if "eval/test/accuracy" in line)
    assert scored["eval/test/accuracy"] == pytest.approx(right)
    assert f"test, best checkpoint (step 4): accuracy {right:.4f}; majority baseline" in said
    assert "dev, best checkpoint (step 4): accuracy" in said
    assert main(["evaluate", f"--workdir={workdir}"]) == 0
    found = json.loads((workdir / "evaluation.json").read_text())
    assert found["test/accuracy"] == pytest.approx(right) and "dev/accuracy" in found
    capsys.readouterr()


def content(workdir):
    names = ("metrics.jsonl", "goodput.json", "config.json", "env.txt", "model.json")
    files = {name: (workdir / name).read_bytes() for name in names}
    return files | {"events": sorted(path.name for path in workdir.glob("events.*"))}


def test_a_finished_run_started_again_says_one_line_and_changes_nothing(folder, first, caplog):
    caplog.set_level("INFO", "firth")
    workdir, _ = first
    before = content(workdir)
    assert train(folder, workdir) == ""
    assert content(workdir) == before
    (line,) = caplog.messages
    assert "has finished (epochs=1.0, step 4), so nothing is left to do" in line
    assert "--config.epochs goes on" in line


def test_more_epochs_go_on_to_what_they_would_have_been(folder, first, tmp_path):
    """At a constant rate the length of a run changes nothing but its length."""
    workdir = shutil.copytree(first[0], tmp_path / "longer")
    said = train(folder, workdir, epochs=2.0)
    assert "goes on after step 4 to 8 instead of 4" in said
    train(folder, tmp_path / "straight", epochs=2.0)
    assert_same_bytes(tmp_path / "straight", workdir, 8)
    steps = [
        [line["step"] for line in logged(run) if "train/loss" in line]
        for run in (workdir, tmp_path / "straight")
    ]
    assert steps[0] == steps[1] == list(range(1, 9))
    assert "goes on" not in train(folder, tmp_path / "straight", epochs=2.0)
    with contextlib.redirect_stderr(io.StringIO()):
        train(folder, workdir, epochs=1.0, status=2)


def test_a_run_that_died_at_its_end_measures_again(folder, first, tmp_path):
    workdir = shutil.copytree(first[0], tmp_path / "died")
    account = json.loads((workdir / "goodput.json").read_text())
    (workdir / "goodput.json").write_text(json.dumps(account | {"alive": 1.0}))
    (workdir / "predictions" / "test.tsv").unlink()
    assert "test, best checkpoint" in train(folder, workdir)
    assert (workdir / "predictions" / "test.tsv").exists()
    assert json.loads((workdir / "goodput.json").read_text())["alive"] is None


def test_sigterm_at_the_last_measurement_ends_at_once(folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ending, "conclude", lambda *_: os.kill(os.getpid(), signal.SIGTERM) or {})
        with pytest.raises(SystemExit) as ended:
            train(folder, tmp_path)
    assert ended.value.code == 143 and not (tmp_path / "predictions").exists()
    shown = []
    monkeypatch.setattr(Progress, "update", lambda self, step, text="": shown.append((step, text)))
    assert "test, best checkpoint" in train(folder, tmp_path)
    assert (4, "test: batch 1 of 1") in shown  # where a terminal shows a bar
    assert (tmp_path / "predictions" / "test.tsv").exists()


def test_seeds_are_summed_up_as_an_evaluation_of_each_measures_them(folder, tmp_path, capsys):
    """Here the least accuracy chooses, so the checkpoint is not the newest."""
    fields = ("seeds=0,1", "checkpoint.best_mode=min", "eval.every=2", "schedule.lr=1e-2")
    train(folder, tmp_path, *(f"--config.{field}" for field in fields), epochs=3.0)
    summary = json.loads((tmp_path / "summary.json").read_text())
    steps = []
    for seed in ("0", "1"):
        run = tmp_path / f"seed-{seed}"
        assert main(["evaluate", f"--workdir={run}"]) == 0
        found = json.loads((run / "evaluation.json").read_text())
        steps.append(found.pop("step"))
        assert found == {name: entry["values"][seed] for name, entry in summary.items()}
    assert min(steps) < 12
    assert "test/accuracy" in capsys.readouterr().out


def test_what_becomes_of_the_rate_is_said():
    """Warm-up over a tenth, then down to zero: after 100 of now 200 steps, 100 of 180 are left."""
    schedule = SimpleNamespace(name="xlnet_poly", lr=9e-5, warmup=0.1)
    config = SimpleNamespace(schedule=vars(schedule))
    said = []
    for before, saved in ((100, [50, 100]), (200, [100]), (100, [])):
        saves, bar = SimpleNamespace(steps=lambda s=saved: s), SimpleNamespace(say=said.append)
        say_length(config, saves, 100, SimpleNamespace(steps=200, stages=()), before, bar)
    assert len(said) == 1, "nothing changes, or another run's checkpoint: nothing to say"
    assert "goes on after step 100 to 200 instead of 100" in said[0]
    assert "the learning rate here is 5e-05 instead of 0" in said[0]


def test_no_file_and_no_task_says_what_to_give(folder, tmp_path, capsys):
    recipe = f"finetune.py:init={folder}/init,length=16"
    argv = ["train", f"--config={recipe}", f"--workdir={tmp_path}"]
    for more, said in (
        ([], "nothing to learn: give a labelled file, --config.data.train=FILE"),
        ([f"--config.data.train={folder}/tran.csv"], "tran.csv: no such file"),
        (["--config.data.task=sst-2"], "did you mean 'sst2'?"),
        (
            [f"--config.data.train={folder}/train.csv", "--config.data.dev_fraction=2"],
            "no dev split and data.dev_fraction=2; set data.dev",
        ),
        (
            [f"--config.data.train={folder}/train.csv", "--config.data.text=Txet"],
            "train.csv:1: no column 'Txet'; there are: 'Text', ",
        ),
    ):
        assert main([*argv, *more]) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "config.json").exists()
