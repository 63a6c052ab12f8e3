"""Files: read with errors that name the place, written whole or not at all, hashed, locked."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from firth.errors import FirthError


def read_json(path: Path, kind: type = dict):
    """The JSON object (or `list`) in a file; FirthError naming the file, and where it breaks."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise FirthError(f"{path}:{error.lineno}: not valid JSON ({error.msg})") from None
    except UnicodeDecodeError as error:
        raise FirthError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise FirthError(f"cannot read {path}: {error.strerror}") from None
    if not isinstance(value, kind):
        name = "object" if kind is dict else kind.__name__
        raise FirthError(f"{path}: expected a JSON {name}, found {type(value).__name__}")
    return value


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping) -> None:
    """Write a JSON file, keys sorted, whole or not at all."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    write_text(path, text + "\n")


@contextlib.contextmanager
def held(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock file; the kernel lets go of it however the process ends.

    Raises FirthError with the text `busy` where another process holds it.
    """
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FirthError(busy) from None
        yield


def digests(directory: Path) -> dict[str, str]:
    """{relative file name: SHA-256} of every file under a directory."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(directory))] = sha256(path)
    return found


def sha256(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal_text(found: dict[str, str]) -> str:
    """What vouches for files with these digests: JSON, and under "" the digest of all the rest."""
    return json.dumps(found | {"": _digest(found)}, indent=1)


def read_seal(text: str | bytes) -> dict[str, str]:
    """{file name: SHA-256} of a seal; ValueError where it is damaged itself."""
    sealed = json.loads(text)
    if not isinstance(sealed, dict) or sealed.pop("", None) not in (None, _digest(sealed)):
        raise ValueError("the seal does not match its own checksum")
    return sealed


def _digest(found: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
