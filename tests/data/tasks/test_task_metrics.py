"""The figures of tasks against their definitions and by hand."""

import json
import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from firth.data.tasks.metrics import METRICS, score, summary
from firth.errors import FirthError


def binary_reference(predictions, labels):
    """Accuracy, F1 and Matthews of class 1 from the counts, by their definitions."""
    pairs = list(zip(predictions.tolist(), labels.tolist(), strict=True))
    tp, fp, fn, tn = (pairs.count(p) for p in ((1, 1), (1, 0), (0, 1), (0, 0)))
    root = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return {
        "accuracy": (tp + tn) / len(pairs),
        "f1": 2 * tp / (2 * tp + fp + fn),
        "matthews": (tp * tn - fp * fn) / root,
    }


def ranks(values):
    """Ranks with ties shared, by the definition."""
    return np.array([np.sum(values < v) + (np.sum(values == v) + 1) / 2 for v in values])


def correlation(x, y):
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def test_classification_metrics_follow_their_definitions():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 400).astype(np.int32)
    predictions = np.where(random.random(400) < 0.7, labels, 1 - labels)
    predictions[:40] = 1  # unequal errors, so that precision, recall and their mix-ups differ
    expected = binary_reference(predictions, labels)
    assert score(["accuracy", "f1", "matthews"], predictions, labels) == pytest.approx(expected)


def test_figures_worked_out_by_hand():
    """Three right and one wrong of class 1, four and two of class 0; ranks 1 2 4 3 5 of scores."""
    labels = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
    predictions = np.array([1, 1, 1, 0, 0, 1, 0, 0, 0, 0])
    got = score(["accuracy", "f1", "f1_macro", "matthews"], predictions, labels)
    # tp 3, fn 2, fp 1, tn 4: F1 of class 1 is 6/9, of class 0 8/11; (12 - 2) / sqrt(4 5 5 6)
    assert list(got) == ["accuracy", "f1", "f1_macro", "matthews"]
    assert got["accuracy"] == pytest.approx(0.7)
    assert got["f1"] == pytest.approx(6 / 9)
    assert got["f1_macro"] == pytest.approx((6 / 9 + 8 / 11) / 2)
    assert got["matthews"] == pytest.approx(10 / math.sqrt(600))
    assert score(["matthews"], 1 - predictions, labels)["matthews"] == pytest.approx(
        -10 / math.sqrt(600)
    )
    # Squared differences of ranks add up to 2: 1 - 6 x 2 / (5 x 24).
    scores = score(["spearman", "pearson"], [0.1, 0.2, 9.0, 0.3, 10.0], [1, 2, 3, 4, 5])
    assert scores["spearman"] == pytest.approx(0.9)
    assert scores["pearson"] == pytest.approx(19.9 / math.sqrt(10 * 104.308))
    # A class that is neither there nor predicted counts for nothing; one that is only there is 0.
    assert score(["f1"], [0, 0], [0, 0])["f1"] == 0
    assert score(["f1_macro"], [0, 0, 0, 0], [0, 0, 0, 1])["f1_macro"] == pytest.approx(3 / 7)


def test_macro_f1_is_the_mean_over_classes():
    labels, predictions = np.array([0, 0, 1, 1, 2, 2, 2]), np.array([0, 1, 1, 1, 2, 0, 2])
    each = [
        binary_reference((predictions == c).astype(int), (labels == c).astype(int))["f1"]
        for c in range(3)
    ]
    assert score(["f1_macro"], predictions, labels)["f1_macro"] == pytest.approx(np.mean(each))


def test_correlations_follow_their_definitions():
    random = np.random.default_rng(1)
    labels = np.round(random.uniform(0, 5, 200), 0).astype(np.float32)  # many ties
    predictions = (np.exp(labels) + random.normal(0, 3, 200)).astype(np.float32)
    got = score(["pearson", "spearman"], predictions, labels)
    x, y = predictions.astype(np.float64), labels.astype(np.float64)
    assert got["pearson"] == pytest.approx(correlation(x, y), abs=1e-9)
    assert got["spearman"] == pytest.approx(correlation(ranks(x), ranks(y)), abs=1e-9)
    assert abs(got["pearson"] - got["spearman"]) > 0.05  # the data tell the two apart


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("constant", [0, 1])
def test_a_constant_prediction_scores_zero_not_nan(constant):
    labels = np.array([0, 1, 1, 0, 1])
    same = np.full(5, constant)
    got = score(["matthews", "f1"], same, labels)
    assert got["matthews"] == 0.0
    assert got["f1"] == pytest.approx(0.75 if constant else 0.0)
    same, nothing = np.full(5, 0.1, np.float32), {"pearson": 0.0, "spearman": 0.0}
    assert score(["pearson", "spearman"], same, labels) == nothing
    assert score(["pearson", "spearman"], labels.astype(np.float32), same) == nothing


@pytest.mark.filterwarnings("error")
def test_several_labels_of_a_text_are_measured_as_scikit_learn_does():
    """Also labels that no text has, or that no text was given."""
    rng = np.random.default_rng(0)
    for density in (0.1, 0.5):
        labels, predictions = (rng.random((2, 60, 7)) < density).astype(np.int32)
        labels[:, 2] = predictions[:, 2:4] = 0
        expected = {
            f"f1_{average}": f1_score(labels, predictions, average=average, zero_division=0)
            for average in ("micro", "macro")
        }
        expected["exact_match"] = accuracy_score(labels, predictions)
        found = score(["f1_micro", "f1_macro", "exact_match"], predictions, labels)
        assert found == pytest.approx(expected, abs=1e-12)


def test_every_metric_of_one_example_or_one_class_is_finite_json():
    one = np.array([1])
    for kind, metrics in METRICS.items():
        rows = one[:, None] if kind == "multilabel" else one
        json.dumps(score(list(metrics), rows, rows), allow_nan=False)


@pytest.mark.parametrize(
    ("metrics", "predictions", "labels", "said"),
    [
        (["bleu"], [0, 1], [0, 1], "no metric 'bleu'; there are accuracy"),
        (["accuracy"], [0, 1], [0, 1, 1], r"\(2,\).*\(3,\)"),
        (["accuracy"], [], [], "expected"),
        (["pearson"], [0.5, np.nan, np.inf], [0, 1, 1], "2 of 3 .* first at 1"),
        (["f1"], [0, 1, 2], [0, 1, 2], "f1_macro"),
        (["f1_micro"], [[0, 1]], [[0, 1, 1]], r"\(1, 2\).*\(1, 3\).*expected \[n, C\]"),
        (["exact_match"], [[0, np.nan]], [[0, 1]], "1 of 1 predictions .* first at 0"),
        (["accuracy"], [[0, 1]], [[0, 1]], r"expected \[n\] and \[n\]"),
    ],
)
def test_bad_input_is_refused(metrics, predictions, labels, said):
    with pytest.raises(FirthError, match=said):
        score(metrics, predictions, labels)


def test_summary_over_seeds():
    got = summary([0.8, 0.9, 0.4, 0.7])
    assert got["mean"] == pytest.approx(0.7)
    assert got["std"] == pytest.approx(np.std([0.8, 0.9, 0.4, 0.7], ddof=1))
    assert got["median"] == pytest.approx(0.75)
    assert got["seeds"] == 4
    assert summary([0.5]) == {"mean": 0.5, "std": None, "median": 0.5, "seeds": 1}
    with pytest.raises(FirthError):
        summary([])
