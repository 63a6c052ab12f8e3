"""Write models as Firth directories and published ones: complete, or not at all."""

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from flax.traverse_util import flatten_dict

from firth.errors import FirthError
from firth.storage.local import read_json, sha256
from firth.weights.card import model_card
from firth.weights.config import read_config, write_config
from firth.weights.description import NAME, to_json
from firth.weights.elmo.exchange import OPTIONS, write_elmo
from firth.weights.names import canonical, name_table, tensor_for, write_tensors
from firth.weights.read import INDEX, VOCABULARIES, WEIGHTS, Saved

COMPANIONS = (  # files of a model directory that are copied unchanged
    *VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "README.md",
)
# In safetensors -> in numpy; only buffers are integers or booleans.
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "I64": "int64"}
DTYPES |= {"U8": "uint8", "BOOL": "bool"}


def write_firth(directory, saved: Saved, overwrite: bool = False):
    """Write a Firth directory: model.json, params.safetensors and the tokenizer's files.

    Raises FirthError if `directory` is not empty and `overwrite` is not set.
    """
    with new_directory(directory, overwrite) as folder:
        file = folder / "params.safetensors"
        _write_safetensors(file, flatten_dict(saved.params, sep="/"), metadata=None)
        _copy_companions(saved, folder)
        more = {"sha256": sha256(file)}
        if saved.published:
            more["published"] = saved.published
        text = json.dumps(to_json(saved, **more), indent=1) + "\n"
        (folder / NAME).write_text(text, encoding="utf-8")


def write_published(directory, saved: Saved, overwrite: bool = False, card: str | None = None):
    """Write the published layout, which transformers loads; for ELMo that of its released code.

    An unchanged model is written as the files that it was published as, byte for byte. `card` is
    the text of its README.md; without it the model keeps its own, or gets one.
    Raises FirthError if `directory` is not empty and `overwrite` is not set.
    """
    with new_directory(directory, overwrite) as folder:
        if saved.spec["family"] == "elmo":
            options = (saved.published or {}).get("options")
            write_elmo(folder, saved.spec, saved.heads, saved.params, options)
            _copy_companions(saved, folder)
            return
        if _is_unchanged(saved):
            _write_unchanged(folder, saved)
            _copy_companions(saved, folder)
        else:
            _write_anew(folder, saved)
            _copy_companions(saved, folder)
            _write_longest(folder, saved)
        if card is None and not (folder / "README.md").exists():
            card = model_card(saved)
        if card is not None:
            (folder / "README.md").write_text(card, encoding="utf-8")


def _write_anew(folder: Path, saved: Saved):
    """Write config.json and model.safetensors as current transformers does, in float32."""
    flat = flatten_dict(saved.params, sep="/")
    tensors = write_tensors(flat, saved.spec, saved.heads)
    _write_safetensors(folder / WEIGHTS, tensors, metadata={"format": "pt"})
    base = json.loads(saved.published["config"]) if saved.published else {}
    tokenizer = saved.tokenizer()
    config = write_config(saved, base, tokenizer and tokenizer.pad_id)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def _is_unchanged(saved: Saved) -> bool:
    """Whether the files that the model was published as can hold exactly this model."""
    if not saved.published or not saved.published.get("files"):
        return False
    try:
        return _same_description(saved) and _same_tensors(saved)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise FirthError(
            f"{saved.source / NAME}: the section `published` is damaged; remove it to have "
            "the model written anew"
        ) from None


def _same_description(saved: Saved) -> bool:
    """Whether the config.json says the same. It does not say whether there is a pooler."""
    before = read_config(json.loads(saved.published["config"]), "published")
    regression, several = (
        kind and "classifier" in saved.heads for kind in (before.regression, before.multilabel)
    )
    return (
        before.spec | {"pooler": None} == saved.spec | {"pooler": None}
        and before.num_labels == saved.num_labels
        and before.labels == saved.labels
        and (regression, several) == (saved.regression, saved.multilabel)
    )


def _same_tensors(saved: Saved) -> bool:
    """Whether the headers name every parameter, with its shape and a dtype that can hold it."""
    flat = flatten_dict(saved.params, sep="/")
    table = name_table(saved.spec, saved.heads)
    names = set()
    for filename, header in saved.published["files"].items():
        if Path(filename).name != filename:
            raise ValueError(filename)
        for name, dtype, shape in _entries(header):
            array = tensor_for(name, flat, saved.spec, table)
            if array is None or list(array.shape) != shape or not _exact(array, dtype):
                return False
            names.add(canonical(name, saved.spec, table))
    return {table[name].path for name in names if name in table} == set(flat)


def _write_unchanged(folder: Path, saved: Saved):
    """Write the files that the model was published as."""
    flat = flatten_dict(saved.params, sep="/")
    table = name_table(saved.spec, saved.heads)
    for filename, header in saved.published["files"].items():
        with (folder / filename).open("wb") as file:
            text = header.encode()
            file.write(len(text).to_bytes(8, "little") + text)
            for name, dtype, _ in _entries(header):
                array = tensor_for(name, flat, saved.spec, table)
                file.write(array.astype(dtype, order="C").tobytes())
    for name, text in (("config.json", "config"), (INDEX, "index")):
        if text in saved.published:
            (folder / name).write_bytes(saved.published[text].encode())


def _entries(header: str) -> list[tuple[str, np.dtype, list[int]]]:
    """(name, dtype, shape) of the tensors of a safetensors header, in the order of their bytes."""
    entries = json.loads(header)
    entries.pop("__metadata__", None)
    ordered = sorted(entries.items(), key=lambda entry: entry[1]["data_offsets"])
    return [(name, np.dtype(DTYPES[entry["dtype"]]), entry["shape"]) for name, entry in ordered]


def _exact(array: np.ndarray, dtype: np.dtype) -> bool:
    """Whether `array` survives being stored as `dtype`."""
    if array.dtype == dtype:
        return True
    return np.array_equal(array.astype(dtype).astype(array.dtype), array, equal_nan=True)


def _write_safetensors(path: Path, tensors: dict, metadata):
    whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    path.touch()
    mode = path.stat().st_mode  # the user's default; the library's files are for the owner alone
    try:
        safetensors.numpy.save_file(whole, path, metadata)
        path.chmod(mode)
    except safetensors.SafetensorError as error:  # a full disk, for instance
        raise OSError(errno.EIO, str(error), str(path)) from None


def _copy_companions(saved: Saved, folder: Path):
    for place in {saved.tokenizer_path, saved.source} - {None}:
        for pattern in COMPANIONS:
            for file in place.glob(pattern):
                if file.is_file():
                    shutil.copyfile(file, folder / file.name)


def check_directory(directory, overwrite: bool = False):
    """Raise FirthError unless a model may be written to `directory`: a new one, or an empty one.

    With `overwrite` it may hold a model directory, and nothing else.
    """
    target = Path(os.path.realpath(directory))
    if target.exists() and not target.is_dir():
        raise FirthError(f"{directory} is a file; expected the name of a new directory")
    if target.is_dir() and any(target.iterdir()):
        if not overwrite:
            raise FirthError(f"{directory} is not empty; choose another, or overwrite it")
        is_model = any((target / name).is_file() for name in (NAME, "config.json", OPTIONS))
        if not is_model or not all(entry.is_file() for entry in target.iterdir()):
            raise FirthError(
                f"{directory} is not only a model directory (it has folders, or no config.json); "
                "it is not overwritten"
            )
    above = next(folder for folder in target.parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise FirthError(
            f"{directory} cannot be written: {above} is no folder with leave to write; choose "
            "another"
        )


def _write_longest(folder: Path, saved: Saved):
    """Write `model_max_length` of the tokenizer, without which transformers cannot truncate."""
    path = folder / "tokenizer_config.json"
    if saved.tokenizer_path is None or "max_length" not in saved.spec:
        return
    config = read_json(path) if path.is_file() else {}
    longest = saved.spec["max_length"]
    config["model_max_length"] = min(config.get("model_max_length") or longest, longest)
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextlib.contextmanager
def new_directory(directory, overwrite: bool = False):
    """Yield a temporary directory that replaces `directory` if the block succeeds.

    Raises FirthError as `check_directory` does, and if it cannot be written.
    """
    check_directory(directory, overwrite)
    target = Path(os.path.realpath(directory))
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    discarded = target.with_name(f".{target.name}.{os.getpid()}.old")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if target.exists():
            os.rename(target, discarded)
        try:
            os.rename(temporary, target)
        except OSError:
            if discarded.exists():
                os.rename(discarded, target)
            raise
    except OSError as error:
        raise FirthError(f"{directory} cannot be written: {error.strerror or error}") from None
    finally:
        for leftover in (temporary, discarded):
            shutil.rmtree(leftover, ignore_errors=True)
