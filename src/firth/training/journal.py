"""The log of a run: metrics.jsonl, TensorBoard events and the text of env.txt."""

import contextlib
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import jax

from firth.errors import FirthError
from firth.storage.local import write_text


class Journal:
    """One line of JSON and one set of TensorBoard scalars for each logged step.

    Only process 0 writes. `start` is the step from which the run resumes. Lines after it come from
    a process that was killed after its last checkpoint; they are dropped, since the run repeats
    those steps.
    """

    def __init__(self, workdir: Path, start: int, tensorboard: bool = True):
        self.path = Path(workdir) / "metrics.jsonl"
        self.writes = jax.process_index() == 0
        self.events = None
        if not self.writes:
            return
        self._drop_after(start)
        self.file = self.path.open("a", buffering=1)
        if tensorboard:
            with _without("torch"):  # tensorboardX imports it for seconds, and needs it for tensors
                from tensorboardX import SummaryWriter

            self.is_first = not any(Path(workdir).glob("events.out.tfevents.*"))
            self.events = SummaryWriter(
                str(workdir), purge_step=start + 1, flush_secs=30, filename_suffix=f".{start}"
            )

    def _drop_after(self, start: int):
        if not self.path.exists():
            return
        lines = [line for line, entry in _whole_lines(self.path) if entry["step"] <= start]
        write_text(self.path, "".join(line + "\n" for line in lines))

    def describe(self, fields: dict, metrics: Iterable[str]):
        """Show a config in TensorBoard, as text and as hyperparameters, once in the life of a run.

        `fields` is {dotted name: value}; `metrics` are the tags that the table of hyperparameters
        shows beside them.
        """
        if not self.events or not self.is_first:
            return
        from tensorboardX.summary import hparams

        rows = [f"| {name} | {value!r} |" for name, value in fields.items()]
        self.events.add_text("config", "\n".join(["| field | value |", "|---|---|", *rows]), 0)
        plain = {k: v if isinstance(v, str | int | float) else str(v) for k, v in fields.items()}
        experiment, session, _ = hparams(plain, dict.fromkeys(metrics, 0.0))
        for summary in (experiment, session):
            self.events.file_writer.add_summary(summary, 0)
        self.events.flush()

    def write(self, step: int, values: dict[str, float | str]):
        """Record {tag: value} at this step; non-finite values become null in the JSON."""
        if not self.writes:
            return
        line = {
            tag: None if isinstance(value, float) and not math.isfinite(value) else value
            for tag, value in values.items()
        }
        self.file.write(json.dumps({"step": step, **line}) + "\n")
        if self.events:
            for tag, value in line.items():
                if isinstance(value, int | float):
                    self.events.add_scalar(tag, value, step)

    def close(self):
        """Flush everything to disk."""
        if self.writes:
            self.file.close()
            if self.events:
                self.events.close()


@contextlib.contextmanager
def _without(package: str):
    """Let imports inside go on as if a package that is not imported yet were not installed."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None
    try:
        yield
    finally:
        del sys.modules[package]


def read_journal(workdir) -> list[dict]:
    """The entries of a workdir's metrics.jsonl, oldest first; FirthError if the file is missing."""
    path = Path(workdir) / "metrics.jsonl"
    if not path.is_file():
        raise FirthError(f"{path} is missing: no run has logged anything in {workdir}")
    return [entry for _, entry in _whole_lines(path)]


def measured_at(workdir, step: int) -> dict[str, float]:
    """{"<set>/<metric>": value} of the evaluation after a step, and of what the end alone measures.

    The test sets of a task are measured when a run ends, by its best checkpoint. Raises FirthError
    if nothing is logged.
    """
    found = {}
    for entry in read_journal(workdir):
        for name, value in entry.items():
            kind, _, metric = name.partition("/")
            here = entry["step"] == step or not metric.startswith(("dev", "heldout"))
            if kind == "eval" and here and isinstance(value, int | float):
                found[metric] = float(value)
    return found


def _whole_lines(path: Path):
    """Pairs (line, entry) of a journal, without a line that a kill cut short."""
    for line in path.read_text().splitlines():
        try:
            yield line, json.loads(line)
        except json.JSONDecodeError:
            continue


def describe_environment() -> str:
    """Versions, devices, host and git commit, for env.txt."""
    lines = [
        f"command: {' '.join(sys.argv)}",
        f"time: {time.strftime('%Y-%m-%d %H:%M:%S %z')}",
        f"python: {platform.python_version()} on {platform.platform()}, {os.cpu_count()} CPUs",
        f"devices: {jax.device_count()} x {jax.devices()[0].device_kind} on "
        f"{jax.default_backend()}, {jax.process_count()} process(es)",
        f"git commit: {commit()}",
    ]
    for name in ("firth", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"):
        lines.append(f"{name}: {metadata.version(name)}")
    with contextlib.suppress(metadata.PackageNotFoundError):  # data.loader="auto" depends on it
        lines.append(f"tensorflow: {metadata.version('tensorflow')}")
    return "\n".join(lines) + "\n"


def commit() -> str:
    """Commit of the source tree of this file, or "unknown..." if it is no checkout."""
    folder = Path(__file__).resolve().parent
    try:
        run = subprocess.run(
            ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return run.stdout.strip() or "unknown (not a checkout)"
