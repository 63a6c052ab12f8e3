"""Curves of runs, drawn from their journals.

A panel shows one metric. A run has one colour: its training curve is a thin line, and each held-out
set has a line of its own with markers.
"""

import dataclasses
import itertools
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.display.runs import Run, read_journal, read_run
from firth.display.table import labels
from firth.errors import FirthError
from firth.recipe import suggest

log = logging.getLogger("firth")

FORMATS = (".png", ".svg", ".pdf")
AXES = {"step": "step", "tokens": "tokens, padding included", "hours": "hours of running"}
# Okabe and Ito's colours: readers with any kind of colour vision can tell them apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = 20  # markers of a line, at most
LINES, MARKERS = ("-", "--", ":", "-."), "os^Dv*"
NAMES = {
    "mlm_loss": "masked-LM loss (nats)",
    "lm_loss": "language-modelling loss (nats)",
    "plm_loss": "permutation-LM loss (nats)",
    "rtd_loss": "replaced-token detection loss (nats)",
    "generator_loss": "loss of the generator (nats)",
    "nsp_loss": "next-sentence loss (nats)",
    "sop_loss": "sentence-order loss (nats)",
    "learning_rate": "learning rate",
    "grad_norm": "norm of the gradient",
    "tokens_per_sec": "tokens/s",
    "step_ms": "milliseconds a step",
}


@dataclasses.dataclass(frozen=True)
class Curve:
    """One series: `tag` of the journal, its places on the x axis [n] and its values [n]."""

    tag: str
    x: np.ndarray
    y: np.ndarray

    @property
    def held_out(self) -> str:
        """The name of the held-out set, or "" for a training curve."""
        kind, *rest = self.tag.split("/")
        return "/".join(rest[:-1]) if kind == "eval" else ""


def curves_of(entries: list[dict], metric: str, x: str = "step", smooth: int = 1) -> list[Curve]:
    """The series of a journal whose tag is `metric`, or ends with "/" and it.

    `x` is one of AXES. `smooth` is the number of lines that each training value is the mean of; it
    leaves held-out values as they are.
    """
    tags = dict.fromkeys(tag for entry in entries for tag in entry)
    place = _places(entries, x)
    found = []
    for tag in tags:
        if tag != metric and not tag.endswith(f"/{metric}"):
            continue
        points = [(e["step"], e[tag]) for e in entries if isinstance(e.get(tag), int | float)]
        if points:
            steps, values = np.array(points, float).T
            held_out = tag.startswith("eval/")
            found.append(Curve(tag, place(steps), values if held_out else mean(values, smooth)))
    return found


def mean(values: np.ndarray, width: int) -> np.ndarray:
    """The mean of the `width` values around each; of as many as there are at the ends."""
    half = (width - 1) / 2
    before, after = math.ceil(half), math.floor(half)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - before, 0), np.minimum(at + after + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def _places(entries: list[dict], x: str):
    """A function from steps to places on the x axis."""
    if x == "step":
        return lambda steps: steps
    timed = [e for e in entries if e.get("perf/step_ms") and e.get("perf/tokens_per_sec")]
    if not timed:
        raise FirthError(f"the journal has no speeds, which x={x} needs; take the steps instead")
    steps = np.array([entry["step"] for entry in timed], float)
    seconds = np.array([entry["perf/step_ms"] / 1e3 for entry in timed])  # of a step
    if x == "tokens":
        rates = np.array([entry["perf/tokens_per_sec"] for entry in timed])
        sums = np.cumsum(rates * seconds * np.diff(steps, prepend=0))
    elif any("perf/seconds/step" in entry for entry in timed):
        sums = np.array([_running(entry) for entry in timed]) / 3600
    else:  # an older journal
        sums = np.cumsum(seconds * np.diff(steps, prepend=0)) / 3600
    return lambda at: np.interp(at, [0, *steps], [0, *sums])


def _running(entry: dict) -> float:
    """Seconds of a run up to a line of its journal, without those between two processes."""
    kinds = {k: v for k, v in entry.items() if k.startswith("perf/seconds/")}
    return sum(kinds.values()) - kinds.get("perf/seconds/dead", 0.0)


def default_metrics(runs: Sequence[Run]) -> list[str]:
    """The loss of each run, and its main metric if that is another one; "loss" if none has any."""
    found = {}
    for run in runs:
        main = run.metric.rpartition("/")[2]
        if main and not main.endswith("_loss"):
            found["task_loss" if run.fields.get("data.task") else "loss"] = None
        if main:
            found[main] = None
    return list(found) or ["loss"]


def draw(
    runs: Sequence[Run],
    output: Path,
    metrics: Sequence[str] = (),
    x: str = "step",
    smooth: int = 1,
) -> None:
    """Draw the curves of runs to a file, whose ending chooses PNG, SVG or PDF; see `figure`.

    A reader sees the old file or the new one. Raises FirthError as `figure` and `save` do.
    """
    save(figure(runs, metrics, x, smooth), output)


def figure(runs: Sequence[Run], metrics: Sequence[str] = (), x: str = "step", smooth: int = 1):
    """The curves of runs as a matplotlib figure, a panel for each metric.

    Args:
      runs: what to draw; those that have none of the metrics are left out.
      metrics: tags of the journals, or their ends: "mlm_loss", "heldout/mlm_loss", "grad_norm". By
        default the loss of the runs, and their main metric if that is another one.
      x: "step", "tokens" or "hours".
      smooth: the number of journal lines that a point of a training curve is the mean of.

    Raises FirthError for a metric that no run has, and for a run without a journal.
    """
    journals = [read_journal(run.path) for run in runs]
    panels = {}
    for metric in metrics or default_metrics(runs):
        panels[metric] = [curves_of(entries, metric, x, smooth) for entries in journals]
        if not any(panels[metric]):
            raise FirthError(_unknown(metric, journals))
    shown = [any(curves) for curves in zip(*panels.values(), strict=True)]  # with a curve
    panels = {metric: list(itertools.compress(own, shown)) for metric, own in panels.items()}
    return _figure(list(itertools.compress(runs, shown)), panels, x)


def _unknown(metric: str, journals: list[list[dict]]) -> str:
    tags = {tag for entries in journals for entry in entries for tag in entry} - {"step"}
    known = {tag.rpartition("/")[2] for tag in tags if not tag.startswith("perf/seconds/")}
    return f"no journal has the metric {metric!r}{suggest(metric, known)}"


def _figure(runs: Sequence[Run], panels: dict[str, list[list[Curve]]], x: str):
    """The figure of panels, {metric: curves of each run}."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    across = min(len(panels), 2)
    down = math.ceil(len(panels) / across)
    drawn = Figure(figsize=(1 + 5.2 * across, 0.9 + 3.7 * down), layout="constrained")
    styles = itertools.cycle(itertools.product(LINES, COLOURS))
    styles = list(itertools.islice(styles, len(runs)))
    last = max(curve.x.max() for panel in panels.values() for own in panel for curve in own)
    factor = 60 if x == "hours" and last < 1 else 1  # short runs in minutes
    for axes, (metric, panel) in zip(
        drawn.subplots(down, across, squeeze=False).flat, panels.items(), strict=False
    ):
        markers = _markers(panel)
        for curves, style in zip(panel, styles, strict=True):
            _draw(axes, curves, markers, factor, *style)
        axes.set(xlabel="minutes of running" if factor == 60 else AXES[x], ylabel=axis_name(metric))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if x == "tokens":
            axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
        axes.legend(handles=_kinds(panel, markers), frameon=False)
    for axes in drawn.axes[len(panels) :]:
        axes.set_visible(False)
    if len(runs) == 1:
        drawn.suptitle(f"{runs[0].name}   {runs[0].recipe}", fontsize="medium")
    else:
        _name_runs(drawn, runs, styles)
    return drawn


def _name_runs(drawn, runs: Sequence[Run], styles: list[tuple[str, str]]) -> None:
    """Put a legend above the panels that says which run has which colour, and make room for it."""
    from matplotlib.lines import Line2D

    named = zip(labels(runs), styles, strict=True)
    handles = [Line2D([], [], color=c, linestyle=s, lw=2.5, label=n) for n, (s, c) in named]
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(len(runs), int(14 * drawn.get_figwidth()) // (longest + 8)))
    drawn.set_figheight(drawn.get_figheight() + 0.2 * math.ceil(len(runs) / columns))
    where = dict(loc="outside upper center", ncols=columns)
    drawn.legend(handles=handles, frameon=False, fontsize="small", **where)


def _markers(panel: list[list[Curve]]) -> dict[str, str]:
    """{held-out set: its marker} of a panel."""
    sets = dict.fromkeys(curve.held_out for curves in panel for curve in curves if curve.held_out)
    return dict(zip(sets, itertools.cycle(MARKERS), strict=False))


def _draw(axes, curves: list[Curve], markers: dict, factor: int, line: str, colour: str) -> None:
    for curve in curves:
        if curve.held_out:
            every = math.ceil(len(curve.x) / MARKS)
            style = dict(lw=1.8, marker=markers[curve.held_out], markersize=4.5, markevery=every)
        else:  # a line of one point could not be seen
            style = dict(lw=1, alpha=0.55, marker="." if len(curve.x) == 1 else None)
        axes.plot(factor * curve.x, curve.y, color=colour, linestyle=line, **style)


def _kinds(panel: list[list[Curve]], markers: dict[str, str]) -> list:
    """Entries of a legend that say which lines are of training, and which of a held-out set."""
    from matplotlib.lines import Line2D

    grey, kinds = "0.3", []
    if any(not curve.held_out for curves in panel for curve in curves):
        kinds.append(Line2D([], [], color=grey, lw=1, alpha=0.55, label="training"))
    for name, marker in markers.items():
        label = "held out" if name == "heldout" else f"held out: {name}"
        kinds.append(Line2D([], [], color=grey, lw=1.8, marker=marker, ms=4.5, label=label))
    return kinds


def axis_name(metric: str) -> str:
    """The name of a metric with its unit."""
    name = metric.rpartition("/")[2]
    return NAMES.get(name, name.replace("_", " "))


def save(figure, path: Path) -> None:
    """Write a matplotlib figure; a reader sees the old file or the new one.

    Raises FirthError for an ending that matplotlib does not know, and where it cannot be written.
    """
    import matplotlib

    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise FirthError(f"{path}: expected a file that ends in {', '.join(FORMATS)}")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where its cache is concerns nobody
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{ending}")
    try:
        with matplotlib.rc_context({"svg.hashsalt": "firth"}):
            figure.savefig(temporary, dpi=130)
        os.replace(temporary, path)
    except OSError as error:
        raise FirthError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def draw_workdir(workdir: Path) -> None:
    """Draw a run's curves to its curves.png; whatever is in the way is logged and does no harm."""
    try:
        draw([read_run(workdir)], workdir / "curves.png")
    except Exception as error:  # a run that has ended well must not fail for its picture
        log.warning("no curves.png: %s", " ".join(str(error).split()))
