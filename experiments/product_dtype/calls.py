"""Vectors of texts with parameters rounded to bfloat16 once, and rounded in every call.

    python experiments/product_dtype/calls.py [--model minilm] [--rounds 20]

Both sides run in this one process, in turn, on the threads that it may use (`taskset`), and on the
same random texts. Printed are medians in milliseconds, their ratio, and float32's median.
"""

import argparse
import functools
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from timing import in_turn

SHAPES = (1, 16), (8, 16), (32, 16), (32, 64)  # texts, tokens of each


def side(model: str, dtype: str, narrow: bool):
    """A function of token ids [B, L]: their hidden states."""
    import firth

    encoder = firth.load(model, dtype=dtype, heads=False)
    if not narrow:
        encoder._narrow = None  # so that nothing is rounded ahead
    return lambda tokens: encoder(tokens=tokens, batch_size=len(tokens)).hidden


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    import jax

    print(f"{args.model}, {len(os.sched_getaffinity(0))} threads, jax {jax.__version__}")
    print(f"{'texts':>6}{'tokens':>7}{'once':>8}{'every':>8}{'ratio':>7}{'float32':>9}")
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)  # instead of Firth's programs
        once, every = (side(args.model, "bfloat16", narrow) for narrow in (True, False))
        whole = side(args.model, "float32", False)
        for shape in SHAPES:
            tokens = np.random.default_rng(0).integers(1000, 8000, shape)
            assert np.array_equal(once(tokens), every(tokens))
            runs = [functools.partial(run, tokens) for run in (once, every, whole)]
            found = in_turn(*runs[:2], args.rounds), in_turn(runs[0], runs[2], args.rounds)
            new, old, _, wide = (1e3 * statistics.median(x) for pair in found for x in pair)
            line = f"{shape[0]:6}{shape[1]:7}{new:8.1f}{old:8.1f}{old / new:7.2f}{wide:9.1f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
