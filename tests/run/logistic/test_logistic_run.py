"""`firth train --config logistic.py`, and what `predict` and `evaluate` read of it."""

import csv
import json
import logging

import numpy as np
import pytest

from firth import cli, recipe
from firth.errors import FirthError
from firth.inference.predictions.linear import LinearClassifier
from firth.inference.predictions.load import load_classifier
from firth.inference.predictions.reading import Reading
from firth.models.logistic import files
from firth.run.evaluator import evaluate
from firth.run.logistic.training import train
from firth.training.journal import read_journal
from firth.weights.read import read_model

GOOD, BAD = ["fine", "great", "lovely", "moving"], ["awful", "dull", "flat", "stupid"]
OTHER = ["the", "film", "plot", "actors", "music", "end", "is", "and", "was", "a"]


def write(path, count, seed, flipped=0):
    """A table whose label is in one of ten words; of `flipped` rows it is the wrong one."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for i in range(count):
            label = int(rng.integers(2))
            words = [*rng.choice(OTHER, 9), rng.choice((BAD, GOOD)[label])]
            named = ("neg", "pos")[label != (i < flipped)]
            writer.writerow([" ".join(rng.permutation(words)), named])
    return path


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The folder of train.csv, dev.csv and test.csv."""
    folder = tmp_path_factory.mktemp("tables")
    write(folder / "train.csv", 120, 0, flipped=12)
    write(folder / "dev.csv", 60, 1)
    write(folder / "test.csv", 40, 2, flipped=8)
    return folder


def config(tables, *changes, splits=("train", "dev", "test"), arg=""):
    fields = [f"--config.data.{name}={tables / name}.csv" for name in splits]
    return recipe.read_recipe(f"logistic.py:{arg}", [*fields, *changes])


@pytest.fixture(scope="module")
def run(tables):
    """(workdir, what training returned)."""
    workdir = tables / "run"
    return workdir, train(config(tables), workdir)


def test_training_measures_dev_and_test(run, tables, capsys):
    workdir, metrics = run
    assert metrics.keys() == {
        f"{split}/{name}" for split in ("dev", "test") for name in ("accuracy", "task_loss")
    }
    assert metrics["dev/accuracy"] > 0.9 and 0.7 < metrics["test/accuracy"] <= 0.8
    assert evaluate(workdir) == metrics
    assert json.loads((workdir / "evaluation.json").read_text()) == metrics
    argv = ["evaluate", "--model", str(workdir), "--data", str(tables / "test.csv"), "--json"]
    assert cli.main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"]["accuracy"] == metrics["test/accuracy"]
    assert read_journal(workdir)[-1]["eval/test/accuracy"] == metrics["test/accuracy"]


def test_the_loss_is_that_of_the_labels(run, tables):
    workdir, metrics = run
    model = files.load(workdir)
    with (tables / "test.csv").open() as file:
        rows = list(csv.DictReader(file))
    probabilities_NC = model.probabilities([(row["text"],) for row in rows])
    right = [
        p[model.labels.index(row["label"])] for p, row in zip(probabilities_NC, rows, strict=True)
    ]
    assert metrics["test/task_loss"] == pytest.approx(-np.log(right).mean(), rel=1e-9)


def test_the_summary(run):
    workdir, metrics = run
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["metrics"] == metrics
    assert summary["baselines"]["test"]["metrics"]["accuracy"] < 0.7
    constant = json.loads((workdir / "baselines.json").read_text())
    assert constant == {name: one["metrics"] for name, one in summary["baselines"].items()}
    assert summary["grid"].keys() == {"0.1", "0.3", "1", "3", "10", "30"}
    assert summary["grid"][f"{summary['l2']:g}"] == max(summary["grid"].values())
    assert max(summary["grid"].values()) == metrics["dev/accuracy"]
    assert {f"word:{word}" for word in BAD} & set(summary["heaviest"]["neg"])
    assert {f"word:{word}" for word in GOOD} & set(summary["heaviest"]["pos"])
    assert summary["features"] == len(files.load(workdir).names)


def test_predictions_of_test_and_of_new_texts(run, tables, tmp_path):
    workdir, _ = run
    output = tmp_path / "o.csv"
    argv = ["--model", str(workdir), "--input", str(tables / "test.csv"), "--output", str(output)]
    assert cli.main(["predict", *argv]) == 0
    with output.open() as file:
        rows = list(csv.DictReader(file))
    written = (workdir / "predictions" / "test.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[1] for line in written] == [row["predicted_label"] for row in rows]
    expected_NC = files.load(workdir).probabilities([(row["text"],) for row in rows])
    found_NC = [[float(row["p_neg"]), float(row["p_pos"])] for row in rows]
    np.testing.assert_allclose(found_NC, expected_NC, atol=1e-6)


def test_of_equal_strengths_the_strongest(tables, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "firth"):
        train(config(tables, "--config.l2=(1e-3,2e-3,1e6)"), tmp_path / "w")
    summary = json.loads((tmp_path / "w" / "summary.json").read_text())
    assert summary["grid"]["0.001"] == summary["grid"]["0.002"] > summary["grid"]["1e+06"]
    assert summary["l2"] == 2e-3
    assert "heaviest of 'neg': word:" in caplog.text
    assert "majority baseline (always 'pos')" in caplog.text or "(always 'neg')" in caplog.text
    assert "at the end of the grid" not in caplog.text


def test_the_end_of_the_grid_is_said(tables, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "firth"):
        train(config(tables, "--config.l2=(1.0,1e6)"), tmp_path / "w")
    assert "l2=1 is at the end of the grid" in caplog.text


def test_a_dev_split_of_train_is_that_of_fine_tuning(tables, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "firth"):
        metrics = train(config(tables, splits=("train",), arg="weighting=tfidf"), tmp_path / "w")
    assert metrics.keys() == {"dev/accuracy", "dev/task_loss"}
    assert "dev: 12 examples, split off train" in caplog.text and "truncated" not in caplog.text
    assert files.load(tmp_path / "w").weighting == "tfidf"


def test_the_same_command_changes_nothing_and_another_is_refused(run, tables):
    workdir, metrics = run
    before = {path: path.stat().st_mtime_ns for path in workdir.glob("*.safetensors")}
    assert train(config(tables), workdir) == metrics
    assert {path: path.stat().st_mtime_ns for path in workdir.glob("*.safetensors")} == before
    with pytest.raises(FirthError, match=r"holds a run of another config \(model\.order"):
        train(config(tables, arg="order=3"), workdir)


def test_pairs(tmp_path):
    lines = ["premise,hypothesis,label"]
    lines += [f"a {a} film,one {b} film,{a == b}" for a in GOOD for b in GOOD for _ in range(3)]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    fields = [f"--config.data.{name}={tmp_path}/train.csv" for name in ("train", "dev")]
    train(recipe.read_recipe("logistic.py:order=1", fields), tmp_path / "w")
    model = LinearClassifier(tmp_path / "w")
    assert "both word:great" in model.model.names and model.model.texts == 2
    pairs = [("a great film", "one great film"), ("a great film", "one dull film")]
    outputs_NC, cut = model(pairs, Reading())
    assert outputs_NC.argmax(1).tolist() == [model.labels.index(n) for n in ("True", "False")]
    assert cut == 0
    with pytest.raises(FirthError, match=r"text 0 is a single text, but .* on pairs of texts"):
        model(["one"], Reading())


def test_what_the_classifier_refuses(run):
    model = LinearClassifier(run[0])
    for texts, reading, message in (
        ([("a", "b")], Reading(), "text 0 is a pair, but .* was trained on single texts"),
        ([3], Reading(), "text 0 is 3, expected a string or two of them"),
        ([], Reading(), "there are no texts"),
        (["a"], Reading(max_length=9), "has no max_length; leave it out"),
        (["a"], Reading(long="average"), "has no long; leave it out"),
    ):
        with pytest.raises(FirthError, match=message):
            model(texts, reading)
    with pytest.raises(FirthError, match="it has no dtype; leave it out"):
        load_classifier(str(run[0]), "bfloat16")


def test_a_digest_of_the_weights(run, tables, tmp_path):
    train(config(tables, "--config.l2=(7.0,)"), tmp_path / "w")
    digests = {LinearClassifier(folder).digest() for folder in (run[0], run[0], tmp_path / "w")}
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--config.l2=()"], "expected at least one strength, each above 0"),
        (["--config.l2=(0.0,)"], "expected at least one strength, each above 0"),
        (["--config.model.min_texts=0"], "model.min_texts=0: expected 1 or more"),
        (["--config.model.min_texts=999"], "no feature occurs in 999 texts"),
        (["--config.iterations=0"], "iterations=0: expected 1 or more"),
        (["--config.heaviest=-1"], "heaviest=-1: expected 0 or more"),
        (["--config.data.kind=regression"], "is not a finite number|gives labels; use finetune.py"),
    ],
)
def test_bad_fields_leave_nothing(tables, tmp_path, changes, message):
    with pytest.raises(FirthError, match=message):
        train(config(tables, *changes), tmp_path / "w")
    assert not (tmp_path / "w").exists()


def test_a_failure_while_saving_leaves_no_model(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "write_text", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        train(config(tables), tmp_path / "w")
    assert not files.is_logistic(tmp_path / "w")
    assert not list((tmp_path / "w").glob(".logistic*"))


def test_what_other_commands_say(run):
    with pytest.raises(FirthError, match="holds a logistic regression, which has no layers"):
        read_model(run[0])
    with pytest.raises(FirthError, match="which has no steps and no fields"):
        evaluate(run[0], step=3)
