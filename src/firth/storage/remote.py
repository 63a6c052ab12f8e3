"""Local paths and URLs (gs://, s3://, memory://, ...) by one small interface, fsspec underneath.

What is remote is copied, never worked on in place: files come to local disk with `download`, go
away with `upload`, and small ones are read and written whole. An object store shows a file once it
is complete; who writes several, writes last the one that vouches for the others.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from firth.errors import FirthError
from firth.storage import local

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_CHUNK = 16 << 20  # bytes of one request


class DamagedError(FirthError):
    """A file at a URL is not the one that was written there."""


def is_url(path: str | os.PathLike) -> bool:
    """Whether a path names something remote, as in gs://bucket/store."""
    return isinstance(path, str) and _URL.match(path) is not None


def join(path: str | os.PathLike, name: str) -> str | Path:
    """What is called `name` inside a local folder or a URL; of the kind of `path`."""
    return f"{path.rstrip('/')}/{name}" if is_url(path) else Path(path) / name


def cache_folder(kind: str, url: str, key: str = "") -> Path:
    """The folder that holds local copies of what is at a URL, made if need be.

    Under $FIRTH_CACHE, else ~/.cache/firth; named after the URL and `key`, else a hash of it.
    """
    root = Path(os.environ.get("FIRTH_CACHE") or Path.home() / ".cache" / "firth").absolute()
    key = key or hashlib.sha256(url.rstrip("/").encode()).hexdigest()
    name = re.sub(r"[^\w.-]", "_", url.rstrip("/").rsplit("/", 1)[-1])
    folder = root / kind / f"{name}-{key[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FirthError(
            f"cannot make {folder} for the local copy of {url}: {error.strerror}; set FIRTH_CACHE "
            "to a folder that can be written"
        ) from None
    return folder


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a local folder against the other processes of this host; waits until it is free."""
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def open_binary(path: str | os.PathLike) -> BinaryIO:
    """Open a local file or a URL for reading. Raises OSError, or FirthError for a URL."""
    if not is_url(path):
        return open(path, "rb")
    filesystem, name = _find(path)
    with _explained("read", path):
        return filesystem.open(name, "rb", block_size=_CHUNK)


def find(pattern: str) -> list[str]:
    """The URLs of the files that a URL with * and ** matches, sorted; its own if it is a file."""
    filesystem, name = _find(pattern)
    with _explained("list", pattern):
        filesystem.invalidate_cache()
        if filesystem.isfile(name):
            return [filesystem.unstrip_protocol(name)]
        found = filesystem.glob(name, detail=True)
        names = [name for name, info in found.items() if info["type"] == "file"]
        return sorted(map(filesystem.unstrip_protocol, names))


def about(url: str) -> dict:
    """What the store says of a file: `size`, and its modification or checksum where known."""
    filesystem, name = _find(url)
    with _explained("read", url):
        return filesystem.info(name)


def sizes(url: str) -> dict[str, int]:
    """{name under a URL: bytes} of every file there, at any depth; {} where there is nothing."""
    filesystem, root = _find(url)
    with _explained("list", url):
        filesystem.invalidate_cache()
        root = root.rstrip("/") + "/"
        found = filesystem.find(root, detail=True)
        return {
            name.removeprefix(root): int(info["size"])
            for name, info in found.items()
            if name.startswith(root)
        }


def read_bytes(path: str | os.PathLike) -> bytes | None:
    """A small file, local or at a URL, or None where there is none."""
    if not is_url(path):
        return Path(path).read_bytes() if Path(path).exists() else None
    filesystem, name = _find(path)
    with _explained("read", path):
        try:
            return filesystem.cat_file(name)
        except FileNotFoundError:
            return None


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Write a small file, local (whole or not at all; raises OSError) or at a URL."""
    if not is_url(path):
        local.write_bytes(Path(path), data)
        return
    filesystem, name = _find(path)
    with _explained("write", path):
        if _on_disk(filesystem):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            local.write_bytes(Path(name), data)
        else:
            filesystem.pipe_file(name, data)


def upload(path: Path, url: str) -> None:
    """Copy a local file to a URL."""
    filesystem, name = _find(url)
    with _explained("write", url):
        if _on_disk(filesystem):  # whole or not at all, as in a store of objects
            temporary = Path(name).with_name(f".{Path(name).name}.{os.getpid()}")
            temporary.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, temporary)
            os.replace(temporary, name)
        else:
            filesystem.put_file(str(path), name)


def remove(url: str) -> None:
    """Remove a file, or a folder with all that it holds; nothing where there is none."""
    filesystem, name = _find(url)
    with _explained("remove", url), contextlib.suppress(FileNotFoundError):
        filesystem.rm(name, recursive=True)


def probe(url: str) -> None:
    """Raise FirthError now, rather than after hours, if nothing can be written under a URL."""
    name = join(url, f".probe-{os.urandom(8).hex()}")
    write_bytes(name, b"firth")
    if read_bytes(name) != b"firth":
        raise FirthError(f"{url}: what was written there does not come back")
    remove(name)


def download(url: str, path: Path, entry: dict) -> None:
    """Copy a file of known `bytes` and `sha256` to local disk, where it appears whole or not.

    Goes on where an interrupted copy (PATH.part) ended. Raises DamagedError where the file at the
    URL is not the one described.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    for _ in ("going on", "anew: what was there already may be what is wrong"):
        if _fetch(url, part, entry["bytes"]) == entry["sha256"]:
            os.replace(part, path)
            return
        part.unlink()
    raise DamagedError(
        f"{url} is damaged: its size or sha256 is not the one recorded when it was written "
        f"({entry['bytes']:,} bytes, {entry['sha256'][:12]}...); put a sound copy there"
    )


def _fetch(url: str, part: Path, size: int) -> str:
    """Append to `part` what it lacks of the file (a byte more, if there is); the sha256 of all."""
    digest = hashlib.sha256()
    with part.open("a+b") as file:
        file.seek(0)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        with open_binary(url) as remote, _explained("copy", url):
            remote.seek(file.tell())
            while chunk := remote.read(max(min(_CHUNK, size + 1 - file.tell()), 0)):
                file.write(chunk)
                digest.update(chunk)
    return digest.hexdigest()


def _find(url: str):
    """(fsspec file system, name in it) of a URL."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise FirthError(f"{url} needs fsspec; install it: pip install 'firth[remote]'") from None
    try:
        return url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise FirthError(
            f"{url}: {error}; the package of its protocol must be installed (gs: pip install "
            "'firth[remote]', s3: pip install s3fs)"
        ) from None
    except Exception as error:  # no credentials, say: every package has kinds of its own
        raise _failure("reach", url, error) from error


def _on_disk(filesystem) -> bool:
    return isinstance(filesystem.protocol, tuple) and "file" in filesystem.protocol


@contextlib.contextmanager
def _explained(doing: str, url: str) -> Iterator[None]:
    try:
        yield
    except FirthError:
        raise
    except Exception as error:  # of the network, the service, its credentials, the local disk
        raise _failure(doing, url, error) from error


def _failure(doing: str, url: str, error: Exception) -> FirthError:
    reason = next(iter(str(error).splitlines()), "")
    return FirthError(
        f"cannot {doing} {url}: {type(error).__name__}: {reason}; check the address, the "
        "permissions and the room, then run the same command again"
    )
