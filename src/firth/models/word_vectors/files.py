"""Word vectors in a folder: model.json and word_vectors.safetensors. V words, D dimensions."""

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from firth.errors import FirthError
from firth.storage.local import read_json, sha256, write_text

FAMILIES, TABLES, NAME = ("word2vec", "glove"), "word_vectors.safetensors", "model.json"
VERSION = 1


class WordVectors(NamedTuple):
    """ids: int32 [V], the tokenizer's id of each word, most frequent first where counts are known.

    vectors: float32 [V, D]. counts: int64 [V], how often each word occurred, or None.
    """

    ids: np.ndarray
    vectors: np.ndarray
    counts: np.ndarray | None = None


def is_word_vectors(folder: str | os.PathLike) -> bool:
    """Whether a folder holds word vectors."""
    return (Path(folder) / TABLES).is_file()


def save(words: WordVectors, folder: Path, **spec) -> None:
    """Write word vectors; `spec` says more in model.json. The tables appear whole or not."""
    size, dim = words.vectors.shape
    tensors = {k: np.ascontiguousarray(v) for k, v in words._asdict().items() if v is not None}
    spec = {"family": FAMILIES[0]} | spec | {"words": size, "dim": dim}
    write_tensors(tensors, folder, TABLES, NAME, {"firth": VERSION, "model": spec})


def write_tensors(tensors: dict, folder: Path, tables: str, named: str, said: dict) -> None:
    """Write tensors to the file `tables`, and `said` with their sha256 to the JSON file `named`.

    Each file is replaced whole, the JSON file first.
    """
    temporary = folder / f".{tables}.{os.getpid()}"
    try:
        safetensors.numpy.save_file(tensors, temporary)
        whole = said | {"sha256": sha256(temporary)}
        write_text(folder / named, json.dumps(whole, indent=2) + "\n")
        shutil.copymode(folder / named, temporary)  # safetensors lets no one else read
        os.replace(temporary, folder / tables)
    finally:
        temporary.unlink(missing_ok=True)


def read_tensors(path: Path, digest: str, advice: str) -> dict[str, np.ndarray]:
    """The tensors of a file; FirthError, ending in `advice`, if its sha256 is not `digest`."""
    try:
        if sha256(path) != digest:
            raise FirthError(f"{path} is damaged: its sha256 is not the one recorded; {advice}")
        return safetensors.numpy.load_file(path)
    except OSError as error:
        raise FirthError(f"cannot read {path}: {error.strerror or error}; {advice}") from None
    except safetensors.SafetensorError as error:
        raise FirthError(f"{path} is damaged: {error}; {advice}") from None


def load(folder: str | os.PathLike) -> tuple[WordVectors, dict]:
    """(vectors, what model.json says of them). Raises FirthError for what is missing or damaged."""
    folder = Path(folder)
    whole = read_json(folder / NAME)
    spec = whole.get("model")
    of_words = isinstance(spec, dict) and spec.get("family") in FAMILIES
    if whole.get("firth") != VERSION or not of_words:
        raise FirthError(f"{folder / NAME} does not describe word vectors of version {VERSION}")
    advice = "copy it again, or train the model again"
    tensors = read_tensors(folder / TABLES, whole.get("sha256"), advice)
    shape = tensors["vectors"].shape if "vectors" in tensors else ()
    if (
        shape != (spec.get("words"), spec.get("dim"))
        or tensors.get("ids", shape).shape != shape[:1]
    ):
        raise FirthError(f"{folder / TABLES} does not fit {NAME}; {advice}")
    return WordVectors(tensors["ids"], tensors["vectors"], tensors.get("counts")), spec
