"""What a labelled task is like before any training: its labels, a majority baseline, cut texts."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from firth.data.labels.multilabel import constant_answer, written
from firth.data.tasks.choices import longest_choice
from firth.data.tasks.metrics import score
from firth.data.tasks.task import Examples, Task

MOST_LABELS = 8  # to name with their counts
MANY_NUMBERS = 20  # so many labels that are whole numbers may be meant as scores


@dataclass(frozen=True)
class Baseline:
    """A constant prediction on one split: what it is in words, and {metric: value}.

    It is the most frequent label of train; where texts have several, those of train's most frequent
    labels whose micro-F1 there is greatest. For scores it is their mean, whose error is the
    `task_loss` of a run, the mean squared error; a constant has no correlation. `longest` has the
    metrics of always taking the longest choice, where there are choices.
    """

    words: str
    metrics: Mapping[str, float]
    longest: Mapping[str, float] | None = None

    def __str__(self):
        longest = f"; longest choice: {figures(self.longest)}" if self.longest else ""
        return f"{self.words}: {figures(self.metrics)}{longest}"


def baselines(task: Task, splits: Mapping[str, Examples]) -> dict[str, Baseline]:
    """The baseline of each split with labels, but train."""
    train = splits["train"].labels
    found = {}
    for name, examples in splits.items():
        labels = examples.labels
        if name == "train" or labels is None:
            continue
        if task.kind == "regression":
            mean = float(train.mean(dtype=np.float64))
            error = float(np.mean((labels - mean) ** 2, dtype=np.float64))
            found[name] = Baseline(f"baseline (always the mean, {mean:.4g})", {"task_loss": error})
        elif task.kind == "multilabel":
            answer = constant_answer(train)
            metrics = score(task.metrics, np.tile(answer, (len(labels), 1)), labels)
            words = f"constant baseline (always {written(task.labels, answer)!r})"
            found[name] = Baseline(words, metrics)
        else:
            most = int(np.bincount(train).argmax())
            metrics = score(task.metrics, np.full(len(labels), most), labels)
            longest = examples.choices and score(
                task.metrics, longest_choice(examples.choices), labels
            )
            words = f"majority baseline (always {task.labels[most]!r})"
            found[name] = Baseline(words, metrics, longest)
    return found


def overview(
    task: Task,
    splits: Mapping[str, Examples],
    truncated: Mapping[str, int],
    length: int,
    own_dev: bool,
) -> list[str]:
    """Lines to read before a run.

    Args:
      splits: the examples of each split.
      truncated: how many of them lose tokens, by split; {} for a model that reads whole texts.
      length: the most tokens of a row.
      own_dev: whether the task has a dev split of its own.
    """
    columns = " and ".join(map(repr, task.text_columns))
    lines = [f"{task.kind} of {columns} by {task.label_column!r} ({splits['train'].source})"]
    for name, examples in splits.items():
        from_train = "" if own_dev or name != "dev" else ", split off train"
        lines.append(f"{name}: {len(examples):,} examples{from_train}; {_labels(task, examples)}")
    numbers = [label for label in task.labels if label.lstrip("-").isdecimal()]
    if len(numbers) == len(task.labels) > MANY_NUMBERS and task.kind == "classification":
        lines.append(
            f"note: {len(numbers)} labels, all numbers; if they are scores, set "
            "--config.data.kind=regression"
        )
    for name, baseline in baselines(task, splits).items():
        lines.append(f"{name}: {baseline}")
    if truncated:
        shares = (f"{n / len(splits[name]):.1%} of {name}" for name, n in truncated.items())
        lines.append(f"longer than {length} tokens, so truncated: {', '.join(shares)}")
    return lines


def _labels(task: Task, examples: Examples) -> str:
    """The labels of a split with their counts, the most frequent first."""
    labels = examples.labels
    if labels is None:
        return "without labels"
    if task.kind == "regression":
        return f"scores from {labels.min():.4g} to {labels.max():.4g}, mean {labels.mean():.4g}"
    several = task.kind == "multilabel"
    counts = labels.sum(0) if several else np.bincount(labels, minlength=len(task.labels))
    order = np.argsort(-counts, kind="stable")
    text = ", ".join(f"{task.labels[i]} {counts[i]:,}" for i in order[:MOST_LABELS])
    rest = order[MOST_LABELS:]
    if several:
        none = np.count_nonzero(~labels.any(1))
        text = f"{labels.sum(1).mean():.2f} labels a text, {none:,} without any; {text}"
    return text + (f" and {len(rest)} more with {counts[rest].sum():,}" if len(rest) else "")


def figures(metrics: Mapping[str, float]) -> str:
    """ "accuracy 0.5012, f1 0.6000" of {metric: value}."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in metrics.items())
