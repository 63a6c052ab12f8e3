"""Named datasets of TensorFlow Datasets as labelled tasks; TensorFlow is imported on first use."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from firth.data.tasks.tables import Table, listed, present
from firth.data.tasks.task import GLUE, Task, make_task
from firth.data.tfds_reader import find_split, open_dataset, read_examples
from firth.errors import FirthError

# The features of TFDS's glue whose names differ from the columns of the TSV files.
_GLUE_TEXTS = {"mrpc": ("sentence1", "sentence2"), "mnli": ("premise", "hypothesis")}


def tfds_task(
    name: str,
    text: str | Sequence[str] = (),
    label: str = "",
    metrics: Sequence[str] = (),
    files: Mapping[str, str] = MappingProxyType({}),
    directory: str | None = None,
) -> Task:
    """A task over a TFDS dataset; `glue/NAME` are the GLUE tasks, with their labels and metrics.

    Downloads a missing dataset, because its splits are known only then.

    Args:
      name: as TFDS spells it, "imdb_reviews" or "glue/sst2".
      text, label: its features; by default those that the dataset declares as supervised.
      metrics: () means GLUE's own, else accuracy, or Pearson and Spearman.
      files: split -> TFDS split ("train[:90%]" works). They add to TFDS's splits train,
        dev=validation and test, or replace them.
      directory: TFDS's data_dir; None means its default (TFDS_DATA_DIR).

    Raises:
      FirthError: TFDS is not installed, has no such dataset or feature, or cannot download it.
    """
    builder = _open(name, directory)
    features = dict(sorted(builder.info.features.items()))
    glue = GLUE.get(re.split("[/:]", name)[1]) if name.startswith("glue/") else None
    if glue:
        text = text or _GLUE_TEXTS.get(glue.name, glue.text_columns)
        label, metrics = label or "label", metrics or glue.metrics
    elif not (text and label):
        keys = builder.info.supervised_keys or ()
        if len(keys) != 2 or not all(isinstance(key, str) for key in keys):
            raise FirthError(f"tfds:{name}: give text= and label=; there are: {listed(features)}")
        text, label = text or keys[0], label or keys[1]
    present(f"tfds:{name}", [label], (), features)
    splits = {split.replace("validation", "dev"): split for split in builder.info.splits}
    splits = {name: s for name, s in splits.items() if re.match(r"(train|dev|test)(_|$)", name)}
    files = splits | dict(files)
    names = getattr(features[label], "names", None) or ()
    kind, labels = "classification" if names else "regression", glue.labels if glue else names
    task = make_task(f"tfds:{name}", kind, text, label, labels, metrics, files)
    return replace(
        task, tfds=name, **({"names": glue.names, "limits": glue.limits} if glue else {})
    )


def read_tfds(
    name: str,
    split: str,
    required: Sequence[str],
    optional: Sequence[str] = (),
    directory: str | None = None,
) -> Table:
    """Read features of one split of a TFDS dataset as a table; downloads a missing dataset.

    TFDS shuffles examples when it writes them. If they have a number `idx` (GLUE), the table sorts
    them by it, as a submission needs. A class label becomes its name, or None for -1 (no label).

    Raises:
      FirthError: TFDS is not installed, or has no such dataset, split or feature.
    """
    builder = _open(name, directory)
    features = dict(sorted(builder.info.features.items()))
    find_split(builder, split)
    wanted = present(f"tfds:{name}:{split}", required, optional, features)
    columns, rows = {column: [] for column in wanted}, []
    for number, record in enumerate(read_examples(builder, split)):
        index = record.get("idx")
        rows.append(int(index) if isinstance(index, np.integer) else number)
        for column, values in columns.items():
            values.append(_value(record[column], features[column]))
    order = np.argsort(rows, kind="stable")
    columns = {column: [values[i] for i in order] for column, values in columns.items()}
    return Table(f"tfds:{name}:{split}", columns, np.array(rows, np.int64)[order])


def _open(name: str, directory: str | None):
    return open_dataset(name, directory, download="yes", how="data.dir")


def _value(value, feature):
    if isinstance(value, bytes):
        return value.decode()
    names = getattr(feature, "names", None)
    if names:
        return names[value] if value >= 0 else None
    return value.tolist()
