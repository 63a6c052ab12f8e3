"""Remote stores: download each once to the local disk of a host, so that views can map it.

The cache (`remote.cache_folder`) holds the copy under a name with the digest of the manifest. So
two stores at the same URL have two copies and never mix. The manifest comes last, so a copy with a
manifest is complete.
"""

import contextlib
import hashlib
import shutil
import sys
from pathlib import Path, PurePosixPath

from firth.data.corpus.manifest import read_manifest
from firth.errors import FirthError
from firth.storage.remote import (
    cache_folder,
    download,
    folder_lock,
    join,
    read_bytes,
    remove,
    sizes,
    upload,
    write_bytes,
)


def stage(url: str) -> Path:
    """The local copy of the store at `url`; downloads the missing files.

    One process of a host downloads and the others wait for it. An interrupted download resumes.
    Raises FirthError for a missing store, a damaged file (with its name) and a full disk.
    """
    text = read_bytes(join(url, "manifest.json"))
    if text is None:
        raise FirthError(
            f"{url} is not a corpus store: it has no manifest.json; make one with firth prepare "
            f"--output {url}"
        )
    files = read_manifest(join(url, "manifest.json"), text)["files"]
    for name in files:
        if name != str(PurePosixPath(name)) or name.startswith("/") or ".." in name.split("/"):
            raise FirthError(f"{url}/manifest.json lists {name!r}, but a store has no such file")
    folder = cache_folder("stores", url, hashlib.sha256(text).hexdigest())
    with folder_lock(folder):
        _download_missing(url, folder, files)
        write_bytes(folder / "manifest.json", text)
    return folder


def _download_missing(url: str, folder: Path, files: dict) -> None:
    missing = {
        name: entry
        for name, entry in files.items()
        if not (folder / name).is_file() or (folder / name).stat().st_size != entry["bytes"]
    }
    if not missing:
        return
    total = sum(entry["bytes"] for entry in missing.values())
    have = sum(part.stat().st_size for part in folder.rglob("*.part"))
    free = shutil.disk_usage(folder).free
    if total - have > free:
        raise FirthError(
            f"{folder} has room for {free:,} bytes, but the local copy of {url} needs "
            f"{total - have:,} more; make room or set FIRTH_CACHE to a larger disk"
        )
    note = f"note: staging {url} ({(total - have) / 1e9:,.3f} GB) to {folder}"
    print(note, file=sys.stderr, flush=True)
    for name, entry in missing.items():
        download(join(url, name), folder / name, entry)


def publish(folder: Path, url: str) -> None:
    """Upload a complete store to a URL, the manifest last: the URL has a whole store or none.

    Removes the files of an older store there. The folder becomes this host's local copy.
    """
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    remove(join(url, "manifest.json"))
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = {path.relative_to(folder).as_posix() for path in files}
    for old in sizes(url).keys() - names:
        remove(join(url, old))
    for name in [*sorted(names - {"manifest.json"}), "manifest.json"]:
        upload(folder / name, join(url, name))
    with contextlib.suppress(OSError):  # the copy exists already, or is on another disk
        folder.rename(cache_folder("stores", url, digest))
