"""Goodput: what share of a run's time, deaths and restarts included, went into steps that count.

Every second since the run first began belongs to one of these:

    step         steps that are part of the result (their input and logging apart)
    input        waiting for the next batch
    logging      writing metrics
    checkpoint   saving, as far as it holds up the loop
    evaluation   held-out metrics
    start        from the start of a process to its first step, with restoring
    compile      the first step of a process: to compile it or to load what was compiled, and to run
    lost         steps that a restart or a rollback did again
    dead         from the last sign of life of a process to the start of the next one

The account stands in goodput.json of the workdir, and goes on from there after a restart.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from firth.distributed import job
from firth.storage.local import write_text

KINDS = (
    *("step", "input", "logging", "checkpoint", "evaluation", "start", "compile", "lost", "dead"),
)
SIGN_OF_LIFE = 5.0  # seconds between two writes of the account


class Goodput:
    """The account of one run; its times are in seconds.

    `began` (Unix seconds) is when this process started to work on it. A clock that was set back
    counts as no time.
    """

    def __init__(self, workdir: Path, began: float | None = None):
        self.path = Path(workdir) / "goodput.json"
        self.writes = job.leads()
        began = time.time() if began is None else began
        account = self._read()
        self.seconds = dict.fromkeys(KINDS, 0.0) | account.get("seconds", {})
        self.saved = account.get("saved", {})  # {step: seconds of steps up to that checkpoint}
        self.restarts = account.get("restarts", -1) + 1
        if account.get("alive") is not None:
            self.seconds["dead"] += max(began - account["alive"], 0.0)
        self._kind, self._since = "start", time.perf_counter() - max(time.time() - began, 0.0)
        self._written = 0.0

    def _read(self) -> dict:
        """The account so far; one that cannot be read is begun anew, as nothing hangs on it."""
        try:
            account = json.loads(self.path.read_text())
            return account if {"seconds", "saved", "restarts"} <= account.keys() else {}
        except (OSError, ValueError, AttributeError):
            return {}

    def turn_to(self, kind: str):
        """From now on, time belongs to this kind."""
        now = time.perf_counter()
        self.seconds[self._kind] += now - self._since
        self._kind, self._since = kind, now

    @contextlib.contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """Time within belongs to this kind, time after it to the one before."""
        before = self._kind
        self.turn_to(kind)
        try:
            yield
        finally:
            self.turn_to(before)

    def waiting(self, batches: Iterable) -> Iterator:
        """The same batches; the time that they are waited for is input."""
        batches = iter(batches)
        while True:
            with self.spent("input"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def restored(self, step: int):
        """The run goes on from this step: the steps done after it are lost."""
        counted = self.saved.get(str(step), 0.0)
        self.turn_to(self._kind)
        self.seconds["lost"] += self.seconds["step"] - counted
        self.seconds["step"] = counted
        self.saved = {s: seconds for s, seconds in self.saved.items() if int(s) <= step}
        self.write()

    def save(self, step: int, kept: Iterable[int]):
        """A checkpoint of this step is on its way; those of `kept` are there."""
        self.turn_to(self._kind)
        kept = {str(step), *map(str, kept)}
        self.saved[str(step)] = self.seconds["step"]
        self.saved = {s: seconds for s, seconds in self.saved.items() if s in kept}
        self.write()

    def total(self) -> float:
        """Seconds since the run began."""
        self.turn_to(self._kind)
        return sum(self.seconds.values())

    def tags(self) -> dict[str, float]:
        """For the journal: the share of steps in all time so far, and the seconds of each kind."""
        total = self.total()
        seconds = {f"perf/seconds/{kind}": self.seconds[kind] for kind in KINDS}
        return {"perf/goodput": self.seconds["step"] / total if total else 0.0} | seconds

    def summary(self) -> str:
        """One line: the goodput, and where the rest went."""
        total = self.total() or 1.0
        rest = sorted(set(KINDS) - {"step"}, key=lambda kind: -self.seconds[kind])
        parts = [f"{k} {self.seconds[k]:.1f} s ({self.seconds[k] / total:.1%})" for k in rest]
        shown = [part for part, k in zip(parts, rest, strict=True) if self.seconds[k] >= 0.05]
        return (
            f"goodput {self.seconds['step'] / total:.1%} of {total:.1f} s, "
            f"{self.restarts} restart{'' if self.restarts == 1 else 's'}"
            + (": " + ", ".join(shown) if shown else "")
        )

    def show_life(self):
        """Write the account if that was not done for a while; to be called every step."""
        if time.perf_counter() - self._written > SIGN_OF_LIFE:
            self.write()

    def write(self, finished: bool = False):
        """Write the account; after a run that has `finished`, nobody is waiting for the next."""
        self.turn_to(self._kind)
        self._written = time.perf_counter()
        if self.writes:
            account = {
                "seconds": {kind: round(self.seconds[kind], 3) for kind in KINDS},
                "restarts": self.restarts,
                "saved": {step: round(seconds, 3) for step, seconds in self.saved.items()},
                "alive": None if finished else time.time(),
            }
            write_text(self.path, json.dumps(account, indent=1) + "\n")


def process_start() -> float:
    """When this process began, in Unix seconds; now, where the kernel does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.time()
