"""A BERT-mini run with a save every minute: what saving, logging and input cost, and a restart.

    python experiments/survival/goodput.py --store store/ --workdir /tmp/goodput [--minutes 20]

Trains for so many minutes after the first step, ends the run by SIGTERM, starts it again and waits
for its first step. Prints the account of the first process, and for the restart the seconds from
the start of the process to its first step, of wall time and of CPU time (all threads).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def newest_step(workdir: Path) -> int:
    """The step of the last whole line of the journal."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    return json.loads(whole[-1])["step"] if whole else 0


def start_and_wait(command: list[str], workdir: Path):
    """(process, seconds, CPU seconds) of a run that has just finished its first step."""
    before, began = newest_step(workdir), time.perf_counter()
    process = subprocess.Popen(command)
    while newest_step(workdir) <= before:
        assert process.poll() is None, f"the run ended with {process.returncode}"
        time.sleep(0.02)
    seconds = time.perf_counter() - began
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return process, seconds, sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def stop(process, workdir: Path) -> dict:
    """End the run by SIGTERM; its account."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(600) == 143
    return json.loads((workdir / "goodput.json").read_text())["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", required=True)
    parser.add_argument("--workdir", type=Path, required=True, help="not there yet")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--recipe", default="bert.py:mini")
    args = parser.parse_args()
    command = [
        *(sys.executable, "-m", "firth", "train", f"--config={args.recipe}"),
        f"--workdir={args.workdir}",
        f"--config.data.store={args.store}",
        "--config.checkpoint.minutes=1.0",
        "--config.batch_size=32",
        "--config.log_every=1",
        "--config.progress=False",
    ]
    process, cold, cold_cpu = start_and_wait(command, args.workdir)
    time.sleep(60 * args.minutes)
    first = stop(process, args.workdir)
    process, warm, warm_cpu = start_and_wait(command, args.workdir)
    stop(process, args.workdir)
    total = sum(first.values())
    running = total - first["start"] - first["compile"]
    parts = {kind: round(first[kind] / running, 4) for kind in ("checkpoint", "logging", "input")}
    result = {
        "recipe": args.recipe,
        "steps": newest_step(args.workdir),
        "seconds": first,
        "shares_after_the_first_step": parts,
        "overhead": round(sum(parts.values()), 4),
        "goodput_after_the_first_step": round(first["step"] / running, 4),
        "first_start_s": [round(cold, 1), round(cold_cpu, 1)],
        "restart_s": [round(warm, 1), round(warm_cpu, 1)],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
