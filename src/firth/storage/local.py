"""Local files: reading with clear errors, atomic writing, checksums and locks."""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from firth.errors import FirthError


def read_json(path: Path, kind: type = dict):
    """The JSON object (or `list`) in a file; FirthError names the file and the line of an error."""
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
    """Write a text file as UTF-8, atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: a reader, or a crash, sees the old file or the new one.

    An OSError names this file, not the temporary one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if error.errno is not None:
            error.filename, error.filename2 = str(path), None
        raise


def write_json(path: Path, value: Mapping) -> None:
    """Write a JSON file with sorted keys, atomically."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    write_text(path, text + "\n")


@contextlib.contextmanager
def file_lock(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock on a file; the kernel releases it however the process ends.

    Raises FirthError with the text `busy` if another process holds the lock.
    """
    with path.open("w") as lock:
        # A reader that asks `is_locked` holds the lock for microseconds, so try twice.
        if not _locks(lock, fcntl.LOCK_EX) and not _locks(lock, fcntl.LOCK_EX, after=0.05):
            raise FirthError(busy)
        yield


def is_locked(path: Path) -> bool:
    """Whether a process of this machine holds `file_lock` on a file; False if there is no file."""
    try:
        with path.open() as lock:
            return not _locks(lock, fcntl.LOCK_SH)
    except OSError:
        return False


def _locks(lock, kind: int, after: float = 0.0) -> bool:
    """Lock an open file, unless another process has locked it; returns whether it did."""
    time.sleep(after)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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


def checksums_text(digests: dict[str, str]) -> str:
    """The text of a checksum file: digests by file name as JSON, and under "" their own digest."""
    return json.dumps(digests | {"": _digest(digests)}, indent=1)


def read_checksums(text: str | bytes) -> dict[str, str]:
    """{file name: SHA-256} of a checksum file; raises ValueError if its text is damaged."""
    digests = json.loads(text)
    if not isinstance(digests, dict) or digests.pop("", None) not in (None, _digest(digests)):
        raise ValueError("the checksum file does not match its own checksum")
    return digests


def _digest(digests: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()
