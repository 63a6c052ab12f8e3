"""Time to the first batch and to the first step of `firth train`, with either loader.

    python experiments/loaders/bench.py --store DIR --runs 7 --record

Every run is a new process of one step, whose compiled programs are kept ("warm") or not ("cold").
The times are those of the run's own account, goodput.json; the loaders take turns, so that what
else the machine does falls on both. With --record, a line a run is appended to results.jsonl.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from firth.training.journal import commit

LOADERS = ("thread", "tf.data")


def measure(store: str, recipe: str, loader: str, compiled: Path, steps: int) -> dict:
    """Seconds of one run from the start of its process, and what it said on the terminal."""
    with tempfile.TemporaryDirectory() as workdir:
        fields = {"data.store": store, "data.loader": loader, "steps": steps, "batch_size": 16}
        fields |= {"eval.batches": 1, "eval.batch_size": 16, "log_every": 10, "progress": False}
        command = [sys.executable, "-m", "firth", "train", f"--config={recipe}"]
        command += [f"--config.{name}={value}" for name, value in fields.items()]
        kept = {"JAX_COMPILATION_CACHE_DIR": str(compiled), "JAX_PLATFORMS": "cpu"}
        kept |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        began = time.perf_counter()
        run = subprocess.run(
            [*command, f"--workdir={workdir}"],
            **dict(env=os.environ | kept, check=True, capture_output=True, text=True),
        )
        whole = time.perf_counter() - began
        spent = json.loads((Path(workdir) / "goodput.json").read_text())["seconds"]
        journal = (Path(workdir) / "metrics.jsonl").read_text().splitlines()
    first_batch = spent["start"] + (spent["input"] if steps == 1 else 0.0)
    return {
        "first batch": first_batch,
        "waited for it": spent["input"],
        "first step": first_batch + spent["compile"],
        "step": spent["step"],
        "whole process": whole,
        "stderr": run.stderr,
        "journal": [
            {k: v for k, v in json.loads(line).items() if not k.startswith("perf/")}
            for line in journal
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True, help="a store of `firth prepare`")
    parser.add_argument("--recipe", default="bert.py:mini")
    parser.add_argument("--runs", type=int, default=7, help="of each loader, warm")
    parser.add_argument("--cold", type=int, default=2, help="of each loader, to compile anew")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    machine = {"commit": commit(), "cpus": os.cpu_count(), "machine": platform.platform()}
    found, equal = {}, set()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.cold + args.runs):
            start = "cold" if number < args.cold else "warm"
            if start == "cold":
                shutil.rmtree(folder, ignore_errors=True)
            for loader in LOADERS:
                compiled = Path(folder) / loader
                times = measure(args.store, args.recipe, loader, compiled, args.steps)
                equal.add(json.dumps(times.pop("journal")))
                times["stderr lines"] = len(times.pop("stderr").splitlines())
                times |= {"load": os.getloadavg()[0]}
                for name, value in times.items():
                    found.setdefault((start, loader, name), []).append(value)
                line = {"start": start, "loader": loader, "recipe": args.recipe}
                line |= {"steps": args.steps} | {k: round(v, 3) for k, v in times.items()} | machine
                print(json.dumps(line), flush=True)
                if args.record:
                    with open(Path(__file__).with_name("results.jsonl"), "a") as file:
                        file.write(json.dumps(line) + "\n")
    for (start, loader, name), values in found.items():
        print(f"{start} {loader:8} {name:14} min {min(values):7.2f}", end="  ")
        print(f"median {statistics.median(values):7.2f} of {len(values)}")
    print("journals:", "equal" if len(equal) == 1 else f"{len(equal)} different ones")


if __name__ == "__main__":
    main()
