"""Compiled programs in the user's cache, a file each: the next process need not compile them.

A file holds the SHA-256 of the rest, which is JAX's form of a compiled program and what is rounded
for it. It is written to another name first and renamed, so processes may share the folder and end
at any time. A file that is damaged, or that JAX cannot load, counts as absent.
"""

import contextlib
import hashlib
import os
import pickle
from collections.abc import Sequence
from pathlib import Path

from jax.experimental import serialize_executable

from firth.storage.local import write_bytes
from firth.storage.remote import cache_root

FILES = 512  # the newest that stay, half a megabyte each
DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Where they are."""
    return cache_root() / "compiled"


def read(key: str, devices: list) -> tuple | None:
    """(program, its roundings) of a key, ready to call on these devices, or None."""
    path = folder() / key
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
        return None
    try:
        form, roundings = pickle.loads(data[DIGEST:])
        program = serialize_executable.deserialize_and_load(*form, execution_devices=devices)
    except Exception:  # whatever JAX or the device's runtime raises: compile it again
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return program, roundings


def write(key: str, program, roundings: Sequence) -> None:
    """Keep a program, if the platform can and the folder can be written."""
    try:
        payload = pickle.dumps((serialize_executable.serialize(program), roundings))
    except Exception:  # a platform whose programs cannot be serialised
        return
    with contextlib.suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        write_bytes(folder() / key, hashlib.sha256(payload).digest() + payload)
        _drop_oldest()


def _drop_oldest():
    files = [path for path in folder().iterdir() if not path.name.startswith(".")]
    for path in sorted(files, key=lambda path: path.stat().st_mtime)[:-FILES]:
        path.unlink(missing_ok=True)
