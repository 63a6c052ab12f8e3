"""What bodies of random weights say of BLiMP's filtered pairs, by the seed of their values.

    python experiments/minimal_pairs/untrained.py --data ../shared/data --work runs/pairs \\
        [--seeds 10] [--every 10]

Each seed's body is that of run.py's `untrained` and judges every tenth pair of each paradigm.
`--work` is run.py's: its text and tokenizer are used, or made. A line a seed goes to
untrained.jsonl beside this file; a seed that is there is not measured again.
"""

import argparse
import functools
import gzip
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from measured import measure_once, read_results
from run import SETS, judged, make_text, prepare, untrained

RESULTS = Path(__file__).with_name("untrained.jsonl")
FILTERED = "babylm_filtered_pair_ids.json.gz"


def choose(blimp: Path, every: int, path: Path) -> Path:
    """Write {paradigm: every n-th of its filtered pairs} to the path."""
    with gzip.open(blimp / FILTERED, "rt") as file:
        pairs = json.load(file)
    path.write_text(json.dumps({name: ids[::every] for name, ids in pairs.items()}))
    return path


def judge(seed: int, work: Path, blimp: Path, chosen: Path, dtype: str) -> dict:
    """The tally over all chosen pairs of a body with the initial values of a seed."""
    body = work / f"untrained-{seed}"
    if not body.exists():
        untrained(body, work / "tokenizer-wordpiece", seed)
    pairs = SETS["blimp"][0].format(blimp)
    options = [f"--only={chosen}", f"--dtype={dtype}"]
    return judged(body, body.with_suffix(".json"), pairs, *options)["total"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("../shared/data"))
    add("--work", type=Path, default=Path("runs/pairs"))
    add("--seeds", type=int, default=10)
    add("--every", type=int, default=10)
    add("--dtype", default="float32", help="of products: bfloat16 is faster on some CPUs")
    args = parser.parse_args()
    work, blimp = args.work.resolve(), args.data / "blimp"
    make_text(args.data, work)
    prepare(work, "wordpiece")
    chosen = choose(blimp, args.every, work / f"every-{args.every}.json")
    for seed in range(args.seeds):
        named = {"seed": seed, "every": args.every}
        score = functools.partial(judge, seed, work, blimp, chosen, args.dtype)
        measure_once(RESULTS, named, score)
    shares = [100 * line["share"] for line in read_results(RESULTS) if line["every"] == args.every]
    spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
    print(f"{len(shares)} seeds: mean {statistics.mean(shares):.1f}, deviation {spread:.1f}")
    print(f"lowest {min(shares):.1f}, highest {max(shares):.1f}")


if __name__ == "__main__":
    main()
