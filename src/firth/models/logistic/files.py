"""A logistic regression in a folder: model.json, and logistic.safetensors names and weights."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from firth.errors import FirthError
from firth.models.logistic.features import Features
from firth.models.logistic.model import Logistic
from firth.storage.local import read_json, sha256, write_text

FAMILY, TABLES, NAME = "logistic", "logistic.safetensors", "model.json"
VERSION = 1


def is_logistic(folder: str | os.PathLike) -> bool:
    """Whether a folder holds a logistic regression."""
    return (Path(folder) / TABLES).is_file()


def save(model: Logistic, folder: Path, best: str = "", **spec) -> None:
    """Write a model. The weights appear whole or not.

    `best` is the metric that chose it, and `spec` says more about it in model.json.
    """
    names = "\n".join(model.names).encode()
    tensors = {
        "names": np.frombuffer(names, np.uint8),
        "weights": model.weights,
        "biases": model.biases,
    }
    if model.idf is not None:
        tensors["idf"] = model.idf
    spec = dict(family=FAMILY, texts=model.texts, weighting=model.weighting) | spec
    spec["features"] = dataclasses.asdict(model.features)
    temporary = folder / f".{TABLES}.{os.getpid()}"
    try:
        safetensors.numpy.save_file(tensors, temporary)
        whole = {"firth": VERSION, "model": spec, "labels": model.labels, "best": best}
        whole["sha256"] = sha256(temporary)
        write_text(folder / NAME, json.dumps(whole, indent=2) + "\n")
        shutil.copymode(folder / NAME, temporary)  # safetensors gives no one else the right to read
        os.replace(temporary, folder / TABLES)
    finally:
        temporary.unlink(missing_ok=True)


def load(folder: str | os.PathLike) -> Logistic:
    """The model of a folder. Raises FirthError naming what is missing or damaged."""
    folder = Path(folder)
    whole = read_json(folder / NAME)
    spec = whole.get("model")
    if whole.get("firth") != VERSION or not isinstance(spec, dict) or spec.get("family") != FAMILY:
        raise FirthError(
            f"{folder / NAME} does not describe a logistic regression of version {VERSION}"
        )
    if sha256(folder / TABLES) != whole.get("sha256"):
        raise FirthError(
            f"{folder / TABLES} is damaged: its sha256 is not that in {NAME}; copy it again, or "
            "train the model again"
        )
    try:
        tensors = safetensors.numpy.load_file(folder / TABLES)
        return Logistic(
            features=Features(**spec["features"]),
            texts=spec["texts"],
            weighting=spec["weighting"],
            names=tensors["names"].tobytes().decode().split("\n"),
            labels=tuple(whole["labels"]),
            weights=tensors["weights"],
            biases=tensors["biases"],
            idf=tensors.get("idf"),
        )
    except (safetensors.SafetensorError, KeyError, TypeError) as error:
        raise FirthError(f"{folder / NAME} is damaged: {error!r}") from None
