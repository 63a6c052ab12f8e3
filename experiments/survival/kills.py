"""A tiny run, killed inside its saves and by SIGTERM, restarted by launch/babysit.sh --local.

    python experiments/survival/kills.py --folder /tmp/kills [--kills 100] [--terms 20]

Ends with the same bytes and the same journal as an undisturbed run, or with an AssertionError.
"""

import argparse
import json
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

STEPS = 160
CHANGES = {
    "steps": STEPS,
    "model.num_layers": 1,
    "eval.every": STEPS,
    "checkpoint.every": 0,
    "log_every": 2,
}
ALWAYS = {"checkpoint.minutes": 0.0}  # a save at every step


def main():
    from helpers.kills import campaign
    from helpers.runs import arguments, assert_same_bytes, logged, make_store, start

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where to work; not there yet")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--terms", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=600, help="then let it finish")
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    store = make_store(args.folder)
    whole, killed = args.folder / "whole", args.folder / "killed"
    process = start(arguments(store, whole, **CHANGES))
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    began = time.time()
    trained = arguments(store, killed, **CHANGES, **ALWAYS)
    command = [sys.executable, "-m", "firth", "train", *trained]
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    counts = campaign(
        command,
        killed,
        kills=args.kills,
        terms=args.terms,
        minutes=args.minutes,
        environment=environment,
        tell=lambda line: print(line, flush=True),
    )
    assert_same_bytes(whole, killed, STEPS)
    assert logged(whole) == logged(killed)
    account = json.loads((killed / "goodput.json").read_text())
    damaged = killed / "checkpoints-damaged"
    result = {
        "interrupted": counts,
        "restarts": account["restarts"],
        "set_aside": sorted(p.name for p in damaged.iterdir()) if damaged.exists() else [],
        "same_bytes": True,
        "same_journal": True,
        "seconds": account["seconds"],
        "minutes": round((time.time() - began) / 60, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
