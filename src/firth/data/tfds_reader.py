"""Open datasets of TensorFlow Datasets and read them in an order that never changes.

TFDS reads a dataset that is prepared in its data_dir by name alone, without the code that made it.
A missing dataset is downloaded only if the caller allows it.
"""

import hashlib
import logging
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from firth.data.tensorflow import import_tensorflow
from firth.errors import FirthError

log = logging.getLogger(__name__)
_NAME = re.compile(r"tfds:([^:]+(?::\d+\.\d+\.\d+)?):?(.*)")  # name[:version][:split]


def is_name(text: str) -> bool:
    """Whether this reads `tfds:NAME[:version][:split]`."""
    return _NAME.fullmatch(text) is not None


def open_dataset(name: str, directory: str | None = None, download: str = "", how: str = ""):
    """The builder of a prepared dataset.

    Args:
      name: as TFDS spells it, "imdb_reviews", "glue/sst2", "mine:1.0.0".
      directory: TFDS's data_dir; None means its default (TFDS_DATA_DIR).
      download: "yes", or the option that allows a download, for the error message.
      how: the option that sets `directory`, for error messages.

    Raises:
      FirthError: TFDS is not installed, knows no such dataset, or lacks its files.
    """
    try:
        import_tensorflow()
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise FirthError(
            f"tfds:{name} needs TensorFlow Datasets, which cannot be imported ({error}); "
            'pip install "firth[tf]", or give files'
        ) from None
    place = directory or f"TFDS's own folder ({tfds.core.constants.DATA_DIR})"
    try:
        builder = tfds.builder(name, data_dir=directory)
    except tfds.core.DatasetNotFoundError:
        raise FirthError(
            f"tfds:{name}: TFDS knows no such dataset, and none lies prepared in {place}; name the "
            f"folder of your own one with {how}, or in TFDS_DATA_DIR"
        ) from None
    except Exception as error:  # an unknown config or version, a broken builder: many kinds
        raise FirthError(f"tfds:{name}: {_first_line(error)}") from error
    if builder.is_prepared():
        return builder
    command = f"`tfds build {name}" + (f" --data_dir {directory}`" if directory else "`")
    if download != "yes":
        raise FirthError(
            f"tfds:{name} is not in {place}, and making it may need a download; run {command} "
            f"first, or allow it with {download}"
        )
    wait = "where there is no network, TFDS tries for some minutes"
    log.info("tfds:%s is not in %s; downloading it (%s)", name, place, wait)
    try:
        builder.download_and_prepare()
    except Exception as error:  # no network, no space, a licence to be agreed to: many kinds
        raise FirthError(
            f"tfds:{name} could not be downloaded into {place} ({_first_line(error)}); run "
            f"{command} where there is a network, copy that folder here, and name it with {how}"
        ) from error
    return builder


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def find_split(builder, split: str):
    """TFDS's info on a split, "train" or "train[:50%]"; FirthError if there is none."""
    splits = builder.info.splits
    try:
        return splits[split]
    except (KeyError, ValueError) as error:
        raise FirthError(
            f"tfds:{builder.info.full_name}: no split {split!r}; there are: "
            f"{', '.join(map(repr, splits)) or 'none'} ({_first_line(error)})"
        ) from None


def read_examples(builder, split: str) -> Iterator[dict]:
    """The examples of a split as numpy arrays, file by file in the order of writing."""
    import tensorflow_datasets as tfds

    config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    dataset = builder.as_dataset(split=split, shuffle_files=False, read_config=config)
    return iter(tfds.as_numpy(dataset))


class Texts(NamedTuple):
    """A split with texts: its full name, its approximate size in bytes, a version that changes with
    the data, and TFDS's data_dir (None: its default)."""

    name: str
    bytes: int
    version: str
    directory: str | None


def find_texts(name: str, directory: str | None = None, download: bool = False) -> Texts:
    """Look up `tfds:NAME[:version][:split]`; the default split is "train".

    Raises FirthError as `open_dataset` does, and for a missing split.
    """
    dataset, split = _NAME.fullmatch(name).groups()
    allow = "yes" if download else "--tfds-download"
    builder = open_dataset(dataset, directory, allow, how="--tfds-dir")
    info, split = builder.info, split or "train"
    examples = find_split(builder, split).num_examples
    whole = sum(part.num_examples for part in info.splits.values())
    size = sum(int(part.num_bytes) for part in info.splits.values()) * examples // max(whole, 1)
    file = builder.data_path / "dataset_info.json"
    content = hashlib.sha256(file.read_bytes()).hexdigest()
    folder, _, version = info.full_name.rpartition("/")
    full = f"tfds:{folder}:{version}:{split}"
    return Texts(full, size, f"{content} {file.stat().mtime}", directory)


def read_texts(texts: Texts, field: str, errors: str) -> Iterator[tuple[str, int]]:
    """(the feature `field`, bytes of the split read so far) of every example, in order.

    Raises FirthError for a feature that is missing or not text, and for bytes that are not UTF-8
    (unless `errors` is "replace").
    """
    dataset, split = _NAME.fullmatch(texts.name).groups()
    builder = open_dataset(dataset, texts.directory, "--tfds-download", how="--tfds-dir")
    features = builder.info.features
    if field not in features:
        names = ", ".join(sorted(features))
        raise FirthError(
            f"{texts.name}: no feature {field!r}; the features are {names}; choose one with "
            "--text-field"
        )
    feature = features[field]
    if feature.shape != () or np.dtype(feature.np_dtype) != object:
        raise FirthError(f"{texts.name}: feature {field!r} is not text but {feature}")
    count = max(find_split(builder, split).num_examples, 1)
    for number, example in enumerate(read_examples(builder, split), 1):
        try:
            text = example[field].decode("utf-8", errors)
        except UnicodeDecodeError as error:
            byte = f"byte 0x{error.object[error.start]:02x} at offset {error.start:,}"
            raise FirthError(
                f"{texts.name}: example {number} is not UTF-8: {byte}; replace such bytes with "
                "--errors=replace"
            ) from None
        yield text, texts.bytes * number // count
