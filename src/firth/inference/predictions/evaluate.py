"""How good predictions are: metrics of a labelled file, by label and against a baseline.

N texts, C labels.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from firth.data.labels.multilabel import constant_answer, indicator, names_in, written
from firth.data.tasks.choices import longest_choice
from firth.data.tasks.metrics import label_f1, score
from firth.data.tasks.rows import Row, Rows
from firth.data.tasks.task import DEFAULTS, shown
from firth.errors import FirthError
from firth.inference.predictions.classifier import TextClassifier, predict_rows
from firth.inference.predictions.reading import Reading
from firth.progress import Progress


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The measures of a labelled file.

    examples: their number. cut: how many of them lost tokens.
    metrics: accuracy, f1_macro and matthews; of a regression pearson, spearman, rmse and mae; of
      several labels of a text f1_micro, f1_macro and exact_match.
    baseline: {"label": the most frequent one, "accuracy": of always giving it}, and of questions
      "longest", the accuracy of the longest choice; of a regression {"score": the mean, "rmse": of
      always giving it}; of several labels {"label": those of the best constant answer with |
      between, and its "f1_micro"}.
    labels: their names [C], () for a regression, which lacks the rest.
    by_label: {label: {"precision", "recall", "f1", "examples"}}.
    confusion: int [C, C], examples by their label (rows) and their prediction (columns); [] of
      several labels.
    """

    examples: int
    cut: int
    metrics: dict[str, float]
    baseline: dict
    labels: tuple[str, ...] = ()
    by_label: dict[str, dict] = dataclasses.field(default_factory=dict)
    confusion: list[list[int]] = dataclasses.field(default_factory=list)


class Gold:
    """The labels of a file as indices, or as the scores of a regression.

    They are the names of the model's labels, or their numbers; the first row decides which.
    Those of questions, if these are the `rows`, are the numbers of choices, or letters. Of a model
    that gives a text several labels, they are lists of names.
    """

    def __init__(self, classifier: TextClassifier, column: str, rows: Rows | None = None):
        self.labels, self.column, self._known = classifier.labels, column, None
        self._rows, self._several = rows, classifier.multilabel
        self._separated = not rows or rows.format != "jsonl"

    def value(self, row: Row) -> int | float | np.ndarray:
        """The label's index, the score, or int [C] of several labels.

        Raises FirthError, naming the row, for a label that is not known.
        """
        if self._rows and self._rows.size:
            return self._rows.number(row, self.column)
        value = row.fields.get(self.column)
        if self._several:
            names = names_in(value, row.at, self.column, self._separated)
            known = {label: i for i, label in enumerate(self.labels)}
            return indicator(names, known, row.at, "the labels of the model; correct the row")
        text = "" if value is None else str(value).strip()
        if not text:
            raise FirthError(f"{row.at}: has no label in {self.column!r}; expected one a row")
        if not self.labels:
            return self._score(row, value)
        if self._known is None:
            self._known = {label: i for i, label in enumerate(self.labels)}
            if text not in self._known:
                self._known = {str(i): i for i in range(len(self.labels))}
        if text not in self._known:
            raise FirthError(
                f"{row.at}: label {value!r} is none of the model's: {shown(self.labels)}, or their "
                f"numbers, 0 to {len(self.labels) - 1}; correct the row, or choose another --label"
            )
        return self._known[text]

    def _score(self, row: Row, value) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise FirthError(
                f"{row.at}: {self.column!r} is {value!r}, but the model gives scores; expected a "
                "finite number"
            )
        return number


def evaluate(
    classifier: TextClassifier,
    rows: Rows,
    gold: Gold,
    reading: Reading,
    *,
    write: Callable[[list[Row], np.ndarray], None] | None = None,
    threshold: float | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure predictions against the labels of a file.

    `write` gets the rows and outputs of each window. `threshold` is the probability from which on a
    text has a label, of a model that gives several, else None. Raises FirthError as
    `TextClassifier` and `Gold` do.
    """
    labels, predictions, longest, cut = [], [], [], 0
    for window, outputs_NC, lost in predict_rows(classifier, rows, reading):
        labels += map(gold.value, window)
        if threshold is not None:
            predictions.append((outputs_NC >= threshold).astype(np.int32))
        else:
            predictions.append(outputs_NC.argmax(1) if classifier.labels else outputs_NC[:, 0])
        cut += lost
        if rows.choices:
            longest += longest_choice([row.text[1] for row in window]).tolist()
        if write:
            write(window, outputs_NC)
        if progress:
            progress.update(len(labels), "examples")
    predictions, labels = np.concatenate(predictions), np.array(labels)
    found = measured(classifier.labels, predictions, labels, cut)
    if longest:
        accuracy = float(np.mean(np.array(longest) == labels))
        found = dataclasses.replace(found, baseline=found.baseline | {"longest": accuracy})
    return found


def measured(names: tuple[str, ...], predictions, labels, cut: int = 0) -> Evaluation:
    """The measures of predictions [N] against labels [N]: indices of `names`, or scores if ().

    Of several labels a text, both are int [N, C], 1 at those that it has.
    """
    if predictions.ndim == 2:
        return _of_several(names, predictions, labels, cut)
    return (_of_labels if names else _of_scores)(names, predictions, labels, cut)


def _of_scores(names, predictions, labels, cut: int) -> Evaluation:
    error, mean = predictions - labels, float(labels.mean())
    metrics = score(("pearson", "spearman"), predictions, labels)
    metrics |= {"rmse": float(np.sqrt((error**2).mean())), "mae": float(np.abs(error).mean())}
    return Evaluation(len(labels), cut, metrics, {"score": mean, "rmse": float(labels.std())})


def _of_several(names, predictions, labels, cut: int) -> Evaluation:
    right, said, real = ((x.sum(0)) for x in (predictions * labels, predictions, labels))
    columns = (right / np.maximum(said, 1), right / np.maximum(real, 1))
    columns = (*columns, label_f1(predictions, labels), real)
    answer = constant_answer(labels)
    constant = score(("f1_micro",), np.tile(answer, (len(labels), 1)), labels)
    return Evaluation(
        examples=len(labels),
        cut=cut,
        metrics=score(DEFAULTS["multilabel"], predictions, labels),
        baseline={"label": written(names, answer)} | constant,
        labels=names,
        by_label=_by_label(names, columns),
    )


def _by_label(names, columns) -> dict[str, dict]:
    """{label: its measures} of columns [C] of precision, recall, F1 and numbers of examples."""
    kinds = ("precision", "recall", "f1", "examples")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {name: dict(zip(kinds, row, strict=True)) for name, row in zip(names, rows, strict=True)}


def _of_labels(names, predictions, labels, cut: int) -> Evaluation:
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    indices = range(len(names))
    found = precision_recall_fscore_support(labels, predictions, labels=indices, zero_division=0)
    counts = np.bincount(labels, minlength=len(names))
    binary = ("f1",) if len(names) == 2 else ()  # of the second label, as GLUE has it
    return Evaluation(
        examples=len(labels),
        cut=cut,
        metrics=score(("accuracy", *binary, "f1_macro", "matthews"), predictions, labels),
        baseline={"label": names[counts.argmax()], "accuracy": float(counts.max() / len(labels))},
        labels=names,
        by_label=_by_label(names, (*found[:3], counts)),
        confusion=confusion_matrix(labels, predictions, labels=indices).tolist(),
    )
