"""Labelled tasks: the layout of their files, their labels and their metrics.

The GLUE tasks (Wang et al. 2019) read the TSV files that `download_glue_data.py` writes. CODAH
(Chen et al. 2019), SWAG (Zellers et al. 2018) and RACE (Lai et al. 2017) have choices. Other tasks
read a CSV, TSV or JSONL file with named columns, or a TFDS dataset. The name of a label
decides its index, never the order of the examples (huggingface/transformers#10401).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from firth.data.tasks.metrics import METRICS
from firth.errors import FirthError


@dataclass(frozen=True)
class Task:
    """Everything needed to read, score and submit a task.

    Attributes:
      name: its name in recipes.
      kind: "classification" (labels are names), "regression" (labels are numbers), "choice" (one
        of several choices is right; labels are their numbers from 0) or "multilabel" (a text has
        any number of the labels).
      text_columns: the column of the text, or the two columns of a pair; of a choice the column of
        the context, of the question, or of both.
      label_column: the column of the label; a split without it is a test set.
      metrics: names of `firth.data.tasks.metrics`; the first chooses the best checkpoint.
      files: split -> file below the data directory, or the split's name in TFDS.
      labels: the label strings as files and submissions spell them, in index order.
      names: TFDS's names of the labels, in the same order; () if they are the same as `labels`.
      headers: split -> column names, for files without a header line.
      ragged_allowed: split -> how many malformed rows to skip at most (QQP's train has a few).
      limits: the range of a regression task's scores; submissions clip predictions to it.
      tfds: the TFDS dataset of the task; "" for files.
      choices: the column that lists the choices, or a column for each.
      trees: the files hold a labelled tree a line (`firth.data.tasks.trees`).
      renamed: {label of the files: label of the task}; rows with another label are left out. {}: as
        they are.
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
    choices: tuple[str, ...] = ()
    trees: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def main_metric(self) -> str:
        """The metric that chooses the best checkpoint."""
        return self.metrics[0]

    def of_set(self, name: str) -> "Task":
        """The task of one of its splits: itself."""
        del name
        return self

    @property
    def dev_splits(self) -> tuple[str, ...]:
        """The splits to evaluate on: "dev", or MNLI's matched and mismatched ones."""
        return tuple(split for split in self.files if split.startswith("dev"))


@dataclass(frozen=True)
class Examples:
    """One split. `labels` is int32 (index) or float32 (score) [n], None for a test set.

    Where a text has several labels, they are int32 [n, C], 1 at each that it has.

    `rows` int64 [n] is the place of each example in its source (a file's 1-based line).

    Of a choice, `texts_a` are the contexts, and `choices` has the texts to read beside each.
    `groups` names the part of each example that is also measured alone (RACE's middle and high),
    and `places` says where each is.
    """

    task: Task
    source: str
    texts_a: list[str]
    texts_b: list[str] | None
    labels: np.ndarray | None
    rows: np.ndarray
    skipped: int = 0
    choices: list[tuple[str, ...]] | None = None
    groups: np.ndarray | None = None
    places: list[str] | None = None

    def __len__(self):
        return len(self.texts_a)


def _glue(name, folder, texts, metrics, label="label", labels=(), names=(), **more) -> Task:
    splits = more.pop("splits", ("train", "dev", "test"))
    files = more.pop("files", {split: f"{folder}/{split}.tsv" for split in splits})
    kind = "classification" if labels else "regression"
    return Task(name, kind, texts, label, metrics, files, labels, names, **more)


_01 = ("0", "1")
_POLARITY = ("negative", "positive")
_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("entailment", "neutral", "contradiction")
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
    _glue("sst2", "SST-2", ("sentence",), ("accuracy",), "label", _01, _POLARITY),
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
        labels=_INFERENCE,
        splits=("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"),
    ),
    _glue("qnli", "QNLI", ("question", "sentence"), ("accuracy",), labels=_ENTAILMENT),
    _glue("rte", "RTE", _PAIR, ("accuracy",), labels=_ENTAILMENT),
    _glue("wnli", "WNLI", _PAIR, ("accuracy",), labels=_01, names=_ENTAILMENT[::-1]),
    _glue(  # the diagnostic set, which has no train split: MNLI's model labels it
        "ax",
        "diagnostic",
        _PAIR,
        ("matthews",),
        labels=_INFERENCE,
        files={"test": "diagnostic/diagnostic.tsv"},
    ),
)
GLUE: dict[str, Task] = {task.name: task for task in _GLUE_TASKS}


def _choice(name, files, texts, choices, label="label", **more) -> Task:
    labels, metrics = tuple(map(str, range(4))), ("accuracy",)
    return Task(name, "choice", texts, label, metrics, files, labels, choices=choices, **more)


_ENDINGS = tuple(f"ending{i}" for i in range(4))
_CODAH_HEADER = ("category", "prompt", *_ENDINGS, "label")
_CODAH_FILES = {split: f"{split}.tsv" for split in ("train", "dev", "test")}  # of one fold

_CHOICE_TASKS = (
    _choice(
        "codah",
        _CODAH_FILES,
        ("prompt",),
        _ENDINGS,
        headers=dict.fromkeys(_CODAH_FILES, _CODAH_HEADER),
    ),
    _choice(
        "swag",
        {"train": "train.csv", "dev": "val.csv", "test": "test.csv"},
        ("sent1", "sent2"),
        _ENDINGS,
    ),
    _choice(
        "race",
        {"train": "train", "dev": "dev", "test": "test"},  # folders
        ("article", "question"),
        ("options",),
        "answer",
    ),
)


def _texts(name, texts, labels, names, files, metrics=("accuracy",), **more) -> Task:
    return Task(name, "classification", texts, "label", metrics, files, labels, names, **more)


_SST = {split: f"{split}.txt" for split in ("train", "dev", "test")}
_TOPICS = ("World", "Sports", "Business", "Sci/Tech")
_AG_HEADER = ("label", "title", "description")

_TEXT_TASKS = (
    # Stanford Sentiment Treebank (Socher et al. 2013), whole sentences: trees/train.txt and so on
    _texts(
        "sst5",
        ("sentence",),
        ("0", "1", "2", "3", "4"),
        ("very negative", "negative", "neutral", "positive", "very positive"),
        _SST,
        trees=True,
    ),
    _texts(  # the same without neutral sentences
        "sst2_trees",
        ("sentence",),
        _01,
        _POLARITY,
        _SST,
        trees=True,
        renamed={"0": "0", "1": "0", "3": "1", "4": "1"},
    ),
    # AG News (Zhang et al. 2015) as distributed: class, title, description, without a header
    _texts(
        "agnews",
        ("title", "description"),
        ("1", "2", "3", "4"),
        _TOPICS,
        {"train": "train.csv", "test": "test.csv"},
        headers=dict.fromkeys(("train", "test"), _AG_HEADER),
    ),
    _texts(  # its descriptions alone, 10,001 of train, as text<TAB>label
        "agnews10k",
        ("text",),
        _TOPICS,
        (),
        {"train": "train10k.tsv", "test": "test.tsv"},
        headers=dict.fromkeys(("train", "test"), ("text", "label")),
    ),
    # IMDB (Maas et al. 2011), one file a split: an object with text and label a line
    _texts("imdb", ("text",), _01, _POLARITY, {"train": "train.jsonl", "test": "test.jsonl"}),
)
TASKS: dict[str, Task] = GLUE | {task.name: task for task in (*_TEXT_TASKS, *_CHOICE_TASKS)}


# The metrics of a task of one's own, where it is not accuracy alone; the first is the main one.
DEFAULTS = {
    "regression": ("pearson", "spearman"),
    "multilabel": ("f1_micro", "f1_macro", "exact_match"),
}


def make_task(name, kind, text, label, labels, metrics, files, choices=()) -> Task:
    """Check a user's arguments (those of `custom_task`) and make a task; `files` as in `Task`."""
    if kind not in METRICS:
        raise FirthError(f"task {name!r}: kind {kind!r} is not {' or '.join(METRICS)}")
    text, labels = _as_tuple(text), _as_tuple(labels)
    if len(text) not in (1, 2):
        raise FirthError(f"task {name!r}: text={text!r}; expected one column, or two for pairs")
    named = kind in ("classification", "multilabel")
    if named and (len(labels) < 2 or len(set(labels)) < len(labels)):
        raise FirthError(f"task {name!r}: labels {shown(labels)}; expected two or more, each once")
    metrics = _as_tuple(metrics) or DEFAULTS.get(kind, ("accuracy",))
    available = [metric for metric in METRICS[kind] if metric != "f1" or len(labels) == 2]
    for metric in metrics:
        if metric not in available:
            raise FirthError(
                f"task {name!r}: no metric {metric!r} for {kind}"
                f" with {len(labels)} labels; there are {', '.join(available)}"
            )
    return Task(name, kind, text, label, metrics, files, labels, choices=_as_tuple(choices))


def _as_tuple(value) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))


def shown(labels: Sequence[str], most: int = 20) -> str:
    """The first labels as a list for an error message."""
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(map(repr, labels[:most])) + more if labels else "none"
