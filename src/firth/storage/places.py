"""Local folders and files by name: their absolute names, and what a folder holds."""

import json
import os
from pathlib import Path

from firth.storage.remote import is_url

WHOLE = ("ngram.safetensors", "logistic.safetensors", "word_vectors.safetensors")
WHOLE += ("progress.checkpoint",)
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


def absolute(place: str) -> str:
    """The absolute name of a local place that exists, so that it is found from any folder.

    A URL loses its final /. Any other text stays as it is: hf:org/name, module:Name, or a place
    that does not exist.
    """
    if is_url(place):
        return place.rstrip("/")
    found = os.path.expanduser(place)
    return os.path.abspath(found) if place and os.path.exists(found) else place


def same(old: str, new: str) -> bool:
    """Whether two names mean one place: relative or absolute, `store` or `store/`, or a link.

    A place that is gone and has the name of a new one counts as moved.
    """
    old, new = absolute(str(old)), absolute(str(new))
    if old == new or not (old and new) or is_url(old) or is_url(new):
        return old == new
    if os.path.exists(old):
        return os.path.realpath(old) == os.path.realpath(new)
    return os.path.exists(new) and os.path.basename(old.rstrip("/")) == os.path.basename(new)


def seed_runs(folder: Path) -> list[str]:
    """The runs in a folder of several seeds, by number; [] for another folder."""
    found = [path.parent for path in folder.glob("seed-*/config.json")]
    return sorted((str(path) for path in found), key=lambda name: (len(name), name))


def has_checkpoint(workdir: Path) -> bool:
    """Whether a workdir holds any checkpoint, n-grams or word vectors: a run goes on there."""
    return any((workdir / name).is_file() for name in WHOLE) or any(
        (workdir / "checkpoints").glob("[0-9]*")
    )


def kind_of(folder: str | os.PathLike) -> str:
    """What a local folder is, in words; "" if it is nothing of Firth's."""
    folder = Path(folder)
    if not folder.is_dir():
        return ""
    config, manifest = (_read(folder / name) for name in ("config.json", "manifest.json"))
    if {"model", "data"} <= config.keys():
        return "the workdir of a run"
    if runs := seed_runs(folder):
        return f"the folder of several seeds; its runs are {', '.join(runs)}"
    if manifest.get("format") == "firth corpus store":
        return "a corpus store"
    if "model_type" in config or any(folder.glob("*.safetensors")):
        return "a model directory"
    return "a tokenizer" if any(any(folder.glob(name)) for name in TOKENIZERS) else ""


def instead(folder: str | os.PathLike) -> str:
    """ "; it is a corpus store" for a folder of a known kind, to end an error with; else ""."""
    kind = kind_of(folder)
    return f"; it is {kind}" if kind else ""


def _read(path: Path) -> dict:
    """The JSON object in a file; {} if there is none that can be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
