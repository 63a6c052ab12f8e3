"""Workdirs at a URL: a run works in a local copy and uploads it at every save.

    URL/      a workdir, and owner.json: the run that last uploaded to it
    local/    the same, and .mirror.json: the URL, the owner, the uploaded files

An upload sends the files of a checkpoint first and its checksums last. A removal deletes the
checksums first. So a checkpoint with checksums at the URL is complete. A run starts from the files
at the URL. If it was itself the last to upload there, it starts from its own copy, which is at
least as new.

In a job of several processes, process 0 has the copy and uploads it. The others have a folder each,
with the compiled programs alone; process 0 saves and restores for all (leader_checkpoint.py).
"""

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from firth.distributed import job
from firth.errors import FirthError
from firth.storage.local import file_lock, read_checksums
from firth.storage.remote import (
    DamagedError,
    cache_folder,
    download,
    folder_lock,
    is_url,
    join,
    read_bytes,
    remove,
    sizes,
    upload,
    write_bytes,
)

log = logging.getLogger("firth")

STATE, OWNER = ".mirror.json", "owner.json"
_STEP = re.compile(r"(?P<run>(?:.*/)?)checkpoints/(?P<step>[^/]+)/.+")  # <run>: "", or "seed-0/"
_CHECKSUMS = re.compile(r"(?P<run>(?:.*/)?)seals/(?P<step>\d+)\.json")
_LOCAL_ONLY = ("checkpoints-damaged",)


class TakenOverError(FirthError):
    """Another run writes to the same URL."""


@contextlib.contextmanager
def local_workdir(workdir: str | os.PathLike) -> Iterator[Path]:
    """The local folder of the workdir at `workdir`, a path or a URL.

    All processes of a job must call it; for a URL, each gets a folder of its own.

    Raises FirthError at the start if the URL cannot be written, if all its checkpoints are damaged,
    or if another run of this host uses it; at the end, if an upload fails.
    """
    if not is_url(workdir):
        yield Path(workdir)
        return
    url = workdir.rstrip("/")
    own = url if job.leads() else f"{url}/process-{job.number()}"
    folder = cache_folder("workdirs", own)
    busy = f"another run is using {url}; wait for it or choose another"
    with file_lock(folder.with_name(folder.name + ".lock"), busy):
        if not job.leads():
            job.all_gather()  # process 0 has claimed the URL, so its files are those of this run
            _download_programs(url, folder)
            yield folder
            return
        _claim(url, folder)
        job.all_gather()
        try:
            yield folder
        except BaseException:
            upload_workdir(folder)
            raise
        _upload_changes(folder)


def upload_workdir(workdir: Path) -> None:
    """Upload the changes of a workdir if it, or its parent, is the local copy of one at a URL.

    A failed upload is only logged: the next save tries again. Raises TakenOverError if another run
    has begun to upload there.
    """
    for folder in (workdir, workdir.parent):
        if (folder / STATE).is_file():
            try:
                _upload_changes(folder)
            except TakenOverError:
                raise
            except FirthError as error:
                log.warning("%s (the next save tries again)", error)
            return


def is_local_copy(workdir: str | os.PathLike) -> bool:
    """Whether a workdir, or its parent, is this process's own copy of one at a URL."""
    workdir = Path(workdir)
    return any((folder / STATE).is_file() for folder in (workdir, workdir.parent))


def download_workdir(url: str) -> Path:
    """A local copy, for reading, of the workdir at `url` as it is now.

    Raises FirthError if there is none, or if all its checkpoints are damaged.
    """
    url = url.rstrip("/")
    names = sizes(url)
    if "config.json" not in names:
        raise FirthError(f"{url} is not a workdir: it has no config.json")
    checksums = {name: read_bytes(join(url, name)) for name in names if _CHECKSUMS.fullmatch(name)}
    version = sha256(repr(sorted(checksums.items())).encode()).hexdigest()
    folder = cache_folder("fetched", url, version)
    with folder_lock(folder):
        _download(url, folder)
    return folder


def upload_files(folder: Path, url: str, names: list[str]) -> None:
    """Upload files that a reader has written in its copy to the workdir at `url`."""
    for name in names:
        upload(folder / name, join(url, name))


def _claim(url: str, folder: Path) -> None:
    """Bring the local copy up to date and name this run as the owner of the URL."""
    state = json.loads(read_bytes(folder / STATE) or b"{}")
    if state.get("owner", "none") == _owner(url).get("owner"):
        uploaded = state["sent"]
    else:
        _replace(url, folder)
        uploaded = _uploadable(folder)
    owner = os.urandom(8).hex()
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    entry = {"owner": owner, "host": socket.gethostname(), "pid": os.getpid(), "since": since}
    write_bytes(join(url, OWNER), json.dumps(entry).encode())
    state = {"url": url, "owner": owner, "sent": uploaded}
    write_bytes(folder / STATE, json.dumps(state).encode())


def _download_programs(url: str, folder: Path) -> None:
    """Download the compiled programs, which processes other than 0 can use."""
    for name in sizes(url):
        if "compiled" in name.split("/")[:-1]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / name, read_bytes(join(url, name)))
    write_bytes(folder / STATE, json.dumps({"url": url}).encode())


def _owner(url: str) -> dict:
    return json.loads(read_bytes(join(url, OWNER)) or b"{}")


def _upload_changes(folder: Path) -> None:
    """Upload new and changed files, and remove at the URL those that are gone here."""
    state = json.loads((folder / STATE).read_bytes())
    url, uploaded, owner = state["url"], state["sent"], _owner(state["url"])
    if owner.get("owner") != state["owner"]:
        raise TakenOverError(
            f"another run writes to {url} (on {owner.get('host')}, process {owner.get('pid')}, "
            f"since {owner.get('since')}), so this one ends; its copy is {folder}"
        )
    now = _uploadable(folder)
    try:
        for name in sorted(now, key=_upload_order):
            if uploaded.get(name) != now[name]:
                upload(folder / name, join(url, name))
                uploaded[name] = now[name]
        for name in [name for name in uploaded if name not in now]:
            if checksums := _CHECKSUMS.fullmatch(name):
                remove(join(url, name))
                remove(join(url, f"{checksums['run']}checkpoints/{checksums['step']}"))
            uploaded.pop(name)
    finally:
        write_bytes(folder / STATE, json.dumps(state).encode())


def _upload_order(name: str) -> int:
    """0 for files of checkpoints, 1 for other files of the run, 2 for checksums."""
    return 2 if _CHECKSUMS.fullmatch(name) else 0 if _STEP.fullmatch(name) else 1


def _uploadable(folder: Path) -> dict[str, list[int]]:
    """{name: [bytes, time of modification in ns]} of the complete files to upload."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    complete = {}
    for name, path in files.items():
        if any(part.startswith(".") or part in _LOCAL_ONLY for part in name.split("/")):
            continue
        step = _STEP.fullmatch(name)
        if step and f"{step['run']}seals/{step['step']}.json" not in files:
            continue  # its save is still under way
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                complete[name] = [path.stat().st_size, path.stat().st_mtime_ns]
    return complete


def _replace(url: str, folder: Path) -> None:
    """Replace the local copy by the files at the URL; keep it as FOLDER.old if there are none."""
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
    folder.mkdir()
    if _download(url, folder, old):
        shutil.rmtree(old, ignore_errors=True)


def _download(url: str, folder: Path, old: Path | None = None) -> bool:
    """Copy the workdir at a URL and verify its checkpoints; returns whether any file is there.

    Moves checkpoints that `old` already holds instead of downloading them.
    """
    names = sizes(url)
    checkpoints = [match for name in names if (match := _CHECKSUMS.fullmatch(name))]
    damaged = []
    for checksums in sorted(checkpoints, key=lambda match: int(match["step"])):
        try:
            _download_step(url, checksums, names, folder, old)
        except DamagedError as error:
            log.warning("checkpoint %s is damaged (%s); left out", checksums["step"], error)
            damaged.append(checksums)
    if damaged and len(damaged) == len(checkpoints):
        raise FirthError(f"no checkpoint at {url} can be read; remove it to train from scratch")
    for name in names:
        if _upload_order(name) == 1 and name != OWNER:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / name, read_bytes(join(url, name)))
    return bool(names)


def _download_step(
    url: str, checksums: re.Match, names: dict, folder: Path, old: Path | None
) -> None:
    """Copy one checkpoint; `checksums` is the match of the name of its checksum file."""
    name = checksums.group()
    text = read_bytes(join(url, name))
    step = f"{checksums['run']}checkpoints/{checksums['step']}"
    if read_bytes(folder / name) == text:
        return
    partial = folder / ".fetching" / step
    if old and read_bytes(old / name) == text and (old / step).is_dir():
        partial = old / step
    else:
        if old and (old / ".fetching" / step).is_dir():  # resume an interrupted download
            partial.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(old / ".fetching" / step, partial)
        try:
            digests = read_checksums(text)
        except ValueError:
            raise DamagedError(f"{url}/{name} is damaged") from None
        for file, digest in digests.items():
            place = f"{step}/{file}"
            if place not in names:
                raise DamagedError(f"{url}/{place} is missing")
            if not (partial / file).is_file():
                entry = {"bytes": names[place], "sha256": digest}
                download(join(url, place), partial / file, entry)
    (folder / step).parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / step, ignore_errors=True)
    shutil.move(partial, folder / step)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / name, text)
