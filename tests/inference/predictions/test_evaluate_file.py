"""The measures of a labelled file, against scikit-learn and counts by hand."""

import json

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import classification_report, f1_score, matthews_corrcoef

from firth.data.tasks.rows import Rows
from firth.errors import FirthError
from firth.inference.predictions import classifier as module
from firth.inference.predictions.evaluate import Evaluation, Gold, evaluate
from firth.inference.predictions.evaluate import measured as of_arrays
from firth.inference.predictions.reading import Reading
from firth.inference.predictions.report import report


def labelled_file(path, texts, labels):
    path.write_text(
        "".join(json.dumps(dict(text=t, label=v)) + "\n" for t, v in labels_of(texts, labels))
    )
    return Rows(path)


def labels_of(texts, labels):
    return zip(texts, labels, strict=True)


def measured(model, rows):
    classifier = model.encoder.classifier
    return evaluate(classifier, rows, Gold(classifier, "label"), Reading(batch_size=4))


def test_every_measure_is_scikit_learns(labelled, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SORTED_BATCHES", 2)  # several windows
    names = labelled.encoder.classifier.labels
    predicted = [one.label for one in labelled.encoder.predict(texts)]
    rng = np.random.default_rng(1)  # half right, half at random
    labels = [p if rng.random() < 0.5 else names[rng.integers(2)] for p in predicted]
    labels = ["good" if label == names[2] else label for label in labels]  # one label has no text
    found = measured(labelled, labelled_file(tmp_path / "a.jsonl", texts, labels))
    theirs = classification_report(
        labels, predicted, labels=names, output_dict=True, zero_division=0
    )
    assert found.labels == names and found.examples == len(texts) and found.cut == 0
    for name in names:
        row = theirs[name] | {"f1": theirs[name]["f1-score"], "examples": theirs[name]["support"]}
        assert found.by_label[name] == pytest.approx({k: row[k] for k in found.by_label[name]})
    right = np.mean([a == b for a, b in zip(labels, predicted, strict=True)])
    assert found.metrics["accuracy"] == pytest.approx(right) and 0.3 < right < 1
    assert found.metrics["matthews"] == pytest.approx(matthews_corrcoef(labels, predicted))
    occurring = sorted({*labels, *predicted})
    mean = np.mean([theirs[name]["f1-score"] for name in occurring])
    assert found.metrics["f1_macro"] == pytest.approx(mean)
    for i, gold in enumerate(names):
        for j, said in enumerate(names):
            pairs = [*zip(labels, predicted, strict=True)]
            assert found.confusion[i][j] == pairs.count((gold, said))
    most = max(names, key=labels.count)
    assert found.baseline == {"label": most, "accuracy": labels.count(most) / len(labels)}


def test_scores_are_measured_by_scipy(scored, texts, tmp_path):
    predicted = np.array([one.score for one in scored.encoder.predict(texts)])
    labels = (predicted + np.random.default_rng(2).normal(size=len(texts))).round(3)
    found = measured(scored, labelled_file(tmp_path / "a.jsonl", texts, labels.tolist()))
    assert found.metrics == pytest.approx(
        {
            "pearson": stats.pearsonr(predicted, labels).statistic,
            "spearman": stats.spearmanr(predicted, labels).statistic,
            "rmse": np.sqrt(np.mean((predicted - labels) ** 2)),
            "mae": np.mean(abs(predicted - labels)),
        },
        abs=1e-5,
    )
    assert found.baseline == pytest.approx({"score": labels.mean(), "rmse": labels.std()})


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["good", "bad", "so, so"], [1, 0, 2]),
        (["2", "0", 1], [2, 0, 1]),  # by number, as text or not
        ([" good", "bad ", "so, so"], [1, 0, 2]),  # as in training
    ],
)
def test_labels_by_name_or_by_number(labelled, texts, tmp_path, labels, said):
    rows, gold = (
        labelled_file(tmp_path / "a.jsonl", texts[:3], labels),
        Gold(labelled.encoder.classifier, "label"),
    )
    assert [gold.value(row) for row in rows] == said


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (
            ["good", "great"],
            r"a\.jsonl:2: label 'great' is none of the model's: 'bad', 'good', 'so, ",
        ),
        (
            ["good", 1],
            r"a\.jsonl:2: label 1 is none of .* or their numbers, 0 to 2; correct the row",
        ),
        ([1, "good"], r"a\.jsonl:2: label 'good' is none of"),
        ([3], r"a\.jsonl:1: label 3 is none of"),
        (["good", " "], r"a\.jsonl:2: has no label in 'label'; expected one a row"),
        (["good", ""], r"a\.jsonl:2: has no label in 'label'; expected one a row"),
    ],
)
def test_a_label_that_the_model_does_not_know_is_named(labelled, texts, tmp_path, labels, said):
    with pytest.raises(FirthError, match=said):
        measured(labelled, labelled_file(tmp_path / "a.jsonl", texts[: len(labels)], labels))


@pytest.mark.parametrize("value", ["high", "nan", [1]])
def test_a_score_that_is_no_number_is_named(scored, texts, tmp_path, value):
    rows = labelled_file(tmp_path / "a.jsonl", texts[:2], ["1.5", value])
    with pytest.raises(FirthError, match=r"a\.jsonl:2: 'label' is .*expected a finite number"):
        measured(scored, rows)


@pytest.mark.parametrize("names", [("no", "yes"), ("no", "yes", "perhaps")])
def test_of_two_labels_the_second_has_its_f1_alone(names):
    """As GLUE measures MRPC and QQP."""
    predicted, gold = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    metrics = of_arrays(names, predicted, gold).metrics
    assert list(metrics) == ["accuracy", *["f1"] * (len(names) == 2), "f1_macro", "matthews"]
    assert metrics.get("f1", 2 / 3) == pytest.approx(f1_score(gold, predicted))


def test_the_report_of_labels():
    by_label = {"bad": dict(precision=0.5, recall=1.0, f1=2 / 3, examples=1200)}
    by_label["good"] = dict(precision=0.0, recall=0.0, f1=0.0, examples=3)
    found = Evaluation(
        *(1203, 0, {"accuracy": 0.75}, {"label": "bad", "accuracy": 0.9975}, ("bad", "good")),
        *(by_label, [[1200, 0], [3, 0]]),
    )
    assert report(found).splitlines() == [
        "examples         1,203",
        "accuracy        0.7500",
        "baseline        0.9975  accuracy of bad for all",
        "",
        "label  precision  recall      f1  examples",
        "bad       0.5000  1.0000  0.6667     1,200",
        "good      0.0000  0.0000  0.0000         3",
        "",
        "label \\ predicted    bad  good",
        "bad                1,200     0",
        "good                   3     0",
    ]


def test_the_report_of_many_labels_and_of_scores():
    names = tuple(f"l{i}" for i in range(20))
    confusion = np.eye(20, dtype=int) * 5
    confusion[3, 4], confusion[7, 1] = 2, 9
    by_label = {name: dict(precision=1.0, recall=1.0, f1=1.0, examples=5) for name in names}
    many = Evaluation(
        100, 0, {}, {"label": "l0", "accuracy": 0.05}, names, by_label, confusion.tolist()
    )
    assert report(many).splitlines()[-3:] == [
        "label  predicted  examples",
        "l7            l1         9",
        "l3            l4         2",
    ]
    scores = Evaluation(7, 0, {"pearson": 0.5, "rmse": 1.25}, {"score": 2.5, "rmse": 2.0})
    assert report(scores).splitlines() == [
        "examples             7",
        "pearson         0.5000",
        "rmse            1.2500",
        "baseline        2.0000  rmse of 2.5000, the mean, for all",
    ]
