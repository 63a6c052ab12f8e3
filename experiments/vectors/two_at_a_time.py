"""Vectors and scores of sentences with two batches at a time on a CPU, and with one.

    python experiments/vectors/two_at_a_time.py [--texts 300] [--rounds 20]

Both sides run in this one process, in turn, on the same threads (`taskset`). The model of scores is
bench.py's, a random 3 x 128 body whose masked head scores the first ten words of each sentence.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from bench import DTYPES, MODEL, THREADS, cpu, sentences, small_body
from timing import in_turn

import firth
from firth.inference.execution import ahead
from firth.inference.score import score


def side(run, threads: int):
    """`run` with so many batches at a time."""

    def call():
        ahead.THREADS = threads
        return run()

    return call


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    texts = sentences(args.texts)
    short = [" ".join(text.split()[:10]) for text in texts]
    print(f"{cpu()}; {THREADS} threads; {len(texts)} sentences")
    with tempfile.TemporaryDirectory() as folder:
        body = small_body(Path(folder))
        for dtype in DTYPES:
            vectors, scorer = firth.load(MODEL, dtype=dtype), firth.load(body, dtype=dtype)
            runs = {
                "vectors": lambda encoder=vectors: encoder.encode(texts),
                "scores": lambda encoder=scorer: [one.log_probs for one in score(encoder, short)],
            }
            for name, run in runs.items():
                two, one = side(run, 2), side(run, 1)
                assert all(map(np.array_equal, two(), one()))
                new, old = map(statistics.median, in_turn(two, one, args.rounds))
                print(f"{dtype} {name}: {new:.2f} s, one at a time {old:.2f} s, {old / new:.2f} x")


if __name__ == "__main__":
    main()
