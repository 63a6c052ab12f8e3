"""The mean of several classifiers: their labels by name, their scores, and commands."""

import json
import shutil

import numpy as np
import pytest
from helpers.published.bert import WORDS, add_tokenizer, make_bert

import firth
from firth.cli import main
from firth.errors import FirthError
from firth.inference.predictions.average import Average
from firth.inference.predictions.load import load_classifier
from firth.inference.predictions.reading import Reading

LABELS = ("so, so", "bad", "good")  # of `labelled`, in another order


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The folder of a second model of the same labels."""
    folder = tmp_path_factory.mktemp("other") / "m"
    names = dict(enumerate(LABELS))
    sizes = dict(vocab_size=len(WORDS), num_hidden_layers=1, id2label=names)
    sizes |= dict(label2id={name: i for i, name in names.items()})
    make_bert(folder, "BertForSequenceClassification", **sizes)
    add_tokenizer(folder)
    return folder


def test_probabilities_are_averaged_by_the_names_of_the_labels(labelled, other, texts):
    both = load_classifier(f"{labelled.folder}, {other}")
    assert isinstance(both, Average) and both.labels == labelled.encoder.classifier.labels
    outputs, cut = both(texts, Reading(max_length=8))
    found = [firth.load(path).predict(texts, max_length=8) for path in (labelled.folder, other)]
    for row, one, two in zip(outputs, *found, strict=True):
        means = [(one.probabilities[x] + two.probabilities[x]) / 2 for x in both.labels]
        np.testing.assert_allclose(row, means, atol=1e-6)
    assert cut == both.parts[0](texts, Reading(max_length=8))[1] > 0
    assert len({model.digest() for model in (both, *both.parts, Average(both.parts[::-1]))}) == 4


def test_a_folder_with_a_comma_is_one_model(labelled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(labelled.folder, "lr=5e-05,batch=16")
    assert not isinstance(load_classifier("lr=5e-05,batch=16"), Average)


def test_scores_are_averaged(scored, texts):
    alone = load_classifier(str(scored.folder))
    np.testing.assert_allclose(
        Average([alone, alone])(texts, Reading())[0], alone(texts, Reading())[0]
    )


def test_models_of_other_labels_have_no_mean(labelled, scored):
    with pytest.raises(FirthError, match=f"{scored.folder} has the labels none, .* bad, good, so"):
        load_classifier(f"{labelled.folder},{scored.folder}")


def test_commands_take_several_models(labelled, other, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(other, "other")
    rows = [dict(text="the cat sat", label="good"), dict(text="a dog ran", label="bad")]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = f"--model={labelled.folder},other"
    assert main(["predict", models, "--input=in.jsonl", "--output=out.jsonl"]) == 0
    said = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    outputs, _ = load_classifier(f"{labelled.folder},other")(
        [row["text"] for row in rows], Reading()
    )
    labels = labelled.encoder.classifier.labels
    for row, output in zip(said, outputs, strict=True):
        for label, p in zip(labels, output, strict=True):
            assert row["probabilities"][label] == pytest.approx(p, abs=1e-5)
    capsys.readouterr()
    assert main(["evaluate", models, "--data=in.jsonl", "--json"]) == 0
    right = [labels[i] == row["label"] for i, row in zip(outputs.argmax(1), rows, strict=True)]
    assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] == np.mean(right)
