"""Runs as a table: on a terminal, as plain text, as CSV and as JSON."""

import csv
import io
import json
import sys
import time
from collections.abc import Sequence

from firth.display.runs import Run
from firth.errors import FirthError
from firth.recipe import FREE, suggest

COLUMNS = ("run", "recipe", "differs", "steps", "metric", "last", "best", "speed", "state", "age")
RIGHT = ("steps", "last", "best", "speed", "age")  # columns of numbers
LONG, ROOM = ("run", "recipe", "differs"), 48  # columns that may wrap, and what they need in all
UNITS = {"tokens/s": "tok/s", "examples/s": "ex/s"}
# What a run has in JSON and CSV, before the fields in which the runs differ.
RECORD = ("run", "recipe", "step", "steps", "metric", "last", "best", "spread", "speed", "unit")
RECORD += ("state", "reason", "seeds", "age_seconds")


def differing(runs: Sequence[Run]) -> list[str]:
    """Dotted names of the fields in which the runs differ, in the order of their configs.

    Fields that change no result are left out. So are those that the recipe's arguments decide,
    unless a run sets them by itself: that `bert.py:mini` is wider than `bert.py:tiny` needs no
    words.
    """
    runs = [run for run in runs if run.fields]
    names = dict.fromkeys(name for run in runs for name in run.fields)
    return [name for name in names if not _is_free(name) and _differs(name, runs)]


def _differs(name: str, runs: Sequence[Run]) -> bool:
    values = {}  # of each recipe; runs of recipes without the field do not count
    for run in runs:
        if name in run.fields:
            values.setdefault(run.recipe, set()).add(json.dumps(run.fields[name]))
    if len(set.union(*values.values())) == 1:
        return False
    return any(len(own) > 1 for own in values.values()) or any(name in r.changed for r in runs)


def _is_free(name: str) -> bool:
    return any(name == free or name.startswith(f"{free}.") for free in FREE)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """{dotted name: its last part, or all of it where two have the same}."""
    ends = [name.rpartition(".")[2] for name in names]
    return {
        name: end if ends.count(end) == 1 else name for name, end in zip(names, ends, strict=True)
    }


def described(run: Run, names: Sequence[str]) -> str:
    """The values of these fields in words: "lr=0.001 seed=1"."""
    short = short_names(names)
    return " ".join(f"{short[name]}={_text(run.fields[name])}" for name in _own(run, names))


def labels(runs: Sequence[Run]) -> list[str]:
    """What tells each run from the others: recipe and differing fields, else its path."""
    names, alike = differing(runs), len({run.recipe for run in runs}) == 1
    found = [" ".join(([] if alike else [run.recipe]) + [described(run, names)]) for run in runs]
    found = [label.strip() for label in found]
    return [
        label if label and found.count(label) == 1 else run.name
        for label, run in zip(found, runs, strict=True)
    ]


def records(runs: Sequence[Run], now: float | None = None) -> list[dict]:
    """The runs as plain values: RECORD, and `differs`, {field: value}."""
    now = time.time() if now is None else now
    names = differing(runs)
    return [
        {name: _plain(run, name, now) for name in RECORD}
        | {"differs": {name: run.fields[name] for name in _own(run, names)}}
        for run in runs
    ]


def _own(run: Run, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in run.fields]


def _plain(run: Run, name: str, now: float):
    if name == "age_seconds":
        return max(round(now - run.changed_at), 0)
    return str(run.path) if name == "run" else vars(run)[name]


def ordered(runs: Sequence[Run], field: str) -> list[Run]:
    """The runs by a column or a field of their recipes; "-field" begins with the greatest.

    Runs without a value come last. Raises FirthError for an unknown field.
    """
    name, down = field.removeprefix("-"), field.startswith("-")
    known = {"run", "recipe", "step", "steps", "metric", "last", "best", "speed", "state", "age"}
    fields = dict.fromkeys(key for run in runs for key in run.fields)
    named = {key: [key] for key in fields}
    for key in fields:  # the last part of a name will do where only one field has it
        named.setdefault(key.rpartition(".")[2], []).append(key)
    if name not in known and len(named.get(name, ())) != 1:
        close = {*known, *differing(runs), *(named.get(name) or named)}
        raise FirthError(f"--sort {field}: no such field{suggest(name, close)}")

    def value(run: Run):
        if name not in known:
            return run.fields.get(named[name][0])
        return _key(run, name)

    # A table sorted by steps is sorted by the steps done.
    present = [(value(run), run) for run in runs]
    missing = [run for own, run in present if own is None or own == ""]
    present = [pair for pair in present if pair[1] not in missing]
    numbers = all(isinstance(own, int | float) for own, _ in present)
    present.sort(key=lambda pair: pair[0] if numbers else str(pair[0]), reverse=down)
    return [run for _, run in present] + missing


def _key(run: Run, name: str):
    if name in ("run", "age"):
        return str(run.path) if name == "run" else -run.changed_at
    return vars(run)["step" if name == "steps" else name]


def as_json(runs: Sequence[Run]) -> str:
    """A list of objects."""
    return json.dumps(records(runs), indent=2)


def as_csv(runs: Sequence[Run]) -> str:
    """A line a run, a column for each field in which the runs differ."""
    names, file = differing(runs), io.StringIO()
    writer = csv.DictWriter(file, [*RECORD, *names], lineterminator="\n")
    writer.writeheader()
    for record in records(runs):
        writer.writerow({name: record[name] for name in RECORD} | record["differs"])
    return file.getvalue()


def show(runs: Sequence[Run], file=None, now: float | None = None) -> None:
    """Print the table, and below it the reasons of runs that failed or cannot be read.

    It is fitted to a terminal, a narrow one without some columns; elsewhere it is plain aligned
    text, a line a run.
    """
    from rich.console import Console
    from rich.table import Table

    file, now, names = file or sys.stdout, time.time() if now is None else now, differing(runs)
    rows = [_row(run, names, now) for run in runs]
    shown = [name for name in COLUMNS if any(row[name] for row in rows)]
    terminal = file.isatty()
    console = Console(file=file, markup=False, highlight=False)
    if terminal:
        shown = _fitting(rows, shown, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in shown:
        side = "right" if name in RIGHT else "left"
        wraps = terminal and name in LONG
        table.add_column(name, justify=side, overflow="fold", no_wrap=not wraps)
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    if terminal:
        console.print(table)
    else:
        text = io.StringIO()
        Console(file=text, width=100_000, markup=False, highlight=False).print(table)
        print("\n".join(line.rstrip() for line in text.getvalue().splitlines()), file=file)
    for run in runs:
        if run.reason:
            print(f"{run.state}: {run.name}: {run.reason}", file=file)


def _fitting(rows: list[dict], shown: list[str], width: int) -> list[str]:
    """The columns; the least important ones go while the long ones have too little room."""
    wide = {name: max(len(name), *(len(row[name]) for row in rows)) + 2 for name in shown}
    for least in (None, "speed", "age", "metric", "last"):
        shown = [name for name in shown if name != least]
        if width - sum(wide[name] for name in shown if name not in LONG) >= ROOM:
            break
    return shown


def _row(run: Run, names: Sequence[str], now: float) -> dict[str, str]:
    """{column: text} of a run."""
    best = _text(run.best) + (f" ± {run.spread:.2g}" if run.spread is not None else "")
    done = f"{run.step or 0:,}" if run.step is not None or run.steps else ""
    return {
        "run": run.name,
        "recipe": run.recipe,
        "differs": described(run, [name for name in names if name != "steps"]),
        "steps": f"{done}/{run.steps:,}" if run.steps else done,
        "metric": run.metric.removeprefix("heldout/"),
        "last": _text(run.last),
        "best": best,
        "speed": f"{run.speed:,.0f} {UNITS[run.unit]}" if run.speed else "",
        "state": run.state,
        "age": duration(now - run.changed_at) if run.changed_at else "",
    }


def _text(value) -> str:
    """A value in a cell."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """A time in its two largest units: "40 s", "3 min", "2 h 5 min", "3 days 4 h"."""
    seconds = max(seconds, 0)
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours + (minutes >= 30), 24)
    named = f"{days:,} day{'' if days == 1 else 's'}"
    return f"{named} {hours} h" if hours and days < 10 else named
