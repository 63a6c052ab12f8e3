"""The place of a new store: a local folder or a URL. It holds a complete store or none."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from firth.data.corpus.staging import publish
from firth.data.corpus.writer import explained
from firth.errors import FirthError
from firth.storage.local import file_lock
from firth.storage.remote import cache_folder, is_url, join, probe, read_bytes, remove, sizes


def place(output: str | os.PathLike) -> str | Path:
    """The output as a URL without a final / or as a path, as the functions here take it."""
    return output.rstrip("/") if is_url(output) else Path(output)


def check_output(output: str | Path, overwrite: bool) -> None:
    """Raise FirthError if the output exists and must stay, or if the URL refuses files."""
    if is_url(output):
        probe(f"{output}.partial")
        there = bool(sizes(output))
    else:
        there = output.exists()
        if output.is_symlink() and not there:
            raise FirthError(f"{output} is a link to {os.readlink(output)}, which does not exist")
    if not there:
        return
    if not overwrite:
        raise FirthError(f"{output} exists; replace it with --overwrite or choose another --output")
    if read_bytes(join(output, "manifest.json")) is None:
        raise FirthError(f"{output} is not a corpus store, so --overwrite leaves it alone")


def unfinished(output: str | Path) -> Path:
    """The local folder of unfinished work: OUTPUT.partial, or one in the cache for a URL."""
    if is_url(output):
        return cache_folder("prepare", output)
    return output.with_name(output.name + ".partial")


@contextlib.contextmanager
def locked(partial: Path) -> Iterator[None]:
    """Make the folder of unfinished work and lock it against other runs."""
    with explained(partial):
        partial.mkdir(parents=True, exist_ok=True)
        (partial / "lock").touch()
    busy = f"another firth prepare is writing {partial}; wait for it or choose another output"
    with file_lock(partial / "lock", busy):
        yield


def put_store(partial: Path, output: str | Path) -> None:
    """Move or upload the finished store to its place and replace an old one."""
    if is_url(output):
        publish(partial / "store", output)
        remove(f"{output}.partial")
        return
    with explained(output):
        if output.exists():
            shutil.rmtree(partial / "replaced", ignore_errors=True)
            output.rename(partial / "replaced")
        (partial / "store").rename(output)
