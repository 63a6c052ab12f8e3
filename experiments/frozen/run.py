"""An encoder kept frozen against the same one fine-tuned, and which of its layers say most.

    python experiments/frozen/run.py --data ../shared/data --workdir runs/frozen \\
        [--init minilm] [--seeds 0,1,2] [--tasks ner,pos,rte] [--parts choices,layers,tasks]

Three parts. `choices`: the six kinds of features of BERT's paper (Devlin et al. 2019, table 7) in a
recurrent tagger, on CoNLL-2003. `layers`: each layer alone, 0 being the embeddings. `tasks`: every
task, frozen and fine-tuned. `--data` has conll2003, ud_english_ewt and glue, as their makers
distribute them. What is done is not done again: kill it at any time and start the same command.
Writes results.jsonl, results.md and layers.png into the workdir.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from options import some_of

OWN = dict(os.environ)  # before jax, which looks for a TPU, adds to it
CHOICES = (
    "embeddings",
    "second_to_last",
    "last",
    "sum_last_four",
    "concat_last_four",
    "sum_all",
)
BASE = (91.0, 95.6, 94.9, 95.9, 96.1, 95.5)  # table 7, entity F1 of BERT-base (cased) on dev
PARTS = ("choices", "layers", "tasks")
# task -> (train, dev, test) under --data, the metric
TAGGED = {
    "ner": ("conll2003/eng.train", "conll2003/eng.testa", "conll2003/eng.testb", "entity_f1"),
    "pos": (
        *(f"ud_english_ewt/en_ewt-ud-{split}.conllu" for split in ("train", "dev", "test")),
        "accuracy",
    ),
}
# task of GLUE -> the metric on dev
TEXTS = {
    "cola": "matthews",
    "sst2": "accuracy",
    "mrpc": "f1",
    "stsb": "spearman",
    "rte": "accuracy",
}


@dataclass(frozen=True)
class Run:
    """One run with several seeds; `name` is also its folder in the workdir."""

    part: str
    name: str
    recipe: str
    fields: dict
    task: str
    metric: str


def plan(args, depth: int) -> list[Run]:
    """The runs of the chosen parts, for an encoder of so many layers."""
    runs = []
    for part, names in (("choices", CHOICES), ("layers", map(str, range(depth + 1)))):
        if part in args.parts:
            runs += [of_features(args, part, "ner", name) for name in names]
    for task in args.tasks if "tasks" in args.parts else ():
        if task in TAGGED:
            pair = [of_features(args, "tasks", task, "concat_last_four"), of_tags(args, task)]
        else:
            pair = [of_texts(args, task, frozen) for frozen in (True, False)]
        runs += pair
    return runs


def of_features(args, part: str, task: str, layers: str) -> Run:
    """A recurrent tagger that reads nothing but frozen vectors."""
    recipe = f"tagger.py:small,features={args.init},layers={layers},context={args.context}"
    fields = {
        "model.embedding_size": 0,
        "model.filters": 0,
        "objective.unknown_rate": 0.0,
        "data.feature_folder": args.workdir / "features",
        "epochs": args.feature_epochs,
    }
    fields |= files(args, task)
    return Run(part, f"{task}-features-{layers}", recipe, fields, task, TAGGED[task][-1])


def of_tags(args, task: str) -> Run:
    """The encoder fine-tuned to tag words."""
    recipe = f"tagger.py:init={args.init},context={args.context}"
    fields = {"schedule.lr": args.rate, "epochs": args.epochs} | files(args, task)
    return Run("tasks", f"{task}-tuned", recipe, fields, task, TAGGED[task][-1])


def of_texts(args, task: str, frozen: bool) -> Run:
    """A classifier of texts."""
    recipe = f"finetune.py:task={task},init={args.init},length=64,frozen={frozen}"
    fields = {
        "data.dir": args.data / "glue",
        "schedule.lr": args.frozen_rate if frozen else args.rate,
        "epochs": args.epochs,
    }
    name = f"{task}-{'frozen' if frozen else 'tuned'}"
    return Run("tasks", name, recipe, fields, task, TEXTS[task])


def files(args, task: str) -> dict:
    """The fields of a task's files; the loaders find .gz."""
    return {
        f"data.{split}": args.data / name
        for split, name in zip(("train", "dev", "test"), TAGGED[task][:3], strict=True)
    }


def scores(run: Run, args) -> dict:
    """{split: {mean, std, values ...}} of the run's metric, trained first unless that is done."""
    folder = args.workdir / run.name
    if not (folder / "summary.json").exists():
        fields = run.fields | {"seeds": args.seeds, "checkpoint.keep": 1}
        argv = [f"--config.{name}={value}" for name, value in fields.items()]
        command = ["train", f"--config={run.recipe}", f"--workdir={folder}", *argv]
        if code := subprocess.run([sys.executable, "-m", "firth", *command], env=OWN).returncode:
            sys.exit(code)
    summary = json.loads((folder / "summary.json").read_text())
    found = {split: summary.get(f"{split}/{run.metric}") for split in ("dev", "test")}
    return {split: value for split, value in found.items() if value}


def shown(value: dict | None) -> str:
    """A mean and its deviation in points."""
    if value is None:
        return ""
    spread = "" if value["std"] is None else f" ± {100 * value['std']:.1f}"
    return f"{100 * value['mean']:.1f}{spread}"


def tables(rows: list[dict]) -> str:
    """Markdown: the choices of features beside the paper's, each layer, and every task twice."""
    lines = []
    for part, first in (("choices", "features"), ("layers", "layer")):
        own = [row for row in rows if row["part"] == part]
        paper = dict(zip(CHOICES, BASE, strict=True)) if part == "choices" else {}
        if own:
            lines += [f"| {first} | dev F1 | test F1 | BERT-base, dev |", "|---|---|---|---|"]
        for row in own:
            layers = row["run"].rpartition("-")[2]
            cells = [layers, *(shown(row.get(split)) for split in ("dev", "test"))]
            lines.append(f"| {' | '.join([*cells, str(paper.get(layers, ''))])} |")
        lines += [""] if own else []
    own = {(row["task"], row["run"]): row for row in rows if row["part"] == "tasks"}
    if own:
        lines += [
            "| task | metric | frozen, dev | fine-tuned, dev | frozen, test | fine-tuned, test |"
        ]
        lines += ["|---|---|---|---|---|---|"]
    for task in dict.fromkeys(task for task, _ in own):
        tuned = own.get((task, f"{task}-tuned"), {})
        frozen = next((r for (t, name), r in own.items() if t == task and "tuned" not in name), {})
        cells = [shown(row.get(split)) for split in ("dev", "test") for row in (frozen, tuned)]
        metric = (tuned or frozen)["metric"]
        lines.append(f"| {' | '.join([task, metric, *cells])} |")
    return "\n".join(lines) + "\n"


def figure(rows: list[dict], path: Path) -> None:
    """F1 on dev of each layer alone; lines across for the six choices."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = plt.subplots(figsize=(7, 4))[1]
    layers = [row for row in rows if row["part"] == "layers"]
    means = [100 * row["dev"]["mean"] for row in layers]
    errors = [100 * (row["dev"]["std"] or 0) for row in layers]
    axes.errorbar(range(len(layers)), means, errors, marker="o", label="one layer alone")
    for number, row in enumerate(row for row in rows if row["part"] == "choices"):
        name = row["run"].rpartition("-")[2].replace("_", " ")
        if name.startswith(("sum", "concat")):
            axes.axhline(100 * row["dev"]["mean"], color=f"C{number}", ls="--", label=name)
    axes.set(xlabel="layer (0: the embeddings)", ylabel="CoNLL-2003, dev F1")
    axes.legend()
    axes.figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(axes.figure)


def main(argv=None) -> None:
    """Run what is not done yet, and write what there is after each run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    tasks = (*TAGGED, *TEXTS)
    add = parser.add_argument
    add("--data", type=Path, required=True)
    add("--workdir", type=Path, required=True)
    add("--init", default="minilm")
    add("--seeds", default="0")
    add("--context", default="document", choices=("document", "sentence"))
    add("--tasks", type=some_of(tasks), default=list(tasks))
    add("--parts", type=some_of(PARTS), default=list(PARTS))
    add("--epochs", type=float, default=3.0, help="of fine-tuning, and of frozen texts")
    add("--feature-epochs", type=float, default=8.0, help="of the tagger above frozen vectors")
    add("--rate", type=float, default=1e-4)
    add("--frozen-rate", type=float, default=2e-3)
    args = parser.parse_args(argv)
    from firth.weights.read import read_model

    depth = read_model(args.init).spec["num_layers"]
    args.workdir.mkdir(parents=True, exist_ok=True)
    rows = []
    for run in plan(args, depth):
        own = {"part": run.part, "task": run.task, "run": run.name, "metric": run.metric}
        rows.append(own | scores(run, args))
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (args.workdir / "results.jsonl").write_text(lines)
        (args.workdir / "results.md").write_text(tables(rows))
    if any(row["part"] == "layers" for row in rows):
        figure(rows, args.workdir / "layers.png")
    print(tables(rows), end="")


if __name__ == "__main__":
    main()
