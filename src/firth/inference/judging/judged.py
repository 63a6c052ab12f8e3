"""How a model does on a split: its measures, its calibration, and the examples it gets most wrong.

N examples, C labels.
"""

import dataclasses

import numpy as np

BINS = 10  # of probabilities


@dataclasses.dataclass(frozen=True)
class Wrong:
    """An example that the model got wrong.

    texts: its texts by name. gold, predicted: what is right, and what the model said. how: how
    wrong that is, in words.
    """

    texts: dict[str, str]
    gold: str
    predicted: str
    how: str


@dataclasses.dataclass(frozen=True)
class Judged:
    """A model on one split.

    split, source: the name of the split and of its file. examples: how many are in it.
    metrics: {name: value}. by_label: {label: {"precision", "recall", "f1", "examples"}}, {} where
      there are no labels.
    labels, confusion: the names [C] and int [C, C], examples by label (rows) and prediction.
    calibration: see `calibrate`; None where the model gives no probabilities.
    scores: of a regression float [N, 2], what is right and what the model said.
    words: int [N], the words of each example. score: float [N], how well it did on each, from 0 to
      1; `score_name` says what that is. Both are None for scores.
    worst: the examples that it got most wrong, the worst first. wrong: how many it got wrong.
    """

    split: str
    source: str
    examples: int
    metrics: dict[str, float]
    words: np.ndarray
    score: np.ndarray | None = None
    score_name: str = "accuracy"
    by_label: dict[str, dict] = dataclasses.field(default_factory=dict)
    labels: tuple[str, ...] = ()
    confusion: np.ndarray | None = None
    calibration: "Calibration | None" = None
    scores: np.ndarray | None = None
    worst: tuple[Wrong, ...] = ()
    wrong: int = 0


@dataclasses.dataclass(frozen=True)
class Calibration:
    """How often the model is right where it is so sure (Guo et al. 2017, section 2).

    counts: int [BINS], examples by the probability of their prediction; bin i holds those from
      i / BINS. confidence, accuracy: float [BINS], its mean and how many were right, nan where
      there is no example. error: the expected calibration error, the mean of their distance.
    """

    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    error: float


def calibrate(probability_N: np.ndarray, right_N: np.ndarray) -> Calibration:
    """The calibration of predictions of these probabilities, of which these are right (bool)."""
    bin_N = np.minimum((probability_N * BINS).astype(int), BINS - 1)
    counts = np.bincount(bin_N, minlength=BINS)
    with np.errstate(invalid="ignore"):
        confidence, accuracy = (
            np.bincount(bin_N, weights=values, minlength=BINS) / counts
            for values in (probability_N, right_N)
        )
    distance = np.nan_to_num(np.abs(confidence - accuracy))
    return Calibration(counts, confidence, accuracy, float(distance @ counts / counts.sum()))


def count_words(*columns) -> np.ndarray:
    """Words of each example, int [N], over all its texts; words are what spaces divide."""
    examples = zip(*columns, strict=True)
    return np.array([sum(len(text.split()) for text in texts) for texts in examples])
