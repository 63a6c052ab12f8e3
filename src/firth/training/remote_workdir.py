"""Workdirs at a URL: a run works in a local copy, which is sent there at every save.

    URL/      what a workdir holds, and owner.json: the run whose copy was last sent there
    local/    the same, and .mirror.json: the URL, the owner, what has been sent

Files of a checkpoint go first, its seal last, and a deleted one loses its seal first: what is
sealed at the URL is whole there. A run starts from what is at the URL, unless it was the last one
to write there; then its own copy is at least as new.

Of several processes, the first has the copy and writes at the URL. The others have a folder each
with only what has been compiled; arrays go from and to the first process (gathered.py).
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
from firth.storage.local import held, read_seal
from firth.storage.remote import (
    DamagedError,
    alone,
    cache_folder,
    download,
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
_SEAL = re.compile(r"(?P<run>(?:.*/)?)seals/(?P<step>\d+)\.json")
_KEPT_HERE = ("checkpoints-damaged",)


class TakenOverError(FirthError):
    """Another run writes to the same URL."""


@contextlib.contextmanager
def mirrored(workdir: str | os.PathLike) -> Iterator[Path]:
    """The folder in which to run what has its workdir at `workdir`, a path or a URL.

    All processes of a job must call it; for a URL, each gets another folder.
    Raises FirthError at the start for a URL that cannot be written or holds no sound checkpoint
    among damaged ones, or that another run of this host uses; at the end, if not all could be sent.
    """
    if not is_url(workdir):
        yield Path(workdir)
        return
    url = workdir.rstrip("/")
    own = url if job.leads() else f"{url}/process-{job.number()}"
    folder = cache_folder("workdirs", own)
    busy = f"another run is using {url}; wait for it or choose another"
    with held(folder.with_name(folder.name + ".lock"), busy):
        if not job.leads():
            job.gather()  # process 0 has begun, so what the URL holds is of this run
            _follow(url, folder)
            yield folder
            return
        _begin(url, folder)
        job.gather()
        try:
            yield folder
        except BaseException:
            upload_workdir(folder)
            raise
        _send(folder)


def upload_workdir(workdir: Path) -> None:
    """Send what is new in a workdir to the URL that it mirrors, if it does (or its parent does).

    What cannot be sent is sent at the next save. Raises TakenOverError if another run has begun to
    write there.
    """
    for folder in (workdir, workdir.parent):
        if (folder / STATE).is_file():
            try:
                _send(folder)
            except TakenOverError:
                raise
            except FirthError as error:
                log.warning("%s (it is tried again at the next save)", error)
            return


def is_mirror(workdir: str | os.PathLike) -> bool:
    """Whether a workdir (or its parent) is a copy of one at a URL, so of this process alone."""
    workdir = Path(workdir)
    return any((folder / STATE).is_file() for folder in (workdir, workdir.parent))


def fetch(url: str) -> Path:
    """A local copy, for reading, of the workdir at `url` as it is now.

    Raises FirthError where there is none, or where no checkpoint of it is sound.
    """
    url = url.rstrip("/")
    names = sizes(url)
    if "config.json" not in names:
        raise FirthError(f"{url} is not a workdir: it has no config.json")
    seals = {name: read_bytes(join(url, name)) for name in names if _SEAL.fullmatch(name)}
    folder = cache_folder("fetched", url, sha256(repr(sorted(seals.items())).encode()).hexdigest())
    with alone(folder):
        _copy(url, folder)
    return folder


def put_back(folder: Path, url: str, names: list[str]) -> None:
    """Copy what a reader made in its copy to the workdir at `url`."""
    for name in names:
        upload(folder / name, join(url, name))


def _begin(url: str, folder: Path) -> None:
    state = json.loads(read_bytes(folder / STATE) or b"{}")
    if state.get("owner", "none") == _owner(url).get("owner"):
        sent = state["sent"]
    else:
        _replace(url, folder)
        sent = _complete(folder)
    owner = os.urandom(8).hex()
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    entry = {"owner": owner, "host": socket.gethostname(), "pid": os.getpid(), "since": since}
    write_bytes(join(url, OWNER), json.dumps(entry).encode())
    write_bytes(folder / STATE, json.dumps({"url": url, "owner": owner, "sent": sent}).encode())


def _follow(url: str, folder: Path) -> None:
    """Fetch what a process other than the first can use: the compiled programs."""
    for name in sizes(url):
        if "compiled" in name.split("/")[:-1]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / name, read_bytes(join(url, name)))
    write_bytes(folder / STATE, json.dumps({"url": url}).encode())


def _owner(url: str) -> dict:
    return json.loads(read_bytes(join(url, OWNER)) or b"{}")


def _send(folder: Path) -> None:
    state = json.loads((folder / STATE).read_bytes())
    url, sent, owner = state["url"], state["sent"], _owner(state["url"])
    if owner.get("owner") != state["owner"]:
        raise TakenOverError(
            f"another run writes to {url} (on {owner.get('host')}, process {owner.get('pid')}, "
            f"since {owner.get('since')}), so this one ends; its copy is {folder}"
        )
    now = _complete(folder)
    try:
        for name in sorted(now, key=_rank):
            if sent.get(name) != now[name]:
                upload(folder / name, join(url, name))
                sent[name] = now[name]
        for name in [name for name in sent if name not in now]:
            if seal := _SEAL.fullmatch(name):
                remove(join(url, name))
                remove(join(url, f"{seal['run']}checkpoints/{seal['step']}"))
            sent.pop(name)
    finally:
        write_bytes(folder / STATE, json.dumps(state).encode())


def _rank(name: str) -> int:
    """The order of sending: checkpoints, what belongs to the run, seals."""
    return 2 if _SEAL.fullmatch(name) else 0 if _STEP.fullmatch(name) else 1


def _complete(folder: Path) -> dict[str, list[int]]:
    """{name: [bytes, time of modification in ns]} of all that can be sent."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    found = {}
    for name, path in files.items():
        if any(part.startswith(".") or part in _KEPT_HERE for part in name.split("/")):
            continue
        step = _STEP.fullmatch(name)
        if step and f"{step['run']}seals/{step['step']}.json" not in files:
            continue  # being written
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found[name] = [path.stat().st_size, path.stat().st_mtime_ns]
    return found


def _replace(url: str, folder: Path) -> None:
    """Make the folder what is at the URL. If that is nothing, what was here stays in FOLDER.old."""
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
    folder.mkdir()
    if _copy(url, folder, old):
        shutil.rmtree(old, ignore_errors=True)


def _copy(url: str, folder: Path, old: Path | None = None) -> bool:
    """Copy a workdir, checkpoints checked (those in `old` moved); whether anything is there."""
    names = sizes(url)
    seals = [seal for name in names if (seal := _SEAL.fullmatch(name))]
    damaged = []
    for seal in sorted(seals, key=lambda seal: int(seal["step"])):
        try:
            _copy_step(url, seal, names, folder, old)
        except DamagedError as error:
            log.warning("checkpoint %s is damaged (%s); left out", seal["step"], error)
            damaged.append(seal)
    if damaged and len(damaged) == len(seals):
        raise FirthError(f"no checkpoint at {url} can be read; remove it to train from scratch")
    for name in names:
        if _rank(name) == 1 and name != OWNER:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / name, read_bytes(join(url, name)))
    return bool(names)


def _copy_step(url: str, seal: re.Match, names: dict, folder: Path, old: Path | None) -> None:
    text = read_bytes(join(url, seal.group()))
    step = f"{seal['run']}checkpoints/{seal['step']}"
    if read_bytes(folder / seal.group()) == text:
        return
    begun = folder / ".fetching" / step
    if old and read_bytes(old / seal.group()) == text and (old / step).is_dir():
        begun = old / step
    else:
        if old and (old / ".fetching" / step).is_dir():  # by a start that was interrupted
            begun.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(old / ".fetching" / step, begun)
        try:
            digests = read_seal(text)
        except ValueError:
            raise DamagedError(f"{url}/{seal.group()} is damaged") from None
        for name, digest in digests.items():
            place = f"{step}/{name}"
            if place not in names:
                raise DamagedError(f"{url}/{place} is missing")
            if not (begun / name).is_file():
                entry = {"bytes": names[place], "sha256": digest}
                download(join(url, place), begun / name, entry)
    (folder / step).parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / step, ignore_errors=True)
    shutil.move(begun, folder / step)
    (folder / seal.group()).parent.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / seal.group(), text)
