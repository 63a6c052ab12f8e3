"""Weights of the classes in the loss, for labels of unequal frequency. C labels."""

import math
from collections.abc import Sequence

import numpy as np

from firth.data.tasks.task import Task, shown
from firth.errors import FirthError

BALANCED = "balanced"


def class_weights(written: str, task: Task, labels: Sequence[int] | None) -> tuple[float, ...]:
    """The weight of each class, in index order; () where `written` is "".

    Args:
      written: "balanced", n / (C n_c) for the n_c of n examples with label c (King and Zeng 2001;
        scikit-learn's formula), or "label=weight,label=weight"; labels that are not named have 1.
      task: the labelled task.
      labels: those of train, as indices; only "balanced" reads them.

    Raises:
      FirthError: a task without classes, an unknown label, a weight that is not positive, or a
        balance without an example of each label.
    """
    if not written:
        return ()
    if task.kind != "classification":
        raise FirthError(
            f"objective.class_weights={written!r}: task {task.name!r} is of kind {task.kind}; only "
            "the labels of a classification have weights"
        )
    if written == BALANCED:
        counts = np.bincount([] if labels is None else labels, minlength=len(task.labels))
        if not counts.all():
            missing = [task.labels[i] for i in np.flatnonzero(counts == 0)]
            raise FirthError(
                f"objective.class_weights='balanced': train has no example of {shown(missing)}"
            )
        return tuple((counts.sum() / (len(counts) * counts)).tolist())
    pairs = [_pair(item.strip(), task) for item in written.split(",")]
    given = dict(pairs)
    if len(given) < len(pairs):
        raise FirthError(f"objective.class_weights={written!r}: expected each label once")
    return tuple(given.get(label, 1.0) for label in task.labels)


def _pair(item: str, task: Task) -> tuple[str, float]:
    """(label, weight) of "label=weight"."""
    label, _, text = item.rpartition("=")
    if label not in task.labels:
        raise FirthError(
            f"objective.class_weights: {item!r} should read LABEL=WEIGHT, with a label of "
            f"{shown(task.labels)}; or balanced"
        )
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise FirthError(f"objective.class_weights: {item!r}: expected a weight above 0")
    return label, weight
