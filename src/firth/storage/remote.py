"""One small interface to local paths and URLs (gs://, s3://, memory://, ...), built on fsspec.

Firth copies remote files and never works on them in place: `download` brings them to local disk,
`upload` sends them back, and small files are read and written whole. An object store shows a file
only once it is complete. Whoever writes several files writes their checksums last.
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
    """Whether a path is a URL such as gs://bucket/store."""
    return isinstance(path, str) and _URL.match(path) is not None


def join(path: str | os.PathLike, name: str) -> str | Path:
    """The path of `name` in a local folder or at a URL, of the same kind as `path`."""
    return f"{path.rstrip('/')}/{name}" if is_url(path) else Path(path) / name


def cache_root() -> Path:
    """Where Firth keeps what it can make again: $FIRTH_CACHE, else ~/.cache/firth."""
    return Path(os.environ.get("FIRTH_CACHE") or Path.home() / ".cache" / "firth").absolute()


def cache_folder(kind: str, url: str, key: str = "") -> Path:
    """The folder for local copies of the files at a URL; creates it if it is missing.

    It lies under `cache_root`. Its name holds the last part of the URL and `key`, or a hash of the
    URL without one. Raises FirthError if it cannot be created.
    """
    key = key or hashlib.sha256(url.rstrip("/").encode()).hexdigest()
    name = re.sub(r"[^\w.-]", "_", url.rstrip("/").rsplit("/", 1)[-1])
    folder = cache_root() / kind / f"{name}-{key[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FirthError(
            f"cannot make {folder} for the local copy of {url}: {error.strerror}; set FIRTH_CACHE "
            "to a folder that can be written"
        ) from None
    return folder


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock on a local folder; waits while another process of this host holds it."""
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


def list_files(pattern: str) -> list[str]:
    """Sorted URLs of the files that match a URL with * and **; itself if it names a file."""
    filesystem, name = _find(pattern)
    with _explained("list", pattern):
        filesystem.invalidate_cache()
        if filesystem.isfile(name):
            return [filesystem.unstrip_protocol(name)]
        entries = filesystem.glob(name, detail=True)
        names = [name for name, info in entries.items() if info["type"] == "file"]
        return sorted(map(filesystem.unstrip_protocol, names))


def about(url: str) -> dict:
    """The store's record of a file: `size`, and modification time or checksum where known."""
    filesystem, name = _find(url)
    with _explained("read", url):
        return filesystem.info(name)


def sizes(url: str) -> dict[str, int]:
    """{name under a URL: bytes} of every file there, at any depth; {} where there is nothing."""
    filesystem, root = _find(url)
    with _explained("list", url):
        filesystem.invalidate_cache()
        root = root.rstrip("/") + "/"
        entries = filesystem.find(root, detail=True)
        return {
            name.removeprefix(root): int(info["size"])
            for name, info in entries.items()
            if name.startswith(root)
        }


def read_bytes(path: str | os.PathLike) -> bytes | None:
    """The bytes of a small file, local or at a URL, or None if there is none."""
    if not is_url(path):
        return Path(path).read_bytes() if Path(path).exists() else None
    filesystem, name = _find(path)
    with _explained("read", path):
        try:
            return filesystem.cat_file(name)
        except FileNotFoundError:
            return None


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Write a small file, local (atomically; raises OSError) or at a URL."""
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
        if _on_disk(filesystem):  # atomic, as in an object store
            temporary = Path(name).with_name(f".{Path(name).name}.{os.getpid()}")
            temporary.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, temporary)
            os.replace(temporary, name)
        else:
            filesystem.put_file(str(path), name)


def remove(url: str) -> None:
    """Remove a file or a folder with its contents; does nothing if there is none."""
    filesystem, name = _find(url)
    with _explained("remove", url), contextlib.suppress(FileNotFoundError):
        filesystem.rm(name, recursive=True)


def probe(url: str) -> None:
    """Raise FirthError at once if nothing can be written under a URL, not hours later."""
    name = join(url, f".probe-{os.urandom(8).hex()}")
    write_bytes(name, b"firth")
    if read_bytes(name) != b"firth":
        raise FirthError(f"{url}: a file written there reads back differently")
    remove(name)


def download(url: str, path: Path, entry: dict) -> None:
    """Copy a file with the `bytes` and `sha256` of `entry` to local disk, atomically.

    Resumes an interrupted copy (PATH.part). Raises DamagedError if the file at the URL has another
    size or checksum.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    for _ in ("resume", "start again: the damage may lie in the first part"):
        if _complete_part(url, part, entry["bytes"]) == entry["sha256"]:
            os.replace(part, path)
            return
        part.unlink()
    raise DamagedError(
        f"{url} is damaged: its size or sha256 is not the one recorded when it was written "
        f"({entry['bytes']:,} bytes, {entry['sha256'][:12]}...); put a sound copy there"
    )


def _complete_part(url: str, part: Path, size: int) -> str:
    """Append the rest of the file to `part`; returns the SHA-256 of all.

    Reads one byte beyond `size` if there is one, so that a longer file does not match.
    """
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
    """(fsspec file system, name in it) of a URL; raises FirthError if fsspec cannot open it."""
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
    except Exception as error:  # for instance missing credentials: each package has its own types
        raise _failure("open", url, error) from error


def _on_disk(filesystem) -> bool:
    return isinstance(filesystem.protocol, tuple) and "file" in filesystem.protocol


@contextlib.contextmanager
def _explained(doing: str, url: str) -> Iterator[None]:
    try:
        yield
    except FirthError:
        raise
    except Exception as error:  # from the network, the service, credentials or the local disk
        raise _failure(doing, url, error) from error


def _failure(doing: str, url: str, error: Exception) -> FirthError:
    reason = next(iter(str(error).splitlines()), "")
    return FirthError(
        f"cannot {doing} {url}: {type(error).__name__}: {reason}; check the address, the "
        "permissions and the room, then run the same command again"
    )
