"""Labelled tasks: what their files look like, and how a split becomes texts and label indices.

The GLUE tasks (Wang et al. 2019) read the TSV files that `download_glue_data.py` writes; other
tasks read a CSV, TSV or JSONL file with named columns, or a TFDS dataset. Labels are mapped by
name, never by the order in which they turn up (huggingface/transformers#10401).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from firth.data.scores import METRICS
from firth.data.tables import Table, find_file, read_table
from firth.errors import FirthError


@dataclass(frozen=True)
class Task:
    """What has to be known to read, score and submit a task.

    Attributes:
      name: how recipes call it.
      kind: "classification" (labels are names) or "regression" (labels are numbers).
      text_columns: the column of the text, or the two columns of a pair.
      label_column: the column of the label; a split without it is a test set.
      metrics: names of `firth.data.scores`; the first chooses the best checkpoint.
      files: split -> file below the data directory, or the split's name in TFDS.
      labels: the label strings as files and submissions spell them, in index order.
      names: what the labels mean, as TFDS names them, in the same order; () where `labels` says it.
      headers: split -> column names, for files without a header line.
      ragged_allowed: split -> how many malformed rows may be skipped (QQP's train has a few).
      limits: the range of a regression task's score; predictions are clipped to it.
      tfds: the TFDS dataset that the task is read from; "" for files.
    """

    name: str
    kind: str
    text_columns: tuple[str, ...]
    label_column: str
    metrics: tuple[str, ...]
    files: Mapping[str, str]
    labels: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ragged_allowed: Mapping[str, int] = field(default_factory=dict)
    limits: tuple[float, float] | None = None
    tfds: str = ""

    @property
    def main_metric(self) -> str:
        """The metric that chooses the best checkpoint."""
        return self.metrics[0]

    @property
    def dev_splits(self) -> tuple[str, ...]:
        """The splits to evaluate on: "dev", or MNLI's matched and mismatched ones."""
        return tuple(split for split in self.files if split.startswith("dev"))


@dataclass(frozen=True)
class Examples:
    """One split. `labels` is int32 (index) or float32 (score) [n], None for a test set.

    `rows` int64 [n] is where each example stands in its source (a file's 1-based line).
    """

    task: Task
    source: str
    texts_a: list[str]
    texts_b: list[str] | None
    labels: np.ndarray | None
    rows: np.ndarray
    skipped: int = 0

    def __len__(self):
        return len(self.texts_a)


def _glue(name, folder, texts, metrics, label="label", labels=(), names=(), **more) -> Task:
    splits = more.pop("splits", ("train", "dev", "test"))
    files = {split: f"{folder}/{split}.tsv" for split in splits}
    kind = "classification" if labels else "regression"
    return Task(name, kind, texts, label, metrics, files, labels, names, **more)


_01 = ("0", "1")
_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_COLA_HEADER = ("source", "label", "mark", "sentence")  # `mark` is the linguist's own asterisk

_GLUE_TASKS = (
    _glue(
        "cola",
        "CoLA",
        ("sentence",),
        ("matthews", "accuracy"),
        labels=_01,
        names=("unacceptable", "acceptable"),
        headers={"train": _COLA_HEADER, "dev": _COLA_HEADER},
    ),
    _glue("sst2", "SST-2", ("sentence",), ("accuracy",), "label", _01, ("negative", "positive")),
    _glue(
        "mrpc",
        "MRPC",
        ("#1 String", "#2 String"),
        ("f1", "accuracy"),
        "Quality",
        labels=_01,
        names=("not_equivalent", "equivalent"),
    ),
    _glue(
        "qqp",
        "QQP",
        ("question1", "question2"),
        ("f1", "accuracy"),
        "is_duplicate",
        labels=_01,
        names=("not_duplicate", "duplicate"),
        ragged_allowed={"train": 100},
    ),
    _glue("stsb", "STS-B", _PAIR, ("pearson", "spearman"), "score", limits=(0.0, 5.0)),
    _glue(
        "mnli",
        "MNLI",
        _PAIR,
        ("accuracy",),
        "gold_label",
        labels=("entailment", "neutral", "contradiction"),
        splits=("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"),
    ),
    _glue("qnli", "QNLI", ("question", "sentence"), ("accuracy",), labels=_ENTAILMENT),
    _glue("rte", "RTE", _PAIR, ("accuracy",), labels=_ENTAILMENT),
    _glue("wnli", "WNLI", _PAIR, ("accuracy",), labels=_01, names=_ENTAILMENT[::-1]),
)
GLUE: dict[str, Task] = {task.name: task for task in _GLUE_TASKS}


def get_task(name: str, **options) -> Task:
    """The task that a recipe names: "mrpc", "tfds:glue/mrpc", or any name with `train=...` given.

    Options are those of `custom_task` (`train`, `text`, ...), or of `firth.data.tfds.tfds_task`.
    """
    if name.startswith("tfds:"):
        from firth.data.tfds import tfds_task

        return tfds_task(name.removeprefix("tfds:"), **options)
    if options:
        return custom_task(name=name, **options)
    if name not in GLUE:
        known = ", ".join(GLUE)
        raise FirthError(
            f"no task {name!r}; there are {known}, tfds:NAME, or your own files with"
            " train=, dev=, text= and label="
        )
    return GLUE[name]


def custom_task(
    train: str = "",
    dev: str = "",
    test: str = "",
    text: str | Sequence[str] = "sentence",
    label: str = "label",
    kind: str = "classification",
    labels: Sequence[str] = (),
    metrics: Sequence[str] = (),
    name: str = "custom",
) -> Task:
    """A task over your own CSV, TSV or JSONL files (plain, .gz or .xz) with named columns.

    Args:
      train, dev, test: paths; "" for a split that is not there.
      text: the column of the text, or the two columns of a pair.
      label: the column of the label (strings or integers; numbers for regression).
      kind: "classification" or "regression".
      labels: label strings in index order; () takes those of `train`, sorted (integers by value).
      metrics: () means accuracy, or Pearson and Spearman.
      name: how the task is called in logs and files.

    Raises:
      FirthError: an unknown kind or metric, no column, no file to take the labels from.
    """
    files = {"train": train, "dev": dev, "test": test}
    files = {split: path for split, path in files.items() if path}
    if not files:
        raise FirthError(f"task {name!r}: no files; give train=, dev= or test=")
    if kind == "classification" and not labels:
        if not train:
            raise FirthError(f"task {name!r}: give labels=, or train= to take the labels from")
        found = read_table(_existing(train), [label]).columns.get(label, ())
        labels = sorted({str(value) for value in found if value not in (None, "")}, key=_by_value)
    return make_task(name, kind, text, label, labels, metrics, files)


def _by_value(label: str) -> tuple:
    """Sort key: integers by value and first, then the other labels by their letters."""
    return (0, int(label), label) if re.fullmatch(r"-?\d+", label) else (1, 0, label)


def make_task(name, kind, text, label, labels, metrics, files) -> Task:
    """A task from a user's arguments (those of `custom_task`), checked; `files` as in `Task`."""
    if kind not in ("classification", "regression"):
        raise FirthError(f"task {name!r}: kind {kind!r} is not classification or regression")
    text, labels = _as_tuple(text), _as_tuple(labels)
    if len(text) not in (1, 2):
        raise FirthError(f"task {name!r}: text={text!r}; expected one column, or two for pairs")
    if kind == "classification" and (len(labels) < 2 or len(set(labels)) < len(labels)):
        raise FirthError(f"task {name!r}: labels {_shown(labels)}; expected two or more, each once")
    default = ("accuracy",) if kind == "classification" else ("pearson", "spearman")
    metrics = _as_tuple(metrics) or default
    available = [metric for metric in METRICS[kind] if metric != "f1" or len(labels) == 2]
    for metric in metrics:
        if metric not in available:
            raise FirthError(
                f"task {name!r}: no metric {metric!r} for {kind}"
                f" with {len(labels)} labels; there are {', '.join(available)}"
            )
    return Task(name, kind, text, label, metrics, files, labels)


def _as_tuple(value) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))


def load_split(task: Task, split: str, directory: str | None = None) -> Examples:
    """Read one split of a task.

    Args:
      task: from `get_task`.
      split: one of `task.files`.
      directory: the data directory: for GLUE the folder that holds CoLA/, SST-2/, ...; for TFDS
        its data_dir; for one's own files what their paths are relative to (None: here).

    Raises:
      FirthError: an unknown split, a missing, empty or malformed file (with its line), a label that
        is not in the label set (with its row and the labels known).
    """
    if split not in task.files:
        raise FirthError(f"task {task.name!r} has no split {split!r}; it has {list(task.files)}")
    table = _read(task, split, directory)
    if not len(table.rows):
        raise FirthError(f"{table.source}: no examples; expected one a row")
    texts = [_texts(table, column) for column in task.text_columns]
    second = texts[1] if len(texts) == 2 else None
    labels = _labels(task, table, may_hide=_is_test(split))
    return Examples(task, table.source, texts[0], second, labels, table.rows, table.skipped)


def _read(task: Task, split: str, directory: str | None) -> Table:
    required, optional = list(task.text_columns), []
    (optional if _is_test(split) else required).append(task.label_column)
    if task.tfds:
        from firth.data.tfds import read_tfds

        return read_tfds(task.tfds, task.files[split], required, optional, directory)
    path = _existing(task.files[split], directory or ".", task is GLUE.get(task.name))
    header, ragged = task.headers.get(split, ()), task.ragged_allowed.get(split, 0)
    return read_table(path, required, optional, header, ragged)


def _is_test(split: str) -> bool:
    return split.startswith("test")


def _existing(name: str, directory: str = ".", glue: bool = False) -> Path:
    path = find_file(directory, name)
    if path is None:
        layout = "; expected the folders of download_glue_data.py, DIR/SST-2/train.tsv and so on"
        at = Path(directory) / name
        raise FirthError(f"{at}: no such file, nor .gz or .xz{layout if glue else ''}")
    return path


def _texts(table: Table, column: str) -> list[str]:
    texts = table.columns[column]
    for row, text in zip(table.rows, texts, strict=True):
        if not isinstance(text, str):
            raise FirthError(f"{table.source}:{row}: {column!r} is {text!r}, expected a string")
    return texts


def _labels(task: Task, table: Table, may_hide: bool) -> np.ndarray | None:
    """Label indices int32 [n] or scores float32 [n]; None where a test set keeps them back."""
    values = table.columns.get(task.label_column, ())
    if may_hide and all(value in (None, "", -1) for value in values):
        return None
    if task.kind == "regression":
        scores = [_score(table, row, v) for row, v in zip(table.rows, values, strict=True)]
        return np.array(scores, np.float32)
    known = {label: i for spelled in (task.names, task.labels) for i, label in enumerate(spelled)}
    labels = [known.get(str(value), -1) for value in values]
    if -1 in labels:
        first = labels.index(-1)
        raise FirthError(
            f"{table.source}:{table.rows[first]}: label {values[first]!r} is not one of"
            f" {_shown(task.labels)}; correct the row or the label set"
        )
    return np.array(labels, np.int32)


def _score(table: Table, row: int, value) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise FirthError(f"{table.source}:{row}: score {value!r} is not a finite number")
    return score


def _shown(labels: Sequence[str], most: int = 20) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(map(repr, labels[:most])) + more if labels else "none"
