"""A training step with float32 products beside one with bfloat16 products, and both rates.

    python experiments/product_dtype/bench.py [--rounds 5] [--steps 4] [--record]
        [--recipes bert.py:mini,gpt2.py:tiny]

Both sides run in this one process, in turn, on the threads that it may use (`taskset`), on the same
random batches and from the same initial values. The ratio is the median of the rounds'. `--record`
adds a line a recipe to results.jsonl beside this file.
"""

import argparse
import functools
import json
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from timing import in_turn, least_seconds

RESULTS = Path(__file__).with_name("results.jsonl")
RECIPES = "bert.py:mini,modernbert.py:mini,electra.py:mini,gpt2.py:tiny,lstm.py:medium"
WORDS = 8192


def side(recipe: str, dtype: str):
    """A function of a number of steps: their losses."""
    import jax

    from firth.recipe import read_recipe
    from firth.run.outline import outline
    from firth.run.program import lay_out
    from firth.training.partition import create_mesh

    config = read_recipe(recipe)
    config.product_dtype = dtype
    config.model.vocab_size = WORDS
    run, mesh = outline(config), create_mesh(config.mesh)
    program = lay_out(run.model, run.objective, config, run.steps, mesh)
    state, rng = program.init(), np.random.default_rng(0)
    batch = {
        name: jax.device_put(made(rng, name, shape.shape, shape.dtype))
        for name, shape in run.batch.items()
    }

    def steps(number: int) -> list[float]:
        nonlocal state
        losses = []
        for _ in range(number):
            state, measured, _ = program.step(state, batch)
            losses.append(measured["loss"][0])
        return [float(loss) for loss in losses]

    return steps


def made(rng, name: str, shape, dtype):
    """An array of a batch: random words, and everything else as in a row without padding."""
    if name == "tokens":
        return rng.integers(5, WORDS, shape).astype(dtype)
    if name in ("mask", "weight"):
        return np.ones(shape, dtype)
    if name == "example":
        return np.arange(shape[0], dtype=dtype)
    return np.zeros(shape, dtype)


def rates() -> dict[str, float]:
    """GFLOP/s of a product of both kinds of operands, put out in float32."""
    import jax
    import jax.numpy as jnp

    multiply = jax.jit(lambda x, w: jnp.dot(x, w, preferred_element_type=jnp.float32))
    found = {}
    for dtype in ("float32", "bfloat16"):
        x, w = jnp.ones((2048, 1024), dtype), jnp.ones((1024, 1024), dtype)
        seconds = least_seconds(lambda x=x, w=w: multiply(x, w).block_until_ready(), rounds=20)
        found[dtype] = round(2 * 2048 * 1024**2 / seconds / 1e9)
    return found


def compare(recipe: str, rounds: int, steps: int) -> dict:
    """Milliseconds a step of both, their ratio, and the losses of the first steps."""
    sides = {dtype: side(recipe, dtype) for dtype in ("float32", "bfloat16")}
    losses = {dtype: run(3) for dtype, run in sides.items()}
    seconds = in_turn(*(functools.partial(run, steps) for run in sides.values()), rounds)
    ratios = [wide / narrow for wide, narrow in zip(*seconds, strict=True)]
    medians = {
        dtype: round(1000 * statistics.median(each) / steps, 1)
        for dtype, each in zip(sides, seconds, strict=True)
    }
    return {"recipe": recipe, "ms": medians, "ratio": round(statistics.median(ratios), 2)} | {
        "losses": {dtype: [round(loss, 4) for loss in each] for dtype, each in losses.items()}
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", default=RECIPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    measured = {"threads": len(os.sched_getaffinity(0)), "products": rates()}
    print(json.dumps(measured))
    for recipe in args.recipes.split(","):
        line = compare(recipe, args.rounds, args.steps) | measured
        print(json.dumps(line), flush=True)
        if args.record:
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
