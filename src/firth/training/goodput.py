"""Goodput: the share of a run's time, deaths and restarts included, spent in steps that count.

Every second since the first start of the run counts as one of these kinds:

    step         steps that are part of the result (without their input and logging)
    input        waiting for the next batch
    logging      writing metrics
    checkpoint   saving, as far as it blocks the loop
    evaluation   held-out metrics
    start        from the start of a process to its first step, including the restore
    compile      the first step of a process: compiling it, or loading it compiled, and running it
    lost         steps that a restart or a rollback repeated
    dead         from the last sign of life of a process to the start of the next one

The account is stored in goodput.json of the workdir; a restart continues it. Its `ended` says how
the last process ended: "finished", "stopped" or "failed: REASON"; "" while it runs or if it was
killed.
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
SIGN_OF_LIFE = 5.0  # seconds between writes of the account


class Goodput:
    """The account of one run, in seconds.

    `began` (Unix seconds, default now) is when this process started to work on it. If the clock was
    set back, the dead time counts as zero. `finished` is whether the process before this one came
    to the end of the run.
    """

    def __init__(self, workdir: Path, began: float | None = None):
        self.path = Path(workdir) / "goodput.json"
        self.writes = job.leads()
        began = time.time() if began is None else began
        account = self._read()
        self.seconds = dict.fromkeys(KINDS, 0.0) | account.get("seconds", {})
        self.saved = account.get("saved", {})  # {step: seconds of steps up to that checkpoint}
        self.restarts = account.get("restarts", -1) + 1
        self.finished = "alive" in account and account["alive"] is None
        if account.get("alive") is not None:
            self.seconds["dead"] += max(began - account["alive"], 0.0)
        self._ended, self._restored = "", False
        self._kind, self._since = "start", time.perf_counter() - max(time.time() - began, 0.0)
        self._written = 0.0

    def _read(self) -> dict:
        """The account so far, or {} if it cannot be read: training does not depend on it."""
        try:
            account = json.loads(self.path.read_text())
            return account if {"seconds", "saved", "restarts"} <= account.keys() else {}
        except (OSError, ValueError, AttributeError):
            return {}

    def turn_to(self, kind: str):
        """Count the time from now on as this kind."""
        now = time.perf_counter()
        self.seconds[self._kind] += now - self._since
        self._kind, self._since = kind, now

    @contextlib.contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """Count the time of a block as this kind, then return to the kind before it."""
        before = self._kind
        self.turn_to(kind)
        try:
            yield
        finally:
            self.turn_to(before)

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Write how a block ends, if it stops or fails after the run was restored.

        Before that, nothing is known against the run: perhaps the command was wrong.
        """
        try:
            yield
        except BaseException as error:
            if self._restored:
                stopped = isinstance(error, SystemExit | KeyboardInterrupt)
                reason = " ".join(f"{error}".split()) or type(error).__name__
                self._ended = "stopped" if stopped else f"failed: {reason}"
                with contextlib.suppress(OSError):  # the error itself matters more
                    self.write()
            raise

    def waiting(self, batches: Iterable) -> Iterator:
        """Yield the same batches; count the wait for each as input."""
        batches = iter(batches)
        while True:
            with self.spent("input"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def restored(self, step: int):
        """The run resumes from this step: count the steps after it as lost."""
        self._restored = True
        counted = self.saved.get(str(step), 0.0)
        self.turn_to(self._kind)
        self.seconds["lost"] += self.seconds["step"] - counted
        self.seconds["step"] = counted
        self.saved = {s: seconds for s, seconds in self.saved.items() if int(s) <= step}
        self.write()

    def save(self, step: int, complete: Iterable[int]):
        """Note that a checkpoint of this step is being written; those of `complete` exist."""
        self.turn_to(self._kind)
        steps = {str(step), *map(str, complete)}
        self.saved[str(step)] = self.seconds["step"]
        self.saved = {s: seconds for s, seconds in self.saved.items() if s in steps}
        self.write()

    def total(self) -> float:
        """Seconds since the first start of the run."""
        self.turn_to(self._kind)
        return sum(self.seconds.values())

    def tags(self) -> dict[str, float]:
        """Tags for the journal: the goodput so far, and the seconds of each kind."""
        total = self.total()
        seconds = {f"perf/seconds/{kind}": self.seconds[kind] for kind in KINDS}
        return {"perf/goodput": self.seconds["step"] / total if total else 0.0} | seconds

    def summary(self) -> str:
        """One line with the goodput and the time of each other kind."""
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
        """Write the account if the last write is SIGN_OF_LIFE ago; call it after every step."""
        if time.perf_counter() - self._written > SIGN_OF_LIFE:
            self.write()

    def write(self, finished: bool = False):
        """Write the account; the time after a run that has `finished` does not count as dead."""
        self.turn_to(self._kind)
        self._written = time.perf_counter()
        if self.writes:
            account = {
                "seconds": {kind: round(self.seconds[kind], 3) for kind in KINDS},
                "restarts": self.restarts,
                "saved": {step: round(seconds, 3) for step, seconds in self.saved.items()},
                "alive": None if finished else time.time(),
                "ended": "finished" if finished else self._ended,
            }
            write_text(self.path, json.dumps(account, indent=1) + "\n")


def process_start() -> float:
    """When this process started, in Unix seconds; now, if the kernel does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.time()
