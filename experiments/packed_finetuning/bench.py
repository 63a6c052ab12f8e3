"""A whole small fine-tuning from MiniLM's weights: packed rows against buckets of lengths.

    python experiments/packed_finetuning/bench.py [--task rte] [--examples 0] [--way packed]

Both ways train one epoch on the same examples in batches of 32 and then predict the dev split, in
float32 with dropout, as `firth train` does but for its checkpoints. The ways run one after the
other, each in a process of its own, without compiled programs of before. Of each it prints the
share of padding, the shapes that are compiled and their seconds (the first step of each is run
with it), the seconds and examples a second of an epoch of steps alone, and the whole. The folder
that FIRTH_DATA names has `glue/`.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from firth.distributed.allocator import keep_freed_memory

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[3] / "shared" / "data"))
RESULTS = Path(__file__).with_name("results.jsonl")
WAYS = ("buckets", "packed")


def run(way: str, task: str, examples: int, batch_size: int) -> dict:
    """The figures of one way."""
    import jax
    import numpy as np

    from firth import recipe
    from firth.data.tasks import split
    from firth.models.model import merge_params
    from firth.run import evaluator, experiment
    from firth.run.program import lay_out
    from firth.training.partition import create_mesh, put_batch

    began = time.perf_counter()
    config = recipe.read_recipe(f"finetune.py:task={task},init=minilm")
    config.data.dir, config.data.packed = str(DATA / "glue"), way == "packed"
    config.batch_size, config.epochs = batch_size, 1.0
    whole = split.load_splits

    def some(*given):
        """The splits, with so many examples of train, drawn over all of it."""
        splits = whole(*given)
        train = splits["train"]
        chosen = np.sort(np.random.default_rng(0).permutation(len(train))[:examples])
        parts = {
            name: [values[i] for i in chosen]
            for name in ("texts_a", "texts_b")
            if (values := getattr(train, name)) is not None
        }
        arrays = {name: getattr(train, name)[chosen] for name in ("labels", "rows")}
        splits["train"] = dataclasses.replace(train, **parts, **arrays)
        return splits

    if examples:
        experiment.load_splits = some
    jax.config.update("jax_threefry_partitionable", True)
    mesh = create_mesh(devices=jax.devices()[:1])
    parts = experiment.build(config, mesh)
    program = lay_out(parts.model, parts.objective, config, parts.steps, mesh, parts.fresh)
    with jax.set_mesh(mesh):
        state = program.init()
        params, _ = merge_params(jax.device_get(state.params), parts.initial, "minilm")
        state = state.replace(params=jax.device_put(params, program.shardings.params))
        measured = evaluator.Heldout(parts, config, mesh)
        built, batches = time.perf_counter(), [parts.batch(n) for n in range(parts.steps)]
        shapes = {batch["tokens"].shape: batch for batch in batches}
        for batch in shapes.values():
            state, _, squares = program.step(state, put_batch(batch, mesh))
        jax.block_until_ready(squares)
        compiled = time.perf_counter()
        for batch in batches:
            state, _, squares = program.step(state, put_batch(batch, mesh))
        jax.block_until_ready(squares)
        trained = time.perf_counter()
        measured.measure(state.params, "dev")
        predicted = time.perf_counter()
        measured.measure(state.params, "dev")
        again = time.perf_counter()
    texts = sum(int((batch["weight"] > 0).sum()) for batch in batches)
    padding = 1 - sum(b["mask"].sum() for b in batches) / sum(b["mask"].size for b in batches)
    return {
        "way": way,
        "task": task,
        "examples": texts,
        "steps": len(batches),
        "padding": round(float(padding), 4),
        "shapes": len(shapes),
        "compile_s": round(compiled - built, 1),
        "epoch_s": round(trained - compiled, 1),
        "examples_per_s": round(texts / (trained - compiled), 1),
        "first_dev_s": round(predicted - trained, 1),
        "next_dev_s": round(again - predicted, 1),
        "whole_s": round(predicted - began, 1),
    }


def padding(task: str, batch_size: int) -> dict:
    """The share of padding of a whole epoch both ways; nothing is trained."""
    from firth.data.packing.rows import Packed
    from firth.data.tasks.buckets import Buckets, tokenise
    from firth.data.tasks.load import load_split
    from firth.data.tasks.task import GLUE
    from firth.tokenizers.load import load_tokenizer
    from firth.weights.packaged import find_packaged

    tokenizer = load_tokenizer(find_packaged("minilm"))
    rows = tokenise(load_split(GLUE[task], "train", DATA / "glue"), tokenizer, 128)
    buckets, packed = Buckets(rows), Packed(rows)
    return {
        "task": task,
        "examples": len(rows),
        "buckets": round(buckets.pad_fraction(batch_size), 4),
        "shapes": len(buckets.shapes(batch_size)),
        "packed": round(packed.pad_fraction(batch_size), 4),
        "rows": packed.rows(batch_size),
        "examples_a_step": round(len(rows) / packed.steps_per_epoch(batch_size), 1),
    }


def main():
    """Run the ways, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="rte")
    parser.add_argument("--examples", type=int, default=0, help="of train; 0: all")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--way", choices=WAYS, help="this one alone")
    parser.add_argument("--padding", action="store_true", help="of --task alone, without training")
    parser.add_argument("--record", action="store_true", help="append to results.jsonl")
    parser.add_argument("--side", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        keep_freed_memory()
        print(json.dumps(run(args.side, args.task, args.examples, args.batch_size)), flush=True)
        return
    if args.padding:
        print(json.dumps(padding(args.task, args.batch_size)))
        return
    given = ["--task", args.task, "--examples", str(args.examples)]
    given += ["--batch-size", str(args.batch_size)]
    for way in [args.way] if args.way else WAYS:
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, __file__, *given, "--side", way]
            env = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        print(line := done.stdout.splitlines()[-1], flush=True)
        if args.record:
            with RESULTS.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
