"""`firth report`: a run, several runs or an experiment as one HTML page.

firth report runs/snippets [--split test] [--errors 30]
firth report experiments/ptb --output ptb.html
"""

import sys
from pathlib import Path

from firth.commands.arguments import Parser, check_output, positive
from firth.errors import FirthError

NAME = "report.html"


def main(argv: list[str]) -> int:
    """`firth report`."""
    parser = Parser(
        prog="firth report",
        description="Write one HTML page about a run, a folder of runs (seeds, a sweep) or an "
        "experiment: curves, results beside a constant answer's and what papers report, confusion, "
        "calibration, the worst errors with their texts, lengths, config and environment. The page "
        "needs no network and no other file.",
    )
    add = parser.add_argument
    add("folder", metavar="WORKDIR|EXPERIMENT", help="a workdir, a folder of them, an experiment")
    add("--output", metavar="FILE", help=f"the page (WORKDIR/{NAME})")
    add("--split", help="the split that shows the errors (dev)")
    add("--errors", type=positive, default=20, metavar="N", help="how many of the worst (20)")
    add("--no-model", action="store_true", help="leave out what needs the model to run")
    args = parser.parse_args(argv)
    from firth.display import page, report
    from firth.display.runs import find_runs
    from firth.storage.local import write_bytes

    folder = Path(args.folder)
    runs = find_runs([args.folder])
    output = check_output(args.output or str(folder / NAME))
    if output.suffix not in (".html", ".htm"):
        raise FirthError(f"--output {output}: expected a file that ends in .html")
    if all(run.state == "damaged" for run in runs):
        if runs and not report.is_experiment(folder):
            raise FirthError(f"{runs[0].path}: {runs[0].reason}")
        runs = []
    parts = _of_runs(folder, runs, args) if runs else report.experiment(folder)
    write_bytes(output, page.page(folder.resolve().name, parts).encode())
    print(f"{output}: {len(runs)} run{'' if len(runs) == 1 else 's'}" if runs else f"{output}")
    return 0


def _of_runs(folder: Path, runs: list, args) -> list[str]:
    from firth.display import page, report

    damaged = [run for run in runs if run.state == "damaged"]
    runs = [run for run in runs if run not in damaged]
    parts = [report.overview(runs + damaged), report.sweep(folder)]
    if summaries := [run for run in runs if run.seeds]:
        parts.append(report.seeds(summaries))
    single = [run for run in runs if not run.seeds]
    parts.append(report.curves(single))
    if len(single) == 1 or summaries:
        best = single[0] if len(single) == 1 else best_run(single)
        if len(single) > 1:
            parts.append(page.paragraph(f"What follows is of the best run, {best.name}."))
        parts += [] if args.no_model else _judged(best, args)
        parts.append(report.time(best))
    parts.append(report.settings(single))
    return parts


def best_run(runs: list):
    """The run whose best checkpoint has the best metric, the first of several."""
    known = [run for run in runs if run.best is not None]
    if not known:
        return runs[0]
    return (min if known[0].lower else max)(known, key=lambda run: run.best)


def _judged(run, args) -> list[str]:
    """The sections of what the model does on a split; why there are none, if so.

    Raises FirthError where a split was asked for by its name and cannot be shown.
    """
    from firth.display import report
    from firth.inference.judging.kinds import judge
    from firth.storage.local import read_json

    split = args.split or "dev"
    try:
        found = judge(run.path, split, args.errors)
    except FirthError as error:
        if args.split:
            raise
        print(f"firth report: results and errors are left out: {error}", file=sys.stderr)
        return [report.missing("Results and errors", str(error))]
    if found is None:
        return []
    path = run.path / "baselines.json"
    constant = read_json(path).get(split, {}) if path.is_file() else {}
    return report.judged(found, constant, others(run, split))


def others(run, split: str) -> list:
    """What papers report on a split of the run's task; [] where its files are one's own."""
    from firth.display.published import published

    own = run.fields.get("data.train") or run.fields.get(f"data.{split}")
    task = run.fields.get("data.task", "").removeprefix("tfds:glue/")  # the same files
    return [] if own else published(task, split)
