"""The sections of `firth report`: of runs, of an experiment's records, of a model's errors."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from firth.display import page
from firth.display.curves import axis_name, default_metrics, figure
from firth.display.published import Published
from firth.display.runs import Run, read_journal
from firth.display.table import differing, duration, labels
from firth.errors import FirthError

README, RECORDS = "README.md", "results.jsonl"
MOST_ROWS = 500  # of an experiment's records
LENGTHS = 10  # bins of the histogram of lengths
SECONDS = "perf/seconds/"
RATES = ("learning_rate", "grad_norm")  # curves beside those of the loss and the metric


def overview(runs: Sequence[Run]) -> str:
    """What each run is, how far it came and how good it is."""
    named = labels(runs) if len(runs) > 1 else [runs[0].recipe]
    head = ["run", "state", "step", "of", "metric", "best", "last", "speed"]
    rows = [
        [
            name or run.name,
            run.state,
            run.step,
            run.steps,
            axis_name(run.metric) if run.metric else "",
            run.best if run.spread is None else f"{run.best:.4g} ± {run.spread:.2g}",
            run.last,
            f"{run.speed:,.0f} {run.unit}" if run.speed else "",
        ]
        for name, run in zip(named, runs, strict=True)
    ]
    notes = [f"{run.name}: {run.reason}" for run in runs if run.reason]
    return page.section("Overview", page.table(head, rows), *map(page.paragraph, notes))


def curves(runs: Sequence[Run], x: str = "step") -> str:
    """The curves of the runs that have logged something; why there are none, if so."""
    runs = [run for run in runs if run.logged and not run.seeds]
    if not runs:
        return page.section("Curves", page.paragraph("nothing is logged yet", soft=True))
    known = {tag.rpartition("/")[2] for run in runs for e in read_journal(run.path) for tag in e}
    metrics = dict.fromkeys((*default_metrics(runs), *RATES))
    metrics = [name for name in metrics if name in known]
    if not metrics:
        return page.section("Curves", page.paragraph("the journal has no losses", soft=True))
    drawn = []
    for metric in metrics:  # a picture each, so that a phone shows one below the other
        one = figure(runs, [metric], x)
        if len(runs) == 1:
            one.suptitle("")  # the page has named the run
        drawn.append(page.picture(one))
    return page.section("Curves", page.side_by_side(drawn))


def time(run: Run) -> str:
    """Where the seconds of a run went; "" for a journal without them."""
    entries = [e for e in read_journal(run.path) if f"{SECONDS}step" in e] if run.logged else []
    if not entries:
        return ""
    seconds = {k.removeprefix(SECONDS): v for k, v in entries[-1].items() if k.startswith(SECONDS)}
    seconds = {name: value for name, value in seconds.items() if value >= 0.05}
    rows = [[name, round(value, 1)] for name, value in seconds.items()]
    total = duration(sum(seconds.values()))
    return page.section(
        "Time", page.paragraph(f"{total} up to step {entries[-1]['step']:,}"),
        page.bars(["what", "seconds"], rows, at=1),
    )  # fmt: skip


def settings(runs: Sequence[Run]) -> str:
    """The fields of the config, those that differ or that the command sets first; env.txt."""
    first = runs[0]
    rows = [[name, _plain(value), ""] for name, value in first.fields.items()]
    own = set(differing(runs)) if len(runs) > 1 else first.changed
    for row in rows:
        if row[0] in own:
            row[2] = "differs" if len(runs) > 1 else "set by the command"
    rows.sort(key=lambda row: not row[2])
    parts = [page.folded(f"config ({len(rows)} fields)", page.table(["field", "value", ""], rows))]
    path = first.path / "env.txt"
    if path.is_file():
        said = page.preformatted(path.read_text(errors="replace"))
        parts.append(page.folded("environment and command", said))
    return page.section("Settings", *parts)


def _plain(value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def judged(found, baseline: dict[str, float], others: Sequence[Published] = ()) -> list[str]:
    """The sections of a `firth.inference.judging.judged.Judged`.

    `baseline` is {metric: what a constant answer has}, {} if unknown. `others` is what papers
    report on this split.
    """
    head = ["metric", "model", *(["constant answer"] if baseline else [])]
    rows = [
        [axis_name(name), value, *([baseline.get(name)] if baseline else [])]
        for name, value in found.metrics.items()
    ]
    said = f"{found.examples:,} examples of {found.split} ({found.source})"
    parts = [page.paragraph(said), page.table(head, rows)]
    if found.by_label:
        own = [[name, *row.values()] for name, row in found.by_label.items()]
        parts.append(page.table(["label", *next(iter(found.by_label.values()))], own))
    if others:
        own = [[one.model, one.value, axis_name(one.metric), one.source] for one in others]
        said = f"What others report on {found.split}:"
        parts += [page.paragraph(said), page.table(["model", "value", "metric", "source"], own)]
    sections = [page.section("Results", *parts)]
    if found.confusion is not None:
        said = "Rows are what is right, columns what the model said."
        drawn = page.heat_map("right \\ said", found.labels, found.confusion.tolist())
        sections.append(page.section("Confusion", page.paragraph(said, soft=True), drawn))
    if found.scores is not None:
        sections.append(page.section("Scores", page.picture(_scatter(found.scores))))
    if found.calibration is not None:
        sections.append(_calibration(found.calibration))
    sections.append(_lengths(found))
    sections.append(_worst(found))
    return sections


def _scatter(scores_N2: np.ndarray):
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(5.2, 4.4), layout="constrained")
    axes = drawn.subplots()
    low, high = scores_N2.min(), scores_N2.max()
    axes.plot([low, high], [low, high], color="0.7", lw=1)
    axes.scatter(*scores_N2.T, s=9, alpha=0.4, color="#0072B2", linewidths=0)
    axes.set(xlabel="right", ylabel="what the model said")
    axes.spines[["top", "right"]].set_visible(False)
    return drawn


def _calibration(found) -> str:
    bins = len(found.counts)
    rows = [
        [f"{i / bins:.1f} to {(i + 1) / bins:.1f}", int(count), float(sure), float(right)]
        for i, (count, sure, right) in enumerate(
            zip(found.counts, found.confidence, found.accuracy, strict=True)
        )
        if count
    ]
    said = (
        f"Expected calibration error {found.error:.4f}: how far the probability of a prediction is "
        "from how often it is right, on average."
    )
    head = ["probability", "examples", "mean probability", "right"]
    return page.section("Calibration", page.paragraph(said), page.bars(head, rows, at=1))


def _lengths(found) -> str:
    words_N = found.words
    width = max(1, -(-(int(words_N.max()) + 1 - int(words_N.min())) // LENGTHS))
    edges = int(words_N.min()) + width * np.arange(LENGTHS + 1)
    bin_N = np.digitize(words_N, edges) - 1
    rows = []
    for i in np.unique(bin_N):
        own = bin_N == i
        name = f"{edges[i]} to {edges[i] + width - 1}" if width > 1 else str(edges[i])
        rows.append([name, int(own.sum())])
        if found.score is not None:
            rows[-1].append(float(found.score[own].mean()))
    head = ["words", "examples", *([found.score_name] if found.score is not None else [])]
    return page.section("Lengths", page.bars(head, rows, at=1))


def _worst(found) -> str:
    if not found.worst:
        return page.section("Errors", page.paragraph("none: every example is right"))
    said = f"The {len(found.worst)} worst of {found.wrong:,}, the worst first."
    parts = [page.paragraph(said, soft=True)]
    for one in found.worst:
        texts = "".join(
            f"<p><b>{page.text(name)}</b> {page.text(page.shortened(text))}</p>"
            for name, text in one.texts.items()
        )
        verdict = f"right: <b>{page.text(one.gold)}</b> · said: <b>{page.text(one.predicted)}</b>"
        parts.append(
            f'<div class="wrong">{texts}<p>{verdict} '
            f'<span class="soft">({page.text(one.how)})</span></p></div>'
        )
    return page.section("Errors", *parts)


def missing(title: str, why: str) -> str:
    """A section that says why it is empty."""
    return page.section(title, page.paragraph(f"left out: {why}", soft=True))


def sweep(folder: Path) -> str:
    """The table and the boxes that `firth sweep` leaves; "" where there is none."""
    parts = []
    if (folder / "sweep.md").is_file():
        parts.append(markdown((folder / "sweep.md").read_text(), folder))
    if (folder / "sweep.png").is_file():
        parts.append(page.image(folder / "sweep.png", "a box for each setting"))
    return page.section("Sweep", *parts) if parts else ""


def is_experiment(folder: Path) -> bool:
    """Whether a folder has what `experiment` shows."""
    return any((folder / name).is_file() for name in (README, RECORDS))


def experiment(folder: Path) -> list[str]:
    """The README and the records of an experiment's folder.

    Raises FirthError for a folder with neither, and for a line that is no JSON object.
    """
    readme, lines = folder / README, folder / RECORDS
    if not is_experiment(folder):
        raise FirthError(
            f"{folder} holds no run of `firth train`, no README.md and no results.jsonl; name a "
            "workdir, a folder of them, or one of experiments/"
        )
    parts = [markdown(readme.read_text(), folder)] if readme.is_file() else []
    if lines.is_file():
        parts.append(records(lines))
    return parts


def records(path: Path) -> str:
    """A file of JSON objects, a line each, as a table with a column for each of their fields."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except ValueError:
            found.append(None)
        if not isinstance(found[-1], dict):
            raise FirthError(f"{path}:{number}: expected a JSON object, found {line!r:.60}")
    names = list(dict.fromkeys(name for one in found for name in one))
    rows = [[_cell(one.get(name)) for name in names] for one in found[:MOST_ROWS]]
    said = f"{len(found):,} lines of {path.name}"
    if len(found) > MOST_ROWS:
        said += f", the first {MOST_ROWS} here"
    return page.section("Records", page.paragraph(said, soft=True), page.table(names, rows))


def _cell(value):
    """A value of a record; what is nested as short JSON."""
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False)
        return value if len(value) <= 80 else f"{value[:77]}..."
    return value


def markdown(text: str, folder: Path) -> str:
    """Markdown as HTML: its pictures of that folder within the page, its links as their text.

    HTML in it is shown as it is written.
    """
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    for name in ("link_open", "link_close"):
        reader.add_render_rule(name, lambda *_: "")
    reader.add_render_rule("table_open", lambda *_: '<div class="wide"><table>')
    reader.add_render_rule("table_close", lambda *_: "</table></div>")

    def image(renderer, tokens, number, *_):
        path = folder / tokens[number].attrGet("src")
        return page.image(path, tokens[number].content)

    reader.add_render_rule("image", image)
    tokens = reader.parse(text)
    for token in tokens:  # the page has a title already
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
    return f"<section>{reader.renderer.render(tokens, reader.options, {})}</section>"


def seeds(runs: Iterable[Run]) -> str:
    """The best of each seed, and mean and deviation of the metrics in summary.json."""
    rows = []
    for run in runs:
        found = json.loads((run.path / "summary.json").read_text())
        for name, entry in found.items():
            values = entry.get("values", {})
            each = ", ".join(f"{value:.4g}" for value in values.values() if value is not None)
            rows.append([name, entry.get("mean"), entry.get("std"), entry.get("median"), each])
    head = ["metric", "mean", "deviation", "median", "each seed"]
    return page.section("Seeds", page.table(head, rows))
