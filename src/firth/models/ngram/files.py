"""An n-gram model in a folder: model.json and the tables, ngram.safetensors."""

import json
import os
import shutil
from pathlib import Path

import safetensors
import safetensors.numpy

from firth.errors import FirthError
from firth.models.ngram.model import Ngram
from firth.storage.local import read_json, sha256, write_text

FAMILY, TABLES, NAME = "ngram", "ngram.safetensors", "model.json"
VERSION = 1


def is_ngram(folder: str | os.PathLike) -> bool:
    """Whether a folder holds an n-gram model."""
    return (Path(folder) / TABLES).is_file()


def save(model: Ngram, folder: Path, **spec) -> None:
    """Write a model; `spec` says more about it in model.json. The tables appear whole or not."""
    tensors = {}
    for n in range(model.order):
        tensors[f"keys.{n + 1}"] = model.keys[n]
        tensors[f"log_probs.{n + 1}"] = model.log_probs[n]
        if n + 1 < model.order:
            tensors[f"backoffs.{n + 1}"] = model.backoffs[n]
    spec = dict(family=FAMILY, order=model.order, vocab_size=model.size) | spec
    temporary = folder / f".{TABLES}.{os.getpid()}"
    try:
        safetensors.numpy.save_file(tensors, temporary)
        whole = {"firth": VERSION, "model": spec, "sha256": sha256(temporary)}
        write_text(folder / NAME, json.dumps(whole, indent=2) + "\n")
        shutil.copymode(folder / NAME, temporary)  # safetensors gives no one else the right to read
        os.replace(temporary, folder / TABLES)
    finally:
        temporary.unlink(missing_ok=True)


def load(folder: str | os.PathLike) -> tuple[Ngram, dict]:
    """(model, what model.json says of it). Raises FirthError naming what is missing or damaged."""
    folder = Path(folder)
    whole = read_json(folder / NAME)
    spec = whole.get("model")
    if whole.get("firth") != VERSION or not isinstance(spec, dict) or spec.get("family") != FAMILY:
        raise FirthError(f"{folder / NAME} does not describe an n-gram model of version {VERSION}")
    if sha256(folder / TABLES) != whole.get("sha256"):
        raise FirthError(
            f"{folder / TABLES} is damaged: its sha256 is not that in {NAME}; copy it again, or "
            "train the model again"
        )
    try:
        tensors = safetensors.numpy.load_file(folder / TABLES)
        order = spec["order"]
        parts = [
            tuple(tensors[f"{name}.{n}"] for n in range(1, last + 1))
            for name, last in (("keys", order), ("log_probs", order), ("backoffs", order - 1))
        ]
        return Ngram(spec["vocab_size"], *parts), spec
    except (safetensors.SafetensorError, KeyError, TypeError) as error:
        raise FirthError(f"{folder / TABLES} is damaged: {error}") from None
