"""Whole runs on texts of several labels: trained, measured, predicted, converted, gone on."""

import contextlib
import csv
import io
import json
import shutil

import numpy as np
import pytest
from helpers.labelled import WORDS
from helpers.published.bert import add_tokenizer, make_bert
from sklearn.metrics import accuracy_score, f1_score

import firth
from firth.cli import main
from firth.inference.predictions.classifier import Prediction

ANIMALS = ("cat", "dog", "fish")  # a text has as labels those that it names


def make_rows(count, seed):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(2, 7))) for _ in range(count)]
    return [{"text": t, "labels": [a for a in ANIMALS if a in t.split()]} for t in texts]


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows[0])
        writer.writerows((row["text"], "|".join(row["labels"])) for row in rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT in `init`; train.jsonl and test.csv with several labels a text."""
    folder = tmp_path_factory.mktemp("several")
    sizes = dict(vocab_size=72, num_hidden_layers=1)
    make_bert(folder / "init", "BertForPreTraining", **sizes)
    add_tokenizer(folder / "init")
    write(folder / "train.jsonl", make_rows(240, 0))
    write(folder / "test.csv", make_rows(40, 1))
    return folder


def command(folder, workdir, *more):
    return [
        *("train", f"--config=finetune.py:init={folder}/init,length=16", f"--workdir={workdir}"),
        *(f"--config.data.train={folder}/train.jsonl", f"--config.data.test={folder}/test.csv"),
        *("--config.batch_size=16", "--config.epochs=20.0", "--config.eval.epochs=5.0"),
        *("--config.schedule.lr=3e-3", "--config.eval.batch_size=8", "--config.data.loader=thread"),
        *("--config.model.dropout=0.0", "--config.curves=False", *more),
    ]


@pytest.fixture(scope="module")
def ended(folder, tmp_path_factory):
    """(workdir, what was said) of a run."""
    workdir = tmp_path_factory.mktemp("ended")
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main(command(folder, workdir)) == 0, said.getvalue()
    return workdir, said.getvalue()


def error_of(capsys, argv):
    assert main([str(one) for one in argv]) == 2
    return capsys.readouterr().err


def indicators(lists):
    return np.array([[animal in one for animal in ANIMALS] for one in lists]).astype(int)


def test_the_run_learns_and_says_how_a_constant_answer_does(folder, ended):
    workdir, said = ended
    assert "multilabel of 'text' by 'labels'" in said and "labels a text" in said
    constant = json.loads((workdir / "baselines.json").read_text())["test"]
    line = next(line for line in said.splitlines() if line.startswith("test, best checkpoint"))
    assert f"constant baseline (always 'cat|dog|fish'): f1 micro {constant['f1_micro']:.4f}" in line
    lines = (workdir / "predictions" / "test.tsv").read_text().splitlines()[1:]
    predicted = indicators([line.split("\t")[1].split("|") for line in lines])
    gold = indicators([row["labels"] for row in make_rows(40, 1)])
    found = f1_score(gold, predicted, average="micro")
    assert found > constant["f1_micro"] + 0.2
    assert f"f1 micro {found:.4f}" in line
    assert f"exact match {accuracy_score(gold, predicted):.4f}" in line
    described = json.loads((workdir / "model.json").read_text())
    assert described["multilabel"] and described["labels"] == list(ANIMALS)


def test_packed_rows_train_and_predict_as_well(folder, ended, tmp_path, capsys):
    """Several labels of each of several texts of a row: as good, and measured alike unpacked."""
    assert main(command(folder, tmp_path, "--config.data.packed=True")) == 0
    capsys.readouterr()
    argv = ["evaluate", f"--model={tmp_path}", f"--data={folder}/test.csv", "--json"]
    found = []
    for more in ((), ("--packed",)):
        assert main([*argv, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    constant = json.loads((ended[0] / "baselines.json").read_text())["test"]
    assert found[0]["metrics"]["f1_micro"] > constant["f1_micro"] + 0.2


def test_predict_writes_the_labels_from_the_threshold_on(folder, ended, tmp_path, capsys):
    workdir, _ = ended
    argv = ["predict", "--model", str(workdir), "--input", str(folder / "test.csv")]
    texts = [row["text"] for row in make_rows(40, 1)]
    for threshold in (None, 0.05):
        more = [] if threshold is None else [f"--threshold={threshold}"]
        output = tmp_path / f"{threshold}.jsonl"
        assert main([*argv, "--output", str(output), *more]) == 0
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        for row in rows:
            p = row["probabilities"]
            assert row["predicted_labels"] == [x for x in p if p[x] >= (threshold or 0.5)]
        said = firth.load(workdir).predict(texts, threshold=threshold)
        assert [sorted(one.labels) for one in said] == [row["predicted_labels"] for row in rows]
        assert said[0].label is None and said[0].probabilities.keys() == set(ANIMALS)
    counts = [len(row["predicted_labels"]) for row in rows]
    assert sum(counts) > sum(len(one.labels) for one in firth.load(workdir).predict(texts))
    assert repr(Prediction(labels=("a", "b"), probabilities={})) == "Prediction('a', 'b')"
    for bad in ("0", "1", "1.5", "-0.1"):
        said = error_of(capsys, [*argv, "--output", tmp_path / "x.csv", f"--threshold={bad}"])
        assert f"threshold={bad}: expected a probability between 0 and 1" in said


def test_evaluate_measures_a_file_as_scikit_learn_does(folder, ended, tmp_path, capsys):
    workdir, _ = ended
    output = tmp_path / "said.jsonl"
    argv = ["evaluate", "--model", str(workdir), "--data", str(folder / "test.csv")]
    assert main([*argv, "--json", "--output", str(output), "--threshold=0.05"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    gold = indicators([row["labels"].split("|") for row in rows])
    said = indicators([row["predicted_labels"] for row in rows])
    expected = {f"f1_{name}": f1_score(gold, said, average=name) for name in ("micro", "macro")}
    expected["exact_match"] = accuracy_score(gold, said)
    assert found["metrics"] == pytest.approx(expected)
    assert found["by_label"]["dog"]["examples"] == gold[:, 1].sum() and found["confusion"] == []
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "f1_micro" in text and " for all" in text
    write(tmp_path / "odd.jsonl", [{"text": "the cat", "labels": ["cat", "cow"]}])
    said = error_of(capsys, [*argv[:-1], tmp_path / "odd.jsonl"])
    assert "odd.jsonl:1: label 'cow' is not one of 'cat', 'dog', 'fish', the labels of the" in said
    assert main(["report", str(workdir), "--split=test", f"--output={tmp_path}/r.html"]) == 0
    assert "exact match" in (tmp_path / "r.html").read_text()


def test_transformers_reads_what_convert_writes(ended, torch, tmp_path):
    import transformers

    workdir, _ = ended
    assert main(["convert", "--from", str(workdir), "--to", str(tmp_path / "published")]) == 0
    config = json.loads((tmp_path / "published" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    texts = [row["text"] for row in make_rows(6, 2)]
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "published"), top_k=None)
    theirs = [{one["label"]: one["score"] for one in said} for said in pipeline(texts)]
    for source in (workdir, tmp_path / "published"):
        for ours, expected in zip(firth.load(source).predict(texts), theirs, strict=True):
            assert ours.probabilities == pytest.approx(expected, abs=1e-5)
            assert set(ours.labels) == {x for x, p in expected.items() if p >= 0.5}


def test_a_model_of_one_label_has_no_threshold(folder, labelled, tmp_path, capsys):
    argv = ["predict", "--model", labelled.folder, "--input", folder / "test.csv"]
    said = error_of(capsys, [*argv, "--output", tmp_path / "x.csv", "--threshold=0.5"])
    assert "threshold=0.5: only models that give a text several labels have one" in said


def test_other_recipes_and_class_weights_are_refused(folder, tmp_path, capsys):
    own = command(folder, tmp_path / "w", "--config.objective.class_weights=balanced")
    assert "is of kind multilabel; only the labels of a classification" in error_of(capsys, own)
    own = ["train", "--config=logistic.py", f"--config.data.train={folder}/train.jsonl"]
    said = error_of(capsys, [*own, f"--workdir={tmp_path}/l"])
    assert "has several labels of a text (column 'labels')" in said and "use finetune.py" in said
    shutil.copy(folder / "test.csv", tmp_path / "t.csv")
    (tmp_path / "bad.jsonl").write_text('{"text": "a", "labels": ["x"]}\n' * 2)
    own = command(folder, tmp_path / "v", f"--config.data.train={tmp_path}/bad.jsonl")
    assert "every label (column 'labels') is 'x'" in error_of(capsys, own)
