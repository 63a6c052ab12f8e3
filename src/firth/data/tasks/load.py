"""Find a task by its name or make one of the user's files, and load its examples."""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from firth import registry
from firth.data.labels import multilabel
from firth.data.tasks.choices import RACE, first_count, load_choices
from firth.data.tasks.columns import (
    ANSWERS,
    choice_columns,
    choice_texts,
    label_column,
    text_columns,
)
from firth.data.tasks.tables import (
    Table,
    checked_text,
    find_file,
    listed,
    present,
    read_header,
    read_table,
)
from firth.data.tasks.task import GLUE, TASKS, Examples, Task, make_task, shown
from firth.data.tasks.trees import read_trees
from firth.errors import FirthError

MEND = "give the row a label, or remove it"
OTHER = "the labels of the task; correct the row, or give train examples of it"
# What data.dir holds, for errors.
_LAYOUTS = {
    "glue": "; expected the folders of download_glue_data.py, DIR/SST-2/train.tsv and so on",
    "codah": "; expected data.dir to be one of CODAH's folds, with train.tsv, dev.tsv, test.tsv",
    "swag": "; expected train.csv, val.csv and test.csv of SWAG",
    "race": "; expected RACE's folders, DIR/train/high/1.txt and so on",
    "sst5": "; expected the trees of the treebank, train.txt, dev.txt and test.txt",
    "agnews": "; expected train.csv and test.csv: class, title and description, without a header",
    "agnews10k": "; expected train10k.tsv and test.tsv: a text and its label, without a header",
    "imdb": "; expected train.jsonl and test.jsonl, with a text and a label (0 or 1) a line",
}
_LAYOUTS["sst2_trees"] = _LAYOUTS["sst5"]


def find_task(data, recipe: str = "finetune.py") -> Task:
    """The task that the data section names, from GLUE, TFDS or the user's own files.

    `recipe` is that of the run, to show in messages. Raises FirthError as `get_task` does, and for
    a task without a train split.
    """
    if data.get("tasks"):
        raise FirthError(f"data.tasks={data.tasks!r}: {recipe} or this command takes one task")
    if not (data.task or data.train):
        raise FirthError(
            "nothing to learn: give a labelled file, --config.data.train=FILE (CSV, TSV or JSONL, "
            "with columns like text and label), or a task, as in --config "
            f"{recipe}:task=sst2 with --config.data.dir=DIR ({', '.join(TASKS)}, tfds:NAME)"
        )
    options = {
        name: data[name]
        for name in ("train", "dev", "test", "text", "label", "kind")
        if data[name] and (name != "kind" or data.train)
    }
    if data.get("choices"):  # a field that older runs lack
        options["choices"] = data.choices
    for name in options.keys() & {"text", "choices"}:
        options[name] = tuple(options[name].split(","))
    if data.task.startswith("tfds:"):
        named = {split: options.pop(split) for split in ("train", "dev", "test") if data[split]}
        options.pop("kind", None)  # the type of the label says it
        options |= dict(files=named, directory=data.dir or None)
    elif options:
        options["directory"] = data.dir or None
    try:
        task = get_task(data.task or "custom", **options)
    except TypeError as error:
        raise FirthError(f"task {data.task!r}: {error}") from None
    if task is GLUE["ax"]:
        raise FirthError(
            "task 'ax' has a test set alone, which MNLI's model labels: train on task=mnli, then "
            "`firth submit`"
        )
    if "train" not in task.files:
        raise FirthError(f"task {task.name!r} has no train split; set data.train")
    return task


def get_task(name: str, **options) -> Task:
    """The task that a recipe names: "mrpc", "tfds:glue/mrpc", or any name together with `train=`.

    Options are those of `custom_task` (`train`, `text`, ...), or of
    `firth.data.tasks.tfds.tfds_task`.
    """
    if ":" in name and not name.startswith("tfds:"):
        return registry.resolve("data.task", name, {})
    if name.startswith("tfds:"):
        from firth.data.tasks.tfds import tfds_task

        return tfds_task(name.removeprefix("tfds:"), **options)
    if options:
        return custom_task(name=name, **options)
    if name not in TASKS:
        near = difflib.get_close_matches(name.rpartition("/")[2], TASKS, n=1, cutoff=0.6)
        known = f"did you mean {near[0]!r}? There are" if near else "there are"
        raise FirthError(
            f"no task {name!r}; {known} {', '.join(TASKS)}, tfds:NAME, or your own files: "
            "--config.data.train=FILE"
        )
    return TASKS[name]


def custom_task(
    train: str = "",
    dev: str = "",
    test: str = "",
    text: str | Sequence[str] = (),
    label: str = "",
    kind: str = "",
    labels: Sequence[str] = (),
    metrics: Sequence[str] = (),
    name: str = "custom",
    directory: str | None = None,
    choices: Sequence[str] = (),
) -> Task:
    """A task over your own CSV, TSV or JSONL files (plain, .gz or .xz) with named columns.

    Questions with choices may also be folders of RACE's passages.

    Args:
      train, dev, test: paths; "" for a missing split.
      text: the column of the text, or the two columns of a pair; () finds them by their names.
      label: the column of the label (strings or integers; numbers for regression); "" finds it.
      kind: "classification", "regression", "choice" or "multilabel"; "" finds it: a file with
        columns of choices has questions, and else texts have several labels where the first label
        of `train` is a list, and scores where all are numbers and some of them not whole.
      labels: label strings in index order; () takes those of `train`, sorted (integers by value).
      metrics: () means accuracy, or Pearson and Spearman, or for several labels of a text F1 over
        all (micro), the mean F1 of the labels (macro), and the share of texts that are all right.
      name: the name of the task in logs and files.
      directory: the base of relative paths (None: here).
      choices: the column that lists the choices of a question, or a column for each; () finds them.

    Raises:
      FirthError: an unknown kind or metric, a missing column, an empty label, fewer than two
        labels, or no file with labels.
    """
    files = {"train": train, "dev": dev, "test": test}
    files = {split: path for split, path in files.items() if path}
    if not files:
        raise FirthError(f"task {name!r}: no files; give train=, dev= or test=")
    if not (train or labels or kind == "regression"):
        raise FirthError(f"task {name!r}: give labels=, or train= to take the labels from")
    path = _existing(next(iter(files.values())), directory or ".", folders=True)
    text = (text,) if isinstance(text, str) and text else text
    header = RACE if path.is_dir() else read_header(path)
    if kind in ("", "choice") and not labels:
        choices = choices or choice_columns(header)
        if choices:
            return _choice_task(name, path, header, files, text, label, choices, metrics)
    if kind == "choice" or choices:
        raise FirthError(
            f"{path}:1: no columns are known to hold choices; there are: {listed(header)}; choose "
            "by --config.data.choices=COLUMN (a list, in JSONL) or A,B,C (a column for each)"
        )
    text, label = _columns(path, header, text, label)
    if not kind and labels:
        kind = "classification"
    if kind in ("", "classification", "multilabel") and not labels:
        table = read_table(path, [label])
        values = table.columns[label]
        if kind == "multilabel" or (not kind and values and isinstance(values[0], list)):
            kind, lists = "multilabel", multilabel.lists_of(str(path), label, values, table.rows)
            values = [name for names in lists for name in names]
        else:
            _check_labels(path, label, table)
            kind = kind or _kind_of(values)
        labels = _distinct(path, label, values) if kind != "regression" else ()
    return make_task(name, kind, text, label, labels, metrics, files)


def _choice_task(name, path, header, files, text, label, choices, metrics) -> Task:
    """A task of questions with choices, as many as the first one has."""
    at, more = f"{path}:1", "--config.data"
    present(at, [*text, *choices], (), header)
    label = label or label_column(header, at, f"{more}.label", ANSWERS)
    others = [column for column in header if column not in (label, *choices)]
    text = text or choice_texts(others, at, f"{more}.text")
    count = len(choices) if len(choices) > 1 else first_count(path, choices[0])
    labels = tuple(map(str, range(count)))
    return make_task(name, "choice", text, label, labels, metrics, files, choices)


def _columns(path: Path, header, text: Sequence[str], label: str) -> tuple[Sequence[str], str]:
    """The columns of text and label, found where they are not given."""
    at = f"{path}:1"
    chosen = label or label_column(header, at, "--config.data.label")
    others = [column for column in header if column != chosen]
    if not text:  # a single column beside one that was named for the label can only be the text
        alone = label and len(others) == 1
        text = others if alone else text_columns(others, at, "--config.data.text")
    present(at, text, (), header)
    return text, chosen


def _check_labels(path: Path, column: str, table: Table) -> None:
    """Raise FirthError if there are no labels, or if one is empty or a list."""
    if not len(table.rows):
        raise FirthError(f"{path}: no examples; expected one a row")
    for row, value in zip(table.rows, table.columns[column], strict=True):
        if _is_empty(value):
            raise FirthError(f"{path}:{row}: the label (column {column!r}) is empty; {MEND}")
        if isinstance(value, list):
            raise FirthError(
                f"{path}:{row}: {column!r} is the list {value!r:.40}, and other labels are none; "
                "texts of several labels have a list each (--config.data.kind=multilabel)"
            )


def _kind_of(values: list) -> str:
    """ "regression" where all labels are numbers and some of them not whole."""
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        return "classification"
    scores = all(map(math.isfinite, numbers)) and any(number % 1 for number in numbers)
    return "regression" if scores else "classification"


def _distinct(path: Path, column: str, values: list) -> list[str]:
    """The label strings of a file in index order; FirthError for fewer than two."""
    labels = sorted({str(value).strip() for value in values}, key=_by_value)
    if len(labels) < 2:
        found = f"every label (column {column!r}) is {labels[0]!r}" if labels else "no text has any"
        raise FirthError(f"{path}: {found}; expected two or more labels")
    return labels


def _by_value(label: str) -> tuple:
    """Sort key: first integers by value, then the other labels by their letters."""
    return (0, int(label), label) if re.fullmatch(r"-?\d+", label) else (1, 0, label)


def _is_empty(value) -> bool:
    return value is None or not str(value).strip()


def load_split(task: Task, split: str, directory: str | None = None) -> Examples:
    """Read one split of a task.

    Args:
      task: from `get_task`.
      split: one of `task.files`.
      directory: the data directory. For GLUE it is the folder with CoLA/, SST-2/, ...; for TFDS its
        data_dir; for the user's files the base of relative paths (None: here).

    Raises:
      FirthError: an unknown split, a missing, empty or malformed file (with its line), a label that
        is not in the label set (with its row and the known labels).
    """
    if split not in task.files:
        raise FirthError(f"task {task.name!r} has no split {split!r}; it has {list(task.files)}")
    if task.kind == "choice":
        known = task is TASKS.get(task.name)
        path = _existing(task.files[split], directory or ".", known and task.name, folders=True)
        return load_choices(task, split, path, may_hide=_is_test(split))
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
        from firth.data.tasks.tfds import read_tfds

        return read_tfds(task.tfds, task.files[split], required, optional, directory)
    known = task is TASKS.get(task.name)
    layout = "glue" if task.name in GLUE else task.name
    path = _existing(task.files[split], directory or ".", known and layout)
    if task.trees:
        return _renamed(task, read_trees(path))
    header, ragged = task.headers.get(split, ()), task.ragged_allowed.get(split, 0)
    return _renamed(task, read_table(path, required, optional, header, ragged))


def _renamed(task: Task, table: Table) -> Table:
    """The rows whose label the task has, by its own labels."""
    labels = table.columns.get(task.label_column)
    if not task.renamed or labels is None:
        return table
    kept = [place for place, label in enumerate(labels) if label in task.renamed]
    columns = {name: [values[i] for i in kept] for name, values in table.columns.items()}
    columns[task.label_column] = [task.renamed[label] for label in columns[task.label_column]]
    return replace(table, columns=columns, rows=table.rows[kept])


def _is_test(split: str) -> bool:
    return split.startswith("test")


def _existing(
    name: str, directory: str = ".", layout: str | bool = "", folders: bool = False
) -> Path:
    """The file, or, with `folders`, the folder of that name; `layout` is one of _LAYOUTS."""
    at = Path(directory).expanduser() / Path(name).expanduser()
    path = at if folders and at.is_dir() else find_file(directory, name)
    if path is None:
        raise FirthError(f"{at}: no such file, nor .gz or .xz{_LAYOUTS.get(layout, '')}")
    return path


def _texts(table: Table, column: str) -> list[str]:
    texts = table.columns[column]
    for row, text in zip(table.rows, texts, strict=True):
        checked_text(f"{table.source}:{row}", column, text)
    return texts


def _labels(task: Task, table: Table, may_hide: bool) -> np.ndarray | None:
    """Label indices int32 [n] or scores float32 [n]; None for a test set without labels."""
    values = table.columns.get(task.label_column, ())
    if may_hide and all(value in (None, "", -1) for value in values):
        return None
    if task.kind == "regression":
        scores = [_score(table, row, v) for row, v in zip(table.rows, values, strict=True)]
        return np.array(scores, np.float32)
    known = {label: i for spelled in (task.names, task.labels) for i, label in enumerate(spelled)}
    if task.kind == "multilabel":
        lists = multilabel.lists_of(table.source, task.label_column, values, table.rows)
        ats = (f"{table.source}:{row}" for row in table.rows)
        rows = [multilabel.indicator(x, known, at, OTHER) for x, at in zip(lists, ats, strict=True)]
        return np.stack(rows)
    labels = [known.get(str(value).strip(), -1) for value in values]
    if -1 in labels:
        first = labels.index(-1)
        at = f"{table.source}:{table.rows[first]}"
        if _is_empty(values[first]):
            raise FirthError(f"{at}: the label (column {task.label_column!r}) is empty; {MEND}")
        raise FirthError(
            f"{at}: label {values[first]!r} is not one of {shown(task.labels)}, {OTHER}"
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
