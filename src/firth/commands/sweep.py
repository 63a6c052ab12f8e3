"""`firth sweep`: train one recipe over a grid of settings, with several seeds each.

firth sweep --config finetune.py:init=minilm --workdir sweeps/rte --config.data.train=rte.csv \\
    lr=5e-5,3e-5,2e-5 batch=16,32 seeds=5
"""

from pathlib import Path

from firth.commands.arguments import Parser, names, positive
from firth.errors import FirthError
from firth.progress import Progress
from firth.storage.remote import is_url

LINES, TABLE, BOXES = "results.jsonl", "sweep.md", "sweep.png"


def main(argv: list[str]) -> int:
    """`firth sweep`."""
    overrides = [item for item in argv if item.startswith("--config.")]
    parser = Parser(
        prog="firth sweep",
        description="Train one recipe over a grid of settings, each with several seeds: a process "
        "and a workdir a run. The same command goes on where it was stopped. It ends with a table, "
        "also in sweep.md, with box plots in sweep.png, and has a line a run in results.jsonl.",
    )
    add = parser.add_argument
    add("--config", required=True, metavar="RECIPE", help="the recipe, as for firth train")
    add("--workdir", required=True, metavar="DIR", help="the folder of the sweep")
    add("--config.FIELD", dest="unused", metavar="VALUE", help="set a field of every run")
    add(
        "grid",
        nargs="+",
        metavar="FIELD=V1,V2",
        help="the values of a field, by its name or the last part of it (lr, batch, dropout), or "
        "of an argument of the recipe (frozen=true,false); seeds=5: the seeds 0 to 4 of every "
        "setting; seeds=3,7: these",
    )
    add("--jobs", type=positive, default=1, metavar="N", help="runs at once (1)")
    add("--devices", type=names, default=[], help="GPUs to take in turn, a run each: 0,1,2,3")
    add("--metric", default="", help="what to compare by (the one of the best checkpoint)")
    add("--dry-run", action="store_true", help="list the runs and end")
    args = parser.parse_intermixed_args([item for item in argv if item not in overrides])
    from firth.run.sweeping import outcome
    from firth.run.sweeping.grid import make_runs
    from firth.run.sweeping.processes import run_all

    folder = Path(args.workdir)
    if is_url(args.workdir):
        raise FirthError(f"--workdir {args.workdir}: expected a local folder for a sweep")
    if folder.exists() and not folder.is_dir():
        raise FirthError(f"--workdir {folder} is a file; expected the name of a folder")
    runs = make_runs(args.config, folder, args.grid, overrides)
    if args.dry_run:
        for run in runs:
            print("firth train " + " ".join(run.arguments))
        return 0
    waiting = [run for run in runs if not outcome.is_finished(run)]
    over = [run for run in runs if run not in waiting]
    bar = Progress(len(runs), len(over), "sweep")

    def note(run):
        over.append(run)
        one = outcome.outcome(run, args.metric)
        said = f"{one.metric} {one.best:.4f}" if one.best is not None else one.reason or one.state
        bar.update(len(over), said)
        bar.say(f"{run.workdir}: {one.state}, {said}")

    whole = run_all(waiting, args.jobs, args.devices, note)
    bar.close()
    found = [outcome.outcome(run, args.metric) for run in runs if run in over]
    if not found:
        raise FirthError(f"{folder}: no run has ended; the same command goes on")
    outcome.check_metric(found, args.metric)
    outcome.write_lines(found, folder / LINES)
    table = outcome.table(found)
    (folder / TABLE).write_text(table + "\n")
    print(table)
    if any(one.best is not None for one in found):
        outcome.draw(found, folder / BOXES)
    return _status(found, whole, len(runs))


def _status(found, whole: bool, count: int) -> int:
    """0 if all runs have finished; otherwise what is missing is an error."""
    failed = [one for one in found if one.state in ("failed", "damaged")]
    for one in failed:
        print(f"{one.run} failed: {one.reason}; see {one.run}.log")
    left = sum(one.state != "finished" for one in found) + count - len(found)
    if left:
        why = "stopped" if not whole else f"{len(failed)} of them failed"
        raise FirthError(f"{left} of {count} runs have not finished: {why}; run it again to go on")
    return 0
