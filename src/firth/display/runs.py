"""The runs below a folder, as their files describe them. Reading them needs no JAX and no recipe.

config.json    the fields of the recipe
env.txt        the command that started the run, and the steps of its schedule
metrics.jsonl  the journal
goodput.json   the account of time, and how the run ended
model.json     the metric that chooses the best checkpoint
.lock          locked while a process trains
summary.json   in a folder of seeds: the mean and deviation of every metric
"""

import dataclasses
import itertools
import json
import os
import re
import shlex
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from firth.errors import FirthError
from firth.recipe import LATER, flatten
from firth.storage.local import is_locked, read_json
from firth.storage.remote import is_url

# The held-out metric of pretraining is the first of these that the journal has.
LOSSES = ("mlm_loss", "lm_loss", "plm_loss", "rtd_loss")
LOW = ("loss", "perplexity", "bits_per_character", "rmse")  # endings of metrics of errors
KILLED = "its process was killed, or its machine went down; the same command goes on"
_SPEEDS = 100  # the newest journal lines that count for the speed


@dataclasses.dataclass(frozen=True)
class Run:
    """One workdir, or one folder of seeds.

    recipe: as on the command line; else the names of the body and of the objective or task.
    fields: {dotted name: value} of the config. changed: names of the fields that the command sets.
    logged: whether its journal has an entry.
    step, steps: the last step logged or saved, and the last one of the run; None if unknown.
    metric: the name of the metric behind `last` and `best`, or "". lower: whether small values are
      good. spread: the standard deviation of `best` over seeds.
    speed, unit: the median of the newest lines, in "tokens/s" or "examples/s".
    state: "running", "finished", "stopped", "failed" or "damaged"; reason: why, for the last two.
    changed_at: Unix seconds of the newest change of its files.
    """

    path: Path
    recipe: str = ""
    fields: dict = dataclasses.field(default_factory=dict)
    changed: frozenset = frozenset()
    logged: bool = False
    step: int | None = None
    steps: int | None = None
    metric: str = ""
    lower: bool = False
    last: float | None = None
    best: float | None = None
    spread: float | None = None
    speed: float | None = None
    unit: str = ""
    state: str = "damaged"
    reason: str = ""
    seeds: int = 0
    changed_at: float = 0.0

    @property
    def name(self) -> str:
        """The path, with the number of seeds."""
        return f"{self.path} ({self.seeds} seeds)" if self.seeds else str(self.path)


def find_runs(folders: Iterable[str | os.PathLike]) -> list[Run]:
    """All runs in or below these folders, in the order of their paths.

    A run that cannot be read has the state "damaged" and a reason. Raises FirthError for a folder
    that does not exist, and for a URL.
    """
    found, seen = {}, set()
    for folder in folders:
        if is_url(folder):
            raise FirthError(f"{folder} is a URL; copy the run to a local folder to look at it")
        if not Path(folder).is_dir():
            raise FirthError(f"{folder}: no such folder; name a folder of runs, or a workdir")
        for run in _below(Path(folder), seen):
            found.setdefault(run.path.resolve(), run)
    return list(found.values())


def _below(folder: Path, seen: set[Path]) -> Iterator[Run]:
    """The runs in and below a folder; `seen` are the folders looked at, for links that loop."""
    if folder.resolve() in seen:
        return
    seen.add(folder.resolve())
    try:
        names = {entry.name: entry for entry in os.scandir(folder)}
    except OSError as error:
        yield Run(folder, reason=f"cannot be read: {error.strerror}")
        return
    is_run = "metrics.jsonl" in names or ("config.json" in names and ".lock" in names)
    if is_run:
        yield read_run(folder)
        return
    inner = sorted(n for n, entry in names.items() if not n.startswith(".") and entry.is_dir())
    runs = [run for name in inner for run in _below(folder / name, seen)]
    if "summary.json" in names and any(name.startswith("seed-") for name in inner):
        yield _seeds(folder, [run for run in runs if run.path.parent == folder])
    yield from runs


def read_run(folder: Path) -> Run:
    """The run of a workdir; damage makes it a Run with the state "damaged" and the reason."""
    try:
        return _read_run(folder)
    except FirthError as error:
        return Run(folder, reason=str(error), changed_at=_changed_at(folder))
    except OSError as error:
        return Run(folder, reason=f"cannot be read: {error}", changed_at=_changed_at(folder))


def _read_run(folder: Path) -> Run:
    fields = LATER | flatten(read_json(folder / "config.json"))
    environment = _environment(folder)
    recipe, changed = _recipe(environment.get("command", ""))
    measured, speeds, step = _journal(folder)
    steps = environment.get("steps", "")
    steps = fields.get("until") or int(steps if steps.isdecimal() else 0) or fields.get("steps")
    account = _optional(folder / "goodput.json")
    logged = step is not None
    step = max([step or 0, *_saved(account)]) or None
    state, reason = _state(folder, account, step, steps)
    metric = _metric(_optional(folder / "model.json").get("best"), measured)
    values = [value for entry in measured if (value := entry.get(f"eval/{metric}")) is not None]
    lower = fields.get("checkpoint.best_mode") == "min" or metric.endswith(LOW)
    is_task, batch_size = bool(fields.get("data.task")), fields.get("batch_size")
    if is_task:
        times = [entry["perf/step_ms"] for entry in speeds if entry["perf/step_ms"]]
        rates = [1e3 * batch_size / time for time in times] if batch_size else []
    else:
        rates = [entry["perf/tokens_per_sec"] for entry in speeds]
    return Run(
        path=folder,
        recipe=recipe or _described(fields),
        fields=fields,
        changed=changed,
        logged=logged,
        step=step,
        steps=steps or (step if state == "finished" else None),
        metric=metric,
        lower=lower,
        last=values[-1] if values else None,
        best=(min if lower else max)(values) if values else None,
        speed=statistics.median(rates) if rates else None,
        unit="examples/s" if is_task else "tokens/s",
        state=state,
        reason=reason,
        changed_at=_changed_at(folder),
    )


def _seeds(folder: Path, runs: list[Run]) -> Run:
    """A folder of seeds as one run: the mean and the deviation of the best of each."""
    readable = [run for run in runs if run.state != "damaged"]
    try:
        summary = read_json(folder / "summary.json")
        if not readable:
            raise FirthError("none of its seeds can be read")
        first = readable[0]
        entry = summary.get(first.metric, {})
        best, spread = entry.get("mean"), entry.get("std")
    except (FirthError, AttributeError) as error:
        return Run(folder, reason=str(error), seeds=len(runs), changed_at=_changed_at(folder))
    states = {run.state for run in runs}
    return dataclasses.replace(
        first,
        path=folder,
        fields={name: value for name, value in first.fields.items() if name != "seed"},
        last=None,
        best=best,
        spread=spread,
        state=states.pop() if len(states) == 1 else "stopped",
        reason="",
        seeds=len(runs),
        changed_at=max(run.changed_at for run in runs),
    )


def _environment(folder: Path) -> dict[str, str]:
    """{name: value} of the lines of env.txt; {} without one."""
    try:
        lines = (folder / "env.txt").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def _recipe(command: str) -> tuple[str, frozenset]:
    """(recipe, names of the fields that it sets) of a command line; ("", {}) if it has none."""
    try:
        items = shlex.split(command)
    except ValueError:  # an open quotation mark: env.txt joins the arguments by spaces
        items = command.split()
    recipe = ""
    for item, following in itertools.pairwise([*items, ""]):
        if match := re.fullmatch(r"--?config(?:=(.*))?", item):
            recipe = following if match[1] is None else match[1]
    names = (item.lstrip("-").partition("=")[0] for item in items if item.startswith("-"))
    return recipe, frozenset(
        name.removeprefix("config.") for name in names if name.startswith("config.")
    )


def _described(fields: dict) -> str:
    """The body and the objective or task, for a run that no command line started."""
    parts = (fields.get("model.family"), fields.get("objective.name"), fields.get("data.task"))
    return " ".join(str(part) for part in parts if part)


def _journal(folder: Path) -> tuple[list[dict], list[dict], int | None]:
    """(entries of evaluations, the newest entries with a speed, the last step) of the journal.

    Raises FirthError if the file has lines, but no entry.
    """
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    # A long run has many lines; only those that count are parsed.
    measured = _entries(line for line in lines if b'"eval/' in line)
    timed = [line for line in lines if b'"perf/tokens_per_sec"' in line and b"step_ms" in line]
    last = next(iter(_entries(reversed(lines))), None)
    if lines and last is None:
        raise FirthError(f"{path}: no line is an entry of a journal")
    return list(measured), list(_entries(timed[-_SPEEDS:])), last and last["step"]


def _entries(lines: Iterable[bytes]) -> Iterator[dict]:
    """The entries in lines, without those that a kill cut short."""
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            yield entry


def read_journal(folder: Path) -> list[dict]:
    """All entries of a workdir's journal, oldest first; FirthError if there is none."""
    path = Path(folder) / "metrics.jsonl"
    try:
        entries = list(_entries(path.read_bytes().splitlines()))
    except OSError as error:
        raise FirthError(f"{path}: {error.strerror}; the run has logged nothing") from None
    if not entries:
        raise FirthError(f"{path} has no entry: the run has logged nothing")
    return entries


def _metric(best: object, measured: list[dict]) -> str:
    """The metric that chooses the best checkpoint, else the held-out loss: "heldout/mlm_loss"."""
    names = {name.removeprefix("eval/"): None for entry in measured for name in entry}
    if best in names:
        return best
    ordered = [n for loss in LOSSES for n in names if n.endswith(f"/{loss}")]
    ordered += [name for name in names if name.endswith("_loss")]
    return ordered[0] if ordered else ""


def _state(folder: Path, account: dict, step, steps) -> tuple[str, str]:
    """(state, reason) of a run; accounts of older runs do not say how they ended."""
    if is_locked(folder / ".lock"):
        return "running", ""
    ended = account.get("ended")
    if isinstance(ended, str) and ended:
        state, _, reason = ended.partition(": ")
        return state, reason
    if account.get("alive", 0) is None or (not account and steps and step and step >= steps):
        return "finished", ""
    return ("stopped", "") if ended is None else ("failed", KILLED)


def _saved(account: dict) -> Iterator[int]:
    """The steps of the checkpoints that an account names; a run may stop before it logs a line."""
    saved = account.get("saved")
    for step in saved if isinstance(saved, dict) else ():
        if step.isdecimal():
            yield int(step)


def _optional(path: Path) -> dict:
    """The JSON object in a file, or {}: a run can be listed without it."""
    try:
        return read_json(path)
    except FirthError:
        return {}


def _changed_at(folder: Path) -> float:
    times = [0.0]
    for name in ("metrics.jsonl", "goodput.json", "config.json", "summary.json"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)
