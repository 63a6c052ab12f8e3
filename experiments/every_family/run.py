"""Every family fine-tuned on a pair task and a tagging task from its own tiny body, by one command.

    python experiments/small_recipes/run.py --data ../shared/data --work runs/small --stages full
    python experiments/every_family/run.py --data ../shared/data --models runs/small [--seeds 0,1,2]
    python experiments/every_family/run.py --table

The first trains the `tiny` recipes, each with the objective of its paper. The second fine-tunes
each of them on RTE and on the parts of speech of English EWT, beside the same body with random
weights. What is measured is not measured again: start the same command after a stop. A line a run
goes to results.jsonl beside this file.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from measured import fine_tune, measure_once, random_body, read_results, shown
from options import some_of

RESULTS = Path(__file__).with_name("results.jsonl")
FAMILIES = ("bert", "roberta", "albert", "distilbert", "electra", "modernbert")
FAMILIES += ("xlnet", "gpt", "gpt2", "transformer_xl")
BODIES = ("pretrained", "random")
EWT = {f"data.{s}": f"ud_english_ewt/en_ewt-ud-{s}.conllu" for s in ("train", "dev", "test")}
# task -> (recipe without its init, fields that name files below --data, epochs, split)
TASKS = {
    "rte": ("finetune.py:task=rte,length=128", {"data.dir": "glue"}, 5.0, "dev"),
    "pos": ("tagger.py:length=64", EWT, 3.0, "test"),
}
RATE = 5e-4  # of bodies so small


def main(argv=None) -> int:
    """Measure what is not measured yet, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, help="the folder of glue and ud_english_ewt")
    add("--models", type=Path, help="the folder of full-bert-tiny and the others")
    add("--work", type=Path, default=Path("runs/every_family"))
    add("--families", type=some_of(FAMILIES), default=list(FAMILIES))
    add("--tasks", type=some_of(TASKS), default=list(TASKS))
    add("--seeds", default="0,1,2")
    add("--results", type=Path, default=RESULTS)
    add("--table", action="store_true", help="print what the results hold")
    args = parser.parse_args(argv)
    if not args.table:
        if args.data is None or args.models is None:
            parser.error("--data and --models are needed, or --table")
        args.work.mkdir(parents=True, exist_ok=True)
        for seed in map(int, args.seeds.split(",")):
            for family in args.families:
                for task in args.tasks:
                    for body in BODIES:
                        measure(args, family, task, body, seed)
    print("\n".join(table(read_results(args.results))))
    return 0


def measure(args, family: str, task: str, body: str, seed: int) -> None:
    """Fine-tune and append the line of a run, unless it is there."""
    named = {"family": family, "task": task, "body": body, "seed": seed}

    def run() -> dict:
        init = args.models / f"full-{family}-tiny"
        if body == "random":
            init = random_body(str(init), args.work / f"random-{family}")
        recipe, fields = recipe_of(args.data, task, init)
        folder, split = args.work / f"{family}-{task}-{body}-{seed}", TASKS[task][-1]
        found = fine_tune(recipe, fields, folder, seed)
        constant = found[f"{split}_baseline"]["accuracy"]
        return {"accuracy": found[split]["accuracy"], "constant": constant}

    measure_once(args.results, named, run)


def recipe_of(data: Path, task: str, init: Path) -> tuple[str, dict]:
    """(recipe, fields) of a run; those are the same for every family."""
    recipe, files, epochs, _ = TASKS[task]
    fields = {field: data / path for field, path in files.items()}
    return f"{recipe},init={init}", fields | {"epochs": epochs, "schedule.lr": RATE}


def table(lines: list[dict]) -> list[str]:
    """Markdown: a row a family, pretrained beside random, means of seeds with their deviations."""
    names = {"rte": "RTE, dev", "pos": "parts of speech, test"}
    columns = [(task, body) for task in TASKS for body in reversed(BODIES)]
    rows = ["| family | " + " | ".join(f"{names[t]}: {b}" for t, b in columns) + " | seeds |"]
    rows += ["|" + "---|" * (len(columns) + 2)]
    for family in FAMILIES:
        own = [line for line in lines if line["family"] == family]
        cells = [
            shown([line["accuracy"] for line in own if (line["task"], line["body"]) == column])
            for column in columns
        ]
        if own:
            seeds = len({line["seed"] for line in own})
            rows.append(f"| {family} | {' | '.join(cells)} | {seeds} |")
    constant = {line["task"]: line["constant"] for line in lines}
    cells = [f"{constant[task]:.1f}" if task in constant else "" for task, _ in columns]
    return [*rows, f"| constant answer | {' | '.join(cells)} | |"]


if __name__ == "__main__":
    raise SystemExit(main())
