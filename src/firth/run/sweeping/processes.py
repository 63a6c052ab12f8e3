"""The processes of a sweep: a run each, so many at once, and the same command goes on."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from firth.errors import FirthError
from firth.run.sweeping.grid import SweepRun

POLL = 0.2  # seconds


def run_all(
    runs: Sequence[SweepRun], jobs: int, devices: Sequence[str], ended: Callable[[SweepRun], None]
) -> bool:
    """Run `firth train` for each, `jobs` at once; whether nothing stopped the sweep.

    What a process prints goes to `seed-N.log` beside its workdir. Where several run at once, each
    has its share of the cores; with `devices`, each has one of these GPUs. `ended` is called after
    each run, also after one that failed. At SIGINT or SIGTERM no further run begins, and those that
    run save.
    """
    waiting, free, running, told = list(runs), list(range(jobs)), {}, False
    with _stopping() as stopped:
        try:
            while (waiting and not stopped) or running:
                while waiting and free and not stopped:
                    slot, run = free.pop(0), waiting.pop(0)
                    running[slot] = run, _start(run, slot, jobs, devices)
                time.sleep(POLL)
                if stopped and not told:
                    told = True  # a second signal would end their saving
                    for _, process in running.values():
                        process.terminate()
                for slot in [slot for slot, (_, process) in running.items() if _is_over(process)]:
                    run, _ = running.pop(slot)
                    free.append(slot)
                    ended(run)
        finally:
            for _, process in running.values():
                process.kill()
    return not stopped


def cores(slot: int, jobs: int) -> set[int]:
    """The cores of one of `jobs` processes: a part of those that this process may use."""
    own = sorted(os.sched_getaffinity(0))
    if jobs >= len(own):
        return {own[slot % len(own)]}
    return set(own[slot * len(own) // jobs : (slot + 1) * len(own) // jobs])


def _start(run: SweepRun, slot: int, jobs: int, devices: Sequence[str]) -> subprocess.Popen:
    environment = dict(os.environ)
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    try:
        run.workdir.parent.mkdir(parents=True, exist_ok=True)
        log = run.log.open("w")
    except OSError as error:
        raise FirthError(f"{run.workdir.parent}: {error.strerror}") from None
    with log:
        process = subprocess.Popen(
            [sys.executable, "-m", "firth", "train", *run.arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a Ctrl-C of the terminal comes to the sweep alone
        )
    if jobs > 1 and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, cores(slot, jobs))
    return process


def _is_over(process: subprocess.Popen) -> bool:
    return process.poll() is not None


@contextlib.contextmanager
def _stopping() -> Iterator[list]:
    """A list that has an entry once this process is asked to stop."""
    stopped = []
    before = {
        number: signal.signal(number, lambda *_: stopped.append(True))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
