"""Kills of a run inside its saves, after each of which launch/babysit.sh starts it again."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

BABYSIT = Path(__file__).resolve().parents[2] / "launch" / "babysit.sh"


def written(workdir: Path) -> set[str]:
    """Names of the checkpoints that are there, of those half-written too."""
    return {path.name for path in (workdir / "checkpoints").glob("[0-9]*")}


def under_way(workdir: Path, unfinished: set[str]) -> str:
    """'write' or 'checksums' while a save is not over, else ''; `unfinished` are from before."""
    names = written(workdir)
    if not all(name.isdigit() for name in names):
        return "write"
    finished = {path.stem for path in (workdir / "seals").glob("[0-9]*.json")}
    return "checksums" if names - finished - unfinished else ""


def lives(pid: int) -> bool:
    """Whether a process is there, and more than a zombie."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def wait_until(pid: int, condition) -> bool:
    """Whether the condition came about while the process lived."""
    while lives(pid):
        if condition():
            return True
        time.sleep(0.003)
    return False


def run_under(watcher: int, what: str) -> int | None:
    """The process below `watcher` whose command line holds `what`, but not the watcher's name."""
    below = [watcher]
    while below:
        pid = below.pop()
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if what in line and BABYSIT.name not in line:
                return pid
            below += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except OSError:  # it is gone
            continue
    return None


def strike(pid: int, workdir: Path, kind: signal.Signals, after: float) -> str:
    """Signal a run, `after` seconds into its first save; what that interrupted, '' if nothing."""
    unfinished = {name for name in written(workdir) if name.isdigit()}
    unfinished -= {path.stem for path in (workdir / "seals").glob("[0-9]*.json")}
    # What the run before left half-written goes first; the next such folder is this run's own.
    if not wait_until(pid, lambda: under_way(workdir, unfinished) != "write"):
        return ""
    if not wait_until(pid, lambda: under_way(workdir, unfinished)):
        return ""
    time.sleep(after)
    if kind == signal.SIGKILL and not under_way(workdir, unfinished):
        return ""
    os.kill(pid, kind)
    wait_until(pid, lambda: False)
    return "term" if kind == signal.SIGTERM else under_way(workdir, unfinished)


def campaign(command, workdir: Path, *, kills, terms, environment, minutes=600.0, tell=str):
    """Run `command` under the babysitter; counts its ends as {"write", "checksums", "term"}.

    SIGKILL falls at a random time of a save, and counts if the save was not over by then; SIGTERM
    at random; after so many minutes the rest is left undone. `tell` is called with a line for each.
    Raises AssertionError if the run ends too early, or not with 0.
    """
    babysit = ["sh", BABYSIT, "--local", "--backoff", "0", "--", *command]
    watcher = subprocess.Popen(
        [*map(str, babysit)],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    rng, done = random.Random(0), {"write": 0, "checksums": 0, "term": 0}
    planned = [signal.SIGKILL] * kills + [signal.SIGTERM] * terms
    rng.shuffle(planned)
    end = time.monotonic() + 60 * minutes
    try:
        while planned and time.monotonic() < end:
            assert watcher.poll() is None, f"over ({watcher.returncode}) after {done}: more steps"
            pid = run_under(watcher.pid, str(workdir))
            if pid is None:
                time.sleep(0.01)
            elif found := strike(pid, workdir, planned[-1], rng.random() * 0.2):
                planned.pop()
                done[found] += 1
                tell(f"{sum(done.values())}: {found}, now {sorted(written(workdir))}")
        assert watcher.wait(3600) == 0
    finally:
        if watcher.poll() is None:
            watcher.terminate()
            watcher.wait(60)
    return done
