"""How long does the training step of a 12-layer model take to compile, scanned and unrolled?

    python experiments/compile_time/bench.py [--recipes bert.py:base,roberta.py:base] [--unrolled]

The step is lowered from shapes alone, as `firth train` jits it, with the recipe's objective and
optimiser at 8 rows of 128 tokens; XLA's cache is off. Prints seconds to trace and to compile.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "step_time"))

RECIPES = (
    "bert.py:base,roberta.py:base,albert.py:base,distilbert.py:base,electra.py:base,"
    "modernbert.py:base"
)


def measure(recipe, scan):
    """(seconds to trace, seconds to compile) of the step."""
    import jax
    import numpy as np
    from bench import described, program_of

    batch, length = 8, 128
    config, spec, objective = described(recipe, length, 30522)
    config.accumulate = 1
    program = program_of(config, spec | {"scan": scan}, objective, batch)
    rows = {
        "tokens": jax.ShapeDtypeStruct((batch, length), np.int32),
        "segments": jax.ShapeDtypeStruct((batch, length), np.int32),
        "mask": jax.ShapeDtypeStruct((batch, length), bool),
        "next": jax.ShapeDtypeStruct((batch,), np.int32),
        "example": jax.ShapeDtypeStruct((batch,), np.uint32),
        "copy": jax.ShapeDtypeStruct((batch,), np.uint32),
    }
    began = time.perf_counter()
    lowered = program.step.lower(program.state, rows)
    traced = time.perf_counter()
    lowered.compile()
    return traced - began, time.perf_counter() - traced


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recipes", default=RECIPES)
    parser.add_argument("--unrolled", action="store_true", help="measure the unrolled layers too")
    args = parser.parse_args()
    print(f"{'recipe':<24} {'layers':<9} {'trace s':>8} {'compile s':>10}")
    for recipe in args.recipes.split(","):
        for scan in (True, False) if args.unrolled else (True,):
            traced, compiled = measure(recipe, scan)
            kind = "scanned" if scan else "unrolled"
            print(f"{recipe:<24} {kind:<9} {traced:8.1f} {compiled:10.1f}", flush=True)


if __name__ == "__main__":
    main()
