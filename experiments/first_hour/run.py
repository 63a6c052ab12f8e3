"""Paste the README into a fresh clone, and execute the notebooks: the time of each command.

    python experiments/first_hour/run.py --work /tmp/first_hour

Clones this checkout's HEAD into an empty folder, runs `sh launch/local.sh quickstart` there, then
every command and Python block of the README in their order in the environment which that made, and
both notebooks. A line a command goes to results.jsonl. Stops at the first that fails.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOTEBOOK = """
import nbformat, nbclient, sys
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=None).execute()
"""


def steps(readme: str) -> list[tuple[str, list[str]]]:
    """(what the reader pastes, the command for it) of a README, the quick start first."""
    found = [("sh launch/local.sh quickstart", ["sh", "launch/local.sh", "quickstart"])]
    for kind, block in BLOCK.findall(readme):
        if kind == "python":
            found.append((block.strip().splitlines()[0] + " ...", ["python", "-c", block]))
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                found.append((" ".join(line.split()), ["sh", "-c", line]))
    return found


def main():
    """Run all, and write results.jsonl beside this file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="an empty or absent folder")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.jsonl"))
    args = parser.parse_args()
    if args.work.exists() and any(args.work.iterdir()):
        sys.exit(f"{args.work} is not empty; a fresh clone needs an empty folder")
    clone = args.work.resolve() / "firth"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=clone,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    hidden = {"VIRTUAL_ENV", "PYTHONPATH", "FIRTH_CACHE"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["PATH"] = f"{clone}/.venv/bin:{environment['PATH']}"
    environment["XDG_CACHE_HOME"] = str(args.work.resolve() / "cache")
    todo = steps((clone / "README.md").read_text())
    for path in sorted((clone / "docs" / "notebooks").glob("*.ipynb")):
        todo.append((f"notebook {path.name}", ["python", "-c", NOTEBOOK, str(path)]))
    needed = ["python", "-m", "pip", "install", "-q", "nbclient", "ipykernel"]
    todo.insert(len(todo) - 2, ("(for the notebooks) pip install nbclient ipykernel", needed))
    lines, began = [], time.perf_counter()
    for said, command in todo:
        start = time.perf_counter()
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
        seconds = round(time.perf_counter() - start, 1)
        last = (done.stdout.strip().splitlines() or [""])[-1]
        lines.append({"commit": commit, "command": said, "seconds": seconds, "last": last})
        print(f"{seconds:8.1f} s  {said}\n            {last[:100]}", flush=True)
        if done.returncode:
            sys.exit(f"exit status {done.returncode}\n{done.stderr}")
        args.output.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes, {len(os.sched_getaffinity(0))} cores")


if __name__ == "__main__":
    main()
