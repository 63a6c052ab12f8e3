"""Named datasets of TensorFlow Datasets as labelled tasks; TensorFlow is imported on first use."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from firth.data.tables import Table, listed, present
from firth.data.tasks import GLUE, Task, make_task
from firth.errors import FirthError

# Where the features of TFDS's glue are not called like the columns of the TSV files.
_GLUE_TEXTS = {"mrpc": ("sentence1", "sentence2"), "mnli": ("premise", "hypothesis")}


def tfds_task(
    name: str,
    text: str | Sequence[str] = (),
    label: str = "",
    metrics: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    directory: str | None = None,
) -> Task:
    """A task over a TFDS dataset; `glue/NAME` are the GLUE tasks, with their labels and metrics.

    Args:
      name: as TFDS spells it, "imdb_reviews" or "glue/sst2".
      text, label: its features; by default those that the dataset declares as supervised.
      metrics: () means GLUE's own, or else accuracy, or Pearson and Spearman.
      files: split -> TFDS split ("train[:90%]" works); default train, dev=validation and test.
      directory: TFDS's data_dir; None means its default (TFDS_DATA_DIR).

    Raises:
      FirthError: TFDS is not installed, or has no such dataset or feature.
    """
    _, builder = _builder(name, directory)
    features = builder.info.features
    glue = GLUE.get(name.removeprefix("glue/").split(":")[0]) if name.startswith("glue/") else None
    if glue:
        text = text or _GLUE_TEXTS.get(glue.name, glue.text_columns)
        label, metrics = label or "label", metrics or glue.metrics
    elif not (text and label):
        keys = builder.info.supervised_keys or ()
        if len(keys) != 2 or not all(isinstance(key, str) for key in keys):
            raise FirthError(f"tfds:{name}: give text= and label=; there are {listed(features)}")
        text, label = text or keys[0], label or keys[1]
    present(f"tfds:{name}", [label], (), features)
    if files is None:
        ours = {split.replace("validation", "dev"): split for split in builder.info.splits}
        files = {s: theirs for s, theirs in ours.items() if re.match(r"(train|dev|test)(_|$)", s)}
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
    """Read features of one split of a TFDS dataset as a table, downloading it on the first use.

    TFDS shuffles the examples as it writes them; where they carry their number `idx` (GLUE) they
    are put back in that order, which a submission needs. Class labels come back as their names,
    or None where TFDS has none (-1).

    Raises:
      FirthError: TFDS is not installed, or has no such dataset, split or feature.
    """
    tfds, builder = _builder(name, directory)
    builder.download_and_prepare()
    splits, features = builder.info.splits, builder.info.features
    if re.split(r"[\[+]", split)[0] not in splits:
        raise FirthError(f"tfds:{name}: no split {split!r}; there are: {listed(splits)}")
    wanted = present(f"tfds:{name}:{split}", required, optional, features)
    columns, rows = {column: [] for column in wanted}, []
    for number, record in enumerate(tfds.as_numpy(builder.as_dataset(split=split))):
        rows.append(int(record.get("idx", number)))
        for column, values in columns.items():
            values.append(_value(record[column], features[column]))
    order = np.argsort(rows, kind="stable")
    columns = {column: [values[i] for i in order] for column, values in columns.items()}
    return Table(f"tfds:{name}:{split}", columns, np.array(rows, np.int64)[order])


def _builder(name: str, directory: str | None):
    """(the module, the builder called `name`)."""
    try:
        import tensorflow as tf
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise FirthError(
            f"tfds:{name} needs TensorFlow Datasets, which cannot be imported ({error});"
            ' pip install "firth[tf]", or give files with train=, dev= and test='
        ) from None
    # The accelerator belongs to JAX: without this TensorFlow would take all of its memory.
    tf.config.set_visible_devices([], "GPU")
    try:
        return tfds, tfds.builder(name, data_dir=directory)
    except tfds.core.DatasetNotFoundError as error:
        reason = str(error).strip().splitlines()[0]
        raise FirthError(f"tfds:{name}: TFDS knows no such dataset ({reason})") from None


def _value(value, feature):
    if isinstance(value, bytes):
        return value.decode()
    names = getattr(feature, "names", None)
    if names:
        return names[value] if value >= 0 else None
    return value.tolist()
