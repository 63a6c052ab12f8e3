"""ULMFiT on IMDB with few labels: what a small pretrained language model gains.

    python experiments/ulmfit/run.py --work runs/ulmfit [--seeds 2]
    python experiments/ulmfit/run.py --table

A language model learns from Wikipedia, then from reviews without labels, forward and backward; then
it becomes a classifier of 100, 500, 2,000 and all labelled reviews. The texts are those of the
folder of shared data (FIRTH_DATA). Everything is done by `firth` commands in one process each. What
is done already is not done again: stop it at any time and start the same command. A line a result
goes to results.jsonl beside this file.
"""

import argparse
import hashlib
import json
import lzma
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from commands import call, printed, settings
from measured import measure_once, read_results
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from firth.weights.read import read_model

RESULTS = Path(__file__).with_name("results.jsonl")
DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[3] / "shared" / "data"))
WORDS = 15_000  # of each vocabulary
WIKI, REVIEWS, TEST = 6_000, 50_000, 2_000  # articles, reviews without labels, test reviews
LENGTH = 400  # tokens of a review that the classifier reads
# labels -> (batch, epochs, epochs until a layer more is trained, seeds at most); 25,000 are all, so
# that a seed draws their order alone
LABELS = {
    100: (8, 15.0, 1.0, 5),
    500: (16, 12.0, 1.0, 5),
    2000: (32, 8.0, 1.0, 5),
    25_000: (64, 2.0, 0.1, 1),
}
LM = {"log_every": 20, "eval.every": 0, "data.heldout": 0.01}
# From nothing there is nothing to keep: all layers learn from the first step, at one rate.
FRESH = {"unfreeze_epochs": 0.0, "optimizer.layer_decay": 1.0, "schedule.lr": 2e-3}
EPOCHS = {"wiki": 1.0, "reviews": 2.0}
DIRECTIONS = ("forward", "backward")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/ulmfit"), help="data and runs")
    parser.add_argument("--table", action="store_true", help="print what results.jsonl holds")
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    if args.table:
        print("\n".join(table(read_results(RESULTS))))
        return 0
    work = args.work
    work.mkdir(parents=True, exist_ok=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(work.absolute() / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "1"
    make_data(work)

    def measure(kind, function, *given, **named):
        """Measure once, and append the result."""
        measure_once(RESULTS, {"kind": kind, **named}, lambda: function(work, *given))

    cases = [(n, s) for n in LABELS for s in range(min(args.seeds, LABELS[n][-1]))]
    for n, s in cases:
        measure("words", words, n, s, labels=n, seed=s)
    measure("lm", untrained, stage="untrained", direction="forward")
    for n, s in cases:
        measure("from nothing", classifier, "untrained", n, s, labels=n, seed=s)
    for direction in DIRECTIONS:
        for stage in ("wiki", "reviews"):
            measure("lm", language_model, stage, direction, stage=stage, direction=direction)
        for n, s in cases:
            measure(direction, classifier, f"reviews-{direction}", n, s, labels=n, seed=s)
    for n, s in cases:
        measure("both", average, n, s, labels=n, seed=s)
    return 0


def table(results: list[dict]) -> list[str]:
    """Markdown: held-out perplexities, and accuracies as every seed and their mean."""
    lines = ["| language model | direction | held-out perplexity |", "|---|---|---|"]
    for entry in results:
        if entry["kind"] == "lm":
            lines.append(
                f"| {entry['stage']} | {entry['direction']} | {entry['perplexity']:,.1f} |"
            )
    lines += ["", "| classifier | labels | accuracy of each seed | mean |", "|---|---|---|---|"]
    groups = {}
    for entry in results:
        if entry["kind"] != "lm":
            groups.setdefault((entry["labels"], entry["kind"]), []).append(entry["accuracy"])
    for (labels, kind), values in sorted(groups.items()):
        seeds = ", ".join(f"{value:.1f}" for value in values)
        lines.append(f"| {kind} | {labels:,} | {seeds} | {np.mean(values):.1f} |")
    return lines


# -------------------------------------------------------------------------------------- data


def digest(row: dict) -> bytes:
    """Decides the order of texts."""
    return hashlib.sha256(row["text"].encode()).digest()


def read(name: str) -> list[dict]:
    """The rows of a file of the shared data, in an order of their own."""
    with lzma.open(DATA / name, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return sorted(rows, key=digest)


def write(path: Path, rows: list[dict]):
    """A JSONL file of texts and, where there are any, labels."""
    kept = [{name: row[name] for name in ("text", "label") if name in row} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


def make_data(work: Path):
    """Texts, training rows of every seed, test rows; then the stores of both texts."""
    if not (work / "test.jsonl").exists():
        write(work / "wiki.jsonl", read("wikipedia_en_sample/articles.jsonl.xz")[:WIKI])
        reviews = read("imdb/unsup.jsonl.xz")[:REVIEWS]
        write(work / "reviews.jsonl", [plain(row) for row in reviews])
        write(work / "train.jsonl", [plain(row) for row in read("imdb/train.jsonl.xz")])
        write(work / "test.jsonl", [plain(row) for row in read("imdb/test.jsonl.xz")][:TEST])
    for name in ("wiki", "reviews"):
        if not (work / name / "manifest.json").exists():
            more = ("--train-tokenizer=word", f"--vocab-size={WORDS}")
            given = (f"--input={work / name}.jsonl", f"--tokenizer={work / name}-words")
            call("prepare", *given, *more, f"--output={work / name}")


def plain(row: dict) -> dict:
    """A review with spaces for its line breaks."""
    return row | {"text": row["text"].replace("<br />", " ")}


def chosen(work: Path, labels: int, seed: int) -> Path:
    """The file of so many training reviews, drawn by the seed."""
    path = work / f"train-{labels}-{seed}.jsonl"
    if not path.exists():
        rows = rows_of(work / "train.jsonl")
        order = np.random.default_rng(seed).permutation(len(rows))[:labels]
        write(path, [rows[i] for i in order])
    return path


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ----------------------------------------------------------------------------------- models


def untrained(work: Path) -> dict:
    """A body as large as the others, for the words of the reviews; its one step has no rate."""
    fields = {"steps": 1, "schedule.lr": 0.0}
    return lm_run(work, "untrained", "ulmfit.py:pretrain,size=small", "reviews", fields)


def language_model(work: Path, stage: str, direction: str) -> dict:
    """A pass over Wikipedia from nothing, or passes over the reviews from there."""
    backward = f",backward={direction == 'backward'}"
    recipe = "ulmfit.py:pretrain,size=small"
    if stage == "reviews":
        recipe = f"ulmfit.py:lm,init={work}/wiki-{direction},size=small"
    fields = {"epochs": EPOCHS[stage]}
    return lm_run(work, f"{stage}-{direction}", recipe + backward, stage, fields)


def lm_run(work: Path, name: str, recipe: str, store: str, fields: dict) -> dict:
    """Train a language model on a store; its perplexity of the held-out part."""
    fields = LM | {"data.store": work / store, "curves": False} | fields
    call("train", f"--config={recipe}", f"--workdir={work / name}", *settings(fields))
    return heldout(work / name)


def heldout(workdir: Path) -> dict:
    """The perplexity of the held-out part, and the steps before it.

    In few streams: a model that is trained without a pause begins badly where it has no state.
    """
    rows = ("--config.eval.batch_size=8", "--config.eval.batches=1000")
    found = printed("evaluate", f"--workdir={workdir}", "--json", *rows)
    measured = json.loads(found)["heldout/lm_loss"]
    return {"perplexity": round(float(np.exp(measured)), 1), "step": read_model(workdir).step}


def classifier(work: Path, body: str, labels: int, seed: int) -> dict:
    """Test accuracy after the last step."""
    batch, epochs, unfreeze, _ = LABELS[labels]
    fields = {"data.train": chosen(work, labels, seed), "batch_size": batch, "epochs": epochs}
    fields |= {"unfreeze_epochs": unfreeze}
    fields |= {"seed": seed, "eval.epochs": epochs, "checkpoint.best": "", "curves": False}
    fields |= FRESH if body == "untrained" else {}
    workdir = work / f"{body}-{labels}-{seed}"
    recipe = f"ulmfit.py:classifier,init={work / body},size=small,length={LENGTH}"
    call("train", f"--config={recipe}", f"--workdir={workdir}", *settings(fields))
    return scored(work, workdir)


def average(work: Path, labels: int, seed: int) -> dict:
    """Test accuracy of the mean of the forward and the backward classifier."""
    runs = [f"{work}/reviews-{direction}-{labels}-{seed}" for direction in DIRECTIONS]
    return scored(work, ",".join(runs))


def scored(work: Path, model) -> dict:
    found = printed("evaluate", f"--model={model}", f"--data={work / 'test.jsonl'}", "--json")
    return {"accuracy": round(100 * json.loads(found)["metrics"]["accuracy"], 1)}


def words(work: Path, labels: int, seed: int) -> dict:
    """Test accuracy of logistic regression on words and pairs of words; beside it the majority."""
    train, test = rows_of(chosen(work, labels, seed)), rows_of(work / "test.jsonl")
    features = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    counts = features.fit_transform([row["text"] for row in train])
    model = LogisticRegression(C=10.0, max_iter=1000).fit(counts, [row["label"] for row in train])
    truth = np.array([row["label"] for row in test])
    right = model.score(features.transform([row["text"] for row in test]), truth)
    majority = max(np.mean(truth == label) for label in set(truth))
    return {"accuracy": round(100 * right, 1), "majority": round(100 * majority, 1)}


if __name__ == "__main__":
    raise SystemExit(main())
