"""Task metrics on whole prediction sets, and statistics over seeds.

These are not means over examples, so they cannot be (sum, weight) pairs. The host computes them
from all predictions of a split, with scikit-learn and SciPy, as GLUE's own scorer does.
"""

import statistics
import warnings
from collections.abc import Callable, Sequence

import numpy as np

from firth.errors import FirthError


def _accuracy(predictions, labels) -> float:
    return float(np.mean(predictions == labels))


def _f1(predictions, labels) -> float:
    from sklearn.metrics import f1_score

    if max(predictions.max(), labels.max()) > 1:
        raise FirthError("f1 is of class 1 of two; with more classes use f1_macro")
    return float(f1_score(labels, predictions, zero_division=0))


def _f1_macro(predictions, labels) -> float:
    if labels.ndim == 2:
        return float(label_f1(predictions, labels).mean())
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average="macro", zero_division=0))


def _f1_micro(predictions, labels) -> float:
    return float(label_f1(predictions.reshape(-1, 1), labels.reshape(-1, 1))[0])


def label_f1(predictions_NC: np.ndarray, labels_NC: np.ndarray) -> np.ndarray:
    """float64 [C]: F1 of each of a text's labels, 0 for one that no text has or was given."""
    right_C = (predictions_NC * labels_NC).sum(0)
    return 2 * right_C / np.maximum(predictions_NC.sum(0) + labels_NC.sum(0), 1)


def _exact_match(predictions, labels) -> float:
    return float(np.mean((predictions == labels).all(axis=1)))


def _matthews(predictions, labels) -> float:
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():  # with a single class the value is 0 by definition
        warnings.simplefilter("ignore", UserWarning)
        return float(matthews_corrcoef(labels, predictions))


def _pearson(predictions, labels) -> float:
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predictions, labels)


def _spearman(predictions, labels) -> float:
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predictions, labels)


def _correlation(function, predictions, labels) -> float:
    if len(labels) < 2 or np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(function(predictions.astype(np.float64), labels.astype(np.float64)).statistic)


METRICS: dict[str, dict[str, Callable[[np.ndarray, np.ndarray], float]]] = {
    "classification": {
        "accuracy": _accuracy,
        "f1": _f1,
        "f1_macro": _f1_macro,
        "matthews": _matthews,
    },
    "regression": {"pearson": _pearson, "spearman": _spearman},
    "choice": {"accuracy": _accuracy},
    "multilabel": {"f1_micro": _f1_micro, "f1_macro": _f1_macro, "exact_match": _exact_match},
}
_ALL = METRICS["classification"] | METRICS["regression"] | METRICS["multilabel"]


def score(metrics: Sequence[str], predictions, labels) -> dict[str, float]:
    """Score the predictions of a whole split.

    Every value is finite, so that checkpoints compare and logs stay valid JSON. F1 without
    positives and Matthews of a constant are 0, as in scikit-learn. Pearson and Spearman of a
    constant are 0, where SciPy returns NaN: a constant prediction has learnt nothing.

    Args:
      metrics: names in `METRICS`, by kind of task. `f1` is that of class 1 (MRPC, QQP).
      predictions: class indices int [n], or scores float [n], or, where a text has several labels,
        int [n, C], 1 at those that it has. `exact_match` is the share of rows that are all right.
      labels: the same of what is right.

    Returns:
      name -> value, in the order of `metrics`.

    Raises:
      FirthError: an unknown metric, sets of different or zero size, a prediction that is not
        finite.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    unknown = [name for name in metrics if name not in _ALL]
    if unknown:
        raise FirthError(f"no metric {unknown[0]!r}; there are {', '.join(_ALL)}")
    axes = 2 if METRICS["multilabel"].keys() >= set(metrics) and labels.ndim == 2 else 1
    if predictions.ndim != axes or predictions.shape != labels.shape or not labels.size:
        expected = "[n] and [n]" if axes == 1 else "[n, C] and [n, C]"
        raise FirthError(
            f"predictions {predictions.shape} and labels {labels.shape}: expected {expected}"
        )
    check_finite(predictions)
    return {name: _ALL[name](predictions, labels) for name in metrics}


def check_finite(predictions: np.ndarray) -> None:
    """Raise FirthError if a prediction, or a row of them, is not finite."""
    bad = np.flatnonzero(~np.isfinite(predictions).reshape(len(predictions), -1).all(axis=1))
    if len(bad):
        raise FirthError(
            f"{len(bad)} of {len(predictions)} predictions are not finite, the first at {bad[0]};"
            " the model has diverged"
        )


def summary(values: Sequence[float]) -> dict[str, float | int | None]:
    """Statistics over seeds: mean, std (divisor n - 1; None for one seed), median and seeds."""
    if not len(values):
        raise FirthError("summary of no values; expected one value a seed")
    values = [float(value) for value in values]
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "median": statistics.median(values),
        "seeds": len(values),
    }
