"""Tokens per second through `batch(step)` on one core, planning included.

    python experiments/input_throughput/bench.py                 # made-up corpora, 50 M tokens each
    python experiments/input_throughput/bench.py --store DIR     # a store of `firth prepare`

Prints a table and appends a line per case to results.jsonl with --record.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from firth.data.views.base import Source
from firth.data.views.packed import PackedConfig
from firth.data.views.pairs import PairsConfig

BATCH_SIZE = 32
CASES = {  # name -> (view, tokens/s it must reach)
    "packed@512": (PackedConfig(length=512), 5e6),
    "pairs@128": (PairsConfig(length=128), 2e6),
    "packed@128": (PackedConfig(length=128), None),
    "pairs@512": (PairsConfig(length=512), None),
}


def made_up_store(folder: Path, tokens: int, sentences_per_document: float) -> SimpleNamespace:
    """A corpus of log-normal sentences (mean 24 tokens) and documents, its tokens on disk."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, rng.lognormal(np.log(20), 0.6, tokens // 20)).astype(np.int64)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), tokens)]
    sizes = rng.lognormal(np.log(sentences_per_document), 1.0, len(lengths))
    borders = np.cumsum(np.maximum(1, sizes).astype(np.int64))
    borders = borders[borders < len(lengths)]
    ids = rng.integers(1000, 30_000, lengths.sum(), dtype=np.uint16)
    path = folder / f"{sentences_per_document}.npy"
    np.save(path, ids)
    return SimpleNamespace(
        tokens=np.load(path, mmap_mode="r"),
        sentences=np.concatenate([[0], np.cumsum(lengths)]),
        documents=np.concatenate([[0], borders, [len(lengths)]]),
    )


def measure(view, batches: int) -> dict[str, float]:
    """Times of planning and of a batch; tokens/s over one epoch, [PAD] not counted."""
    began = time.perf_counter()
    examples = view.epoch_size(0)
    planning = time.perf_counter() - began
    batches = min(batches, examples // BATCH_SIZE)
    real, times = 0, []
    for step in range(batches):
        began = time.perf_counter()
        batch = view.batch(step, BATCH_SIZE)
        times.append(time.perf_counter() - began)
        real += int(batch["mask"].sum())
    seconds = planning + np.mean(times) * examples / BATCH_SIZE
    return {
        "examples": examples,
        "planning_s": planning,
        "batch_us_median": float(np.median(times)) * 1e6,
        "batch_us_99": float(np.quantile(times, 0.99)) * 1e6,
        "pad_fraction": 1 - real / (batches * BATCH_SIZE * view.length),
        "tokens_per_s": real / batches * examples / BATCH_SIZE / seconds,
    }


def corpora(arguments, folder: Path):
    """(name, store, tokenizer) of what is measured; made-up text has special ids only."""
    if arguments.store:
        from firth.data.corpus.store import open_store

        store = open_store(arguments.store, verify=False)
        yield Path(arguments.store).name, store, store.tokenizer()
        return
    ids = SimpleNamespace(cls_id=101, sep_id=102, pad_id=0)
    for name, sentences in {"articles": 12.0, "novels": 5000.0}.items():
        yield name, made_up_store(folder, arguments.tokens, sentences), ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", help="a store made by `firth prepare`; default: made-up corpora")
    parser.add_argument("--tokens", type=int, default=50_000_000, help="size of a made-up corpus")
    parser.add_argument("--batches", type=int, default=3000, help="batches to time in each case")
    parser.add_argument("--record", action="store_true", help="append to results.jsonl")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"{'corpus':10} {'view':11} {'plan s':>7} {'us/batch':>9} {'pad':>6} {'M tokens/s':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for corpus, store, tokenizer in corpora(arguments, Path(folder)):
            for case, (config, goal) in CASES.items():
                row = measure(config.view(Source(store, tokenizer)), arguments.batches)
                speed = row["tokens_per_s"]
                print(
                    f"{corpus:10} {case:11} {row['planning_s']:7.2f} {row['batch_us_median']:9.0f} "
                    f"{row['pad_fraction']:6.1%} {speed / 1e6:11.1f}"
                    + (f"  (goal {goal / 1e6:.0f}: {speed / goal:.1f}x)" if goal else "")
                )
                if arguments.record:
                    about = {"corpus": corpus, "tokens": len(store.tokens), "view": case}
                    about |= {"machine": platform.machine(), "numpy": np.__version__}
                    with Path(__file__).with_name("results.jsonl").open("a") as file:
                        file.write(json.dumps(about | row) + "\n")


if __name__ == "__main__":
    main()
