"""What the runs of a sweep came to: a line a run, a table of cells, and a box plot."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from firth.display.runs import LOW, read_journal, read_run
from firth.errors import FirthError
from firth.recipe import located, read_recipe, suggest
from firth.run.recorded import is_longer
from firth.run.sweeping.grid import SweepRun
from firth.storage.local import read_json, write_text

COLUMNS = ("mean", "sd", "median", "best")


@dataclass(frozen=True)
class Outcome:
    """One run.

    setting, seed: as in `SweepRun`. run: its workdir. state, reason: as in `display.runs.Run`.
    metric: what chooses its best checkpoint. best: of that metric, None before any evaluation.
    measures: all held-out metrics at that evaluation. baseline: what a constant answer has in the
    metric, where the task knows it. lower: whether small values are good.
    unstable: whether it failed, or ended no better than that answer (Mosbach et al. 2021, section
      3).
    """

    setting: dict
    seed: int | None
    run: str
    state: str
    reason: str
    metric: str
    best: float | None
    measures: dict
    baseline: float | None
    lower: bool
    unstable: bool


def outcome(run: SweepRun, metric: str = "") -> Outcome:
    """Read what is in a run's workdir; `metric` is another one than that of its checkpoints."""
    found = read_run(run.workdir)
    metric = metric or found.metric
    entries = read_journal(run.workdir) if found.logged else []
    entries = [entry for entry in entries if entry.get(f"eval/{metric}") is not None]
    lower = found.lower if metric == found.metric else metric.endswith(LOW)
    choose = min if lower else max
    entry = choose(entries, key=lambda entry: entry[f"eval/{metric}"], default={})
    best = entry.get(f"eval/{metric}")
    split, _, name = metric.rpartition("/")
    path = run.workdir / "baselines.json"
    baseline = read_json(path).get(split, {}).get(name) if path.exists() else None
    useless = best is not None and baseline is not None
    if useless:
        last = entries[-1][f"eval/{metric}"]
        useless = last >= baseline if lower else last <= baseline
    finished = found.state == "finished"
    state, reason = found.state, found.reason
    if not (run.workdir / "config.json").exists():  # refused before it began
        lines = run.log.read_text(errors="replace").split("\n") if run.log.exists() else []
        state, reason = "failed", next(filter(None, reversed(lines)), "it printed nothing")
    return Outcome(
        setting=run.setting,
        seed=run.seed,
        run=str(run.workdir),
        state=state,
        reason=reason,
        metric=metric,
        best=best,
        measures={
            name.removeprefix("eval/"): value
            for name, value in entry.items()
            if name.startswith("eval/")
        },
        baseline=baseline,
        lower=lower,
        unstable=state in ("failed", "damaged") or (finished and useless),
    )


def is_finished(run: SweepRun) -> bool:
    """Whether nothing is left to do: it has ended, and no more epochs or steps are asked for.

    Raises FirthError for a run that another process trains, and for one of another config.
    """
    found = read_run(run.workdir) if run.workdir.exists() else None
    if found and found.state == "running":
        raise FirthError(
            f"{run.workdir} is trained by another process now; wait for its end, or stop it"
        )
    if not found or found.state != "finished":
        return False
    recipe, fields = run.arguments[0].removeprefix("--config="), run.arguments[2:]
    return not is_longer(located(read_recipe(recipe, fields)), run.workdir)


def check_metric(outcomes: Sequence[Outcome], metric: str):
    """Raise FirthError for the name of a metric that none of the runs has, though some have any."""
    if not metric or any(one.best is not None for one in outcomes):
        return
    folders = [Path(one.run) for one in outcomes if (Path(one.run) / "metrics.jsonl").is_file()]
    entries = [entry for folder in folders for entry in read_journal(folder)]
    known = {name.removeprefix("eval/") for one in entries for name in one if "eval/" in name}
    if known and metric not in known:
        raise FirthError(f"--metric {metric}: no run has it{suggest(metric, known)}")


def write_lines(outcomes: Sequence[Outcome], path: Path):
    """A JSON object a run."""
    write_text(path, "".join(json.dumps(asdict(one)) + "\n" for one in outcomes))


def cells(outcomes: Sequence[Outcome]) -> list[dict]:
    """{setting, runs, mean, sd, median, best, unstable} of each cell, the best mean first.

    The figures are those of runs that have a value; sd is the sample's, None of a single one.
    """
    groups = {}
    for one in outcomes:
        groups.setdefault(json.dumps(one.setting), []).append(one)
    found = []
    for own in groups.values():
        values = [one.best for one in own if one.best is not None]
        figures = dict.fromkeys(COLUMNS)
        if values:
            figures = dict(
                mean=statistics.mean(values),
                sd=statistics.stdev(values) if len(values) > 1 else None,
                median=statistics.median(values),
                best=(min if _measured(own).lower else max)(values),
            )
        unstable = sum(one.unstable for one in own)
        found.append(dict(setting=own[0].setting, runs=len(own), **figures, unstable=unstable))
    sign = 1 if _measured(outcomes).lower else -1
    return sorted(found, key=lambda cell: math.inf if cell["mean"] is None else sign * cell["mean"])


def table(outcomes: Sequence[Outcome]) -> str:
    """The cells in Markdown, and what the figures are."""
    found = cells(outcomes)
    names = [*found[0]["setting"], "runs", *COLUMNS, "unstable"]
    rows = [names, *([_text(cell, name) for name in names] for cell in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * (width - 1) + ":" for width in widths])
    lines = [
        "| " + " | ".join(f"{item:>{w}}" for item, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    first = _measured(outcomes)
    said = f"{first.metric or 'no metric yet'}, the best evaluation of each run"
    if first.baseline is not None:
        said += f"; a constant answer has {first.baseline:.4f}"
    return "\n".join([*lines, "", said])


def _measured(outcomes: Sequence[Outcome]) -> Outcome:
    """The first run with a value, or the first of all."""
    return next((one for one in outcomes if one.best is not None), outcomes[0])


def _text(cell: dict, name: str) -> str:
    value = cell["setting"].get(name, cell.get(name))
    if name in COLUMNS:
        return "-" if value is None else f"{value:.4f}"
    return str(value)


def draw(outcomes: Sequence[Outcome], path: Path):
    """A box for each cell in the order of the table, and its runs as points; PNG, SVG or PDF."""
    from matplotlib.figure import Figure

    from firth.display.curves import COLOURS, save

    order = [json.dumps(cell["setting"]) for cell in cells(outcomes)]
    values = {name: [] for name in order}
    for one in outcomes:
        if one.best is not None:
            values[json.dumps(one.setting)].append(one.best)
    drawn = Figure(figsize=(2.5 + 0.6 * len(order), 4.2), layout="constrained")
    axes = drawn.subplots()
    places = range(1, len(order) + 1)
    line = {"color": COLOURS[1]}
    axes.boxplot(list(values.values()), widths=0.6, showfliers=False, medianprops=line)
    for place, own in zip(places, values.values(), strict=True):
        axes.plot([place] * len(own), own, "o", color=COLOURS[0], markersize=4, alpha=0.7)
    first = _measured(outcomes)
    if (baseline := first.baseline) is not None:
        axes.axhline(baseline, color="0.5", linestyle=":", label="a constant answer")
        axes.legend(loc="best")
    settings = [", ".join(f"{k}={v}" for k, v in json.loads(name).items()) for name in order]
    axes.set_xticks(places, [setting or "all" for setting in settings], rotation=90)
    axes.set_ylabel(first.metric)
    save(drawn, path)
