"""GLUE submission files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.data.answering.decode import Predicted
from firth.data.labels.multilabel import written
from firth.data.tasks.metrics import check_finite
from firth.data.tasks.task import Task
from firth.errors import FirthError
from firth.storage.local import write_text

HEADER = "index\tprediction"


def write_predictions(path: str | Path, task: Task, predictions) -> None:
    """Write a GLUE submission file: `index<TAB>prediction`, one row for each example in test order.

    Of a task of tagging it is a tag a line, with an empty line after each sentence.

    Args:
      path: the file to write, "RTE.tsv"; the write is atomic.
      task: its labels are the strings, its limits clip the scores.
      predictions: class indices int [n] or scores float [n], or the tags of each sentence, or int
        [n, C], 1 at each of a text's labels, which are written with | between.

    Raises:
      FirthError: an index outside the label set, a score that is not finite.
    """
    path = Path(path)
    if task.kind == "tagging":
        write_text(path, "".join("\n".join([*tags, "", ""]) for tags in predictions))
        return
    write_text(path, as_text(answers(task, predictions)))


def answers(task: Task, predictions) -> list[str]:
    """Predictions as GLUE spells them: labels, or scores with four digits within the task's limits.

    Raises FirthError as `write_predictions` does.
    """
    predictions = np.asarray(predictions)
    check_finite(predictions)
    if task.kind == "regression":
        if task.limits:
            predictions = np.clip(predictions, *task.limits)
        return [f"{value:.4f}" for value in predictions]
    if task.kind == "multilabel":
        return [written(task.labels, row) for row in predictions]
    bad = np.flatnonzero((predictions < 0) | (predictions >= len(task.labels)))
    if len(bad):
        raise FirthError(
            f"prediction {predictions[bad[0]]} of example {bad[0]} is not a class of"
            f" {task.name!r}, which has {len(task.labels)}"
        )
    return [task.labels[int(index)] for index in predictions]


def as_text(answers: Sequence[str]) -> str:
    """The text of a submission file: its header, and a numbered row for each answer."""
    rows = [f"{index}\t{answer}" for index, answer in enumerate(answers)]
    return "\n".join([HEADER, *rows, ""])


def save_predictions(workdir: Path, split: str, task: Task, predictions) -> None:
    """Write `predictions/<split>.tsv` of a workdir, in GLUE's submission format.

    Answers to questions are in SQuAD's, `predictions/<split>.json` and what goes with it.
    """
    folder = workdir / "predictions"
    folder.mkdir(exist_ok=True)
    if isinstance(predictions, Predicted):
        predictions.write(folder / f"{split}.json")
    else:
        write_predictions(folder / f"{split}.tsv", task.of_set(split), predictions)
