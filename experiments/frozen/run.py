"""A frozen encoder as features of a tagger: which of its layers say most.

    python experiments/frozen/run.py --data ../shared/data --workdir runs/frozen \\
        [--init minilm] [--seeds 0,1,2] [--parts choices,layers]

Two parts, on CoNLL-2003. `choices`: the six kinds of features of BERT's paper (Devlin et al. 2019,
table 7) in a recurrent tagger. `layers`: each layer alone, 0 being the embeddings. Frozen against
fine-tuned on every task is experiments/tasks. `--data` has conll2003. What is done is not done
again: kill it at any time and start the same command. Writes results.jsonl, results.md and
layers.png into the workdir.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from commands import call, settings
from options import some_of

CHOICES = (
    "embeddings",
    "second_to_last",
    "last",
    "sum_last_four",
    "concat_last_four",
    "sum_all",
)
BASE = (91.0, 95.6, 94.9, 95.9, 96.1, 95.5)  # table 7, entity F1 of BERT-base (cased) on dev
PARTS = ("choices", "layers")
FILES = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}  # the loaders find .gz
METRIC = "entity_f1"


@dataclass(frozen=True)
class Run:
    """One run with several seeds; `name` is also its folder in the workdir."""

    part: str
    layers: str
    recipe: str
    fields: dict

    @property
    def name(self) -> str:
        return f"ner-features-{self.layers}"


def plan(args, depth: int) -> list[Run]:
    """The runs of the chosen parts, for an encoder of so many layers."""
    layers = {"choices": CHOICES, "layers": tuple(map(str, range(depth + 1)))}
    return [of_features(args, part, name) for part in args.parts for name in layers[part]]


def of_features(args, part: str, layers: str) -> Run:
    """A recurrent tagger that reads nothing but frozen vectors."""
    recipe = f"tagger.py:small,features={args.init},layers={layers},context={args.context}"
    fields = {
        "model.embedding_size": 0,
        "model.filters": 0,
        "objective.unknown_rate": 0.0,
        "data.feature_folder": args.workdir / "features",
        "epochs": args.epochs,
    }
    fields |= {f"data.{split}": args.data / "conll2003" / name for split, name in FILES.items()}
    return Run(part, layers, recipe, fields)


def finished(path: Path, seeds: str) -> bool:
    """Whether a summary.json is there and has each of the seeds."""
    found = json.loads(path.read_text()) if path.exists() else {}
    return set(seeds.split(",")) <= set(found.get(f"dev/{METRIC}", {}).get("values", {}))


def scores(run: Run, args) -> dict:
    """{split: {mean, std, values ...}} of entity F1; first trains the seeds that are not."""
    folder = args.workdir / run.name
    if not finished(folder / "summary.json", args.seeds):
        fields = run.fields | {"seeds": args.seeds, "checkpoint.keep": 1}
        call("train", f"--config={run.recipe}", f"--workdir={folder}", *settings(fields))
    summary = json.loads((folder / "summary.json").read_text())
    found = {split: summary.get(f"{split}/{METRIC}") for split in ("dev", "test")}
    return {split: value for split, value in found.items() if value}


def shown(value: dict | None) -> str:
    """A mean and its deviation in points."""
    if value is None:
        return ""
    spread = "" if value["std"] is None else f" ± {100 * value['std']:.1f}"
    return f"{100 * value['mean']:.1f}{spread}"


def tables(rows: list[dict]) -> str:
    """Markdown: the choices of features beside the paper's, and each layer."""
    lines = []
    for part, first in (("choices", "features"), ("layers", "layer")):
        own = [row for row in rows if row["part"] == part]
        paper = dict(zip(CHOICES, BASE, strict=True)) if part == "choices" else {}
        if own:
            lines += [f"| {first} | dev F1 | test F1 | BERT-base, dev |", "|---|---|---|---|"]
        for row in own:
            cells = [row["layers"], *(shown(row.get(split)) for split in ("dev", "test"))]
            lines.append(f"| {' | '.join([*cells, str(paper.get(row['layers'], ''))])} |")
        lines += [""] if own else []
    return "\n".join(lines).rstrip("\n") + "\n"


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
        name = row["layers"].replace("_", " ")
        if name.startswith(("sum", "concat")):
            dashes = (3 * number, (4, 8))  # two lines at one height are both seen
            axes.axhline(100 * row["dev"]["mean"], color=f"C{number}", ls=dashes, label=name)
    axes.set(xlabel="layer (0: the embeddings)", ylabel="CoNLL-2003, dev F1")
    axes.legend()
    axes.figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(axes.figure)


def main(argv=None) -> None:
    """Run what is not done yet, and write what there is after each run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, required=True)
    add("--workdir", type=Path, required=True)
    add("--init", default="minilm")
    add("--seeds", default="0")
    add("--context", default="document", choices=("document", "sentence"))
    add("--parts", type=some_of(PARTS), default=list(PARTS))
    add("--epochs", type=float, default=8.0, help="of the tagger")
    args = parser.parse_args(argv)
    from firth.weights.read import read_model

    depth = read_model(args.init).spec["num_layers"]
    args.workdir.mkdir(parents=True, exist_ok=True)
    rows = []
    for run in plan(args, depth):
        rows.append({"part": run.part, "layers": run.layers} | scores(run, args))
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (args.workdir / "results.jsonl").write_text(lines)
        (args.workdir / "results.md").write_text(tables(rows))
    if any(row["part"] == "layers" for row in rows):
        figure(rows, args.workdir / "layers.png")
    print(tables(rows), end="")


if __name__ == "__main__":
    main()
