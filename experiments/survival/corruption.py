"""Random corruption of checkpoints and stores: is all of it noticed and named?

    python experiments/survival/corruption.py --folder /tmp/corruption

Prints how often what came of it, and every case that went wrong; exits 1 if there was one.
"""

import argparse
import collections
import json
import shutil
import sys
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))
GOOD = ("fell back", "refused", "sound")


def main() -> int:
    from helpers.damage import harm_a_checkpoint, harm_a_store, make_checkpoints
    from helpers.runs import make_store

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where to work; not there yet")
    parser.add_argument("--checkpoints", type=int, default=200, help="how many")
    parser.add_argument("--stores", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    rng = np.random.default_rng(args.seed)
    found = {"checkpoints": collections.Counter(), "stores": collections.Counter()}

    def count(what, done, came):
        found[what][came if came in GOOD else "WRONG"] += 1
        if came not in GOOD:
            print(f"{what}: {done}: {came}", flush=True)

    saved = make_checkpoints(args.folder / "saved")
    for _ in range(args.checkpoints):
        count("checkpoints", *harm_a_checkpoint(saved, args.folder / "copy", rng))
        shutil.rmtree(args.folder / "copy")
    store = make_store(args.folder)
    for _ in range(args.stores):
        count("stores", *harm_a_store(store, rng))
    print(json.dumps(found))
    return int(any(counter["WRONG"] for counter in found.values()))


if __name__ == "__main__":
    sys.exit(main())
