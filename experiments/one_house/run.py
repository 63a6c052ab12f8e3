"""Does a workdir of an earlier commit go on with this one, to the same bytes?

    python experiments/one_house/run.py --before PYTHON

PYTHON is the interpreter of an environment in which the earlier commit is installed. It prepares a
store and trains each recipe to the end, and once more half way. This environment goes on with the
second workdir. Every array of the last checkpoint and every logged metric must be the same.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

os.environ["JAX_PLATFORMS"] = "cpu"
REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))
from helpers.jobs import read_state  # noqa: E402
from helpers.runs import make_corpus  # noqa: E402

STEPS, HALF = 40, 20
RECIPES = {  # with the fields that make it small
    "bert": ("bert.py:tiny,length=32", {}),
    "electra": ("electra.py:tiny,length=32,sharing=embeddings", {}),
    "xlnet": ("xlnet.py:tiny,length=32,memory=24", {}),
}
COMMON = {
    "steps": STEPS,
    "batch_size": 16,
    "log_every": 5,
    "data.heldout": 0.2,
    "data.loader": "thread",
    "eval.every": 20,
    "eval.batch_size": 16,
    "eval.batches": 2,
    "checkpoint.every": 10,
    "progress": False,
}


def firth(python: str, *argv) -> None:
    """Run the command with an interpreter; `-c` since the earlier commit has no __main__."""
    program = "import sys; from firth.cli import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run([python, "-c", program, *map(str, argv)], check=True, cwd=tempfile.gettempdir())


def version(python: str) -> str:
    """The commit that an interpreter's firth is of."""
    program = "from firth.training.journal import commit; print(commit())"
    return subprocess.run(
        [python, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()


def journal(workdir: Path) -> list[dict]:
    """The logged metrics, without what depends on the clock."""
    entries = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [
        {tag: value for tag, value in entry.items() if not tag.startswith("perf/")}
        for entry in entries
    ]


def compare(name: str, before: str, store: Path, folder: Path) -> dict:
    """Train a recipe whole and in two parts; {what was compared: how many, and how many differ}."""
    recipe, fields = RECIPES[name]
    fields = COMMON | fields | {"data.store": store}
    changes = [f"--config.{field}={value}" for field, value in fields.items()]

    def train(python, workdir, until):
        argv = ["train", f"--config={recipe}", f"--workdir={workdir}", *changes]
        firth(python, *argv, f"--config.until={until}")

    whole, parts = folder / f"{name}-whole", folder / f"{name}-parts"
    train(before, whole, 0)
    train(before, parts, HALF)
    train(sys.executable, parts, 0)
    expected, got = read_state(whole, STEPS), read_state(parts, STEPS)
    assert expected.keys() == got.keys(), expected.keys() ^ got.keys()
    arrays = [np.array_equal(expected[key], got[key], equal_nan=True) for key in expected]
    lines = [a == b for a, b in zip(journal(whole), journal(parts), strict=True)]
    return {
        "arrays": len(arrays),
        "arrays_differ": arrays.count(False),
        "lines": len(lines),
        "lines_differ": lines.count(False),
    }


def main() -> int:
    """The command; 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=RECIPES, help="one recipe alone")
    parser.add_argument("--before", required=True, help="Python of the earlier commit")
    args = parser.parse_args()
    print(f"before: {version(args.before)}, after: {version(sys.executable)}")
    differ = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_corpus(folder / "corpus.txt", documents=200)
        tokenizer = f"--tokenizer={folder}/tok --train-tokenizer=wordpiece --vocab-size=120"
        argv = f"prepare --input {folder}/corpus.txt {tokenizer} --output {folder}/store"
        firth(args.before, *argv.split())
        for recipe in [args.only] if args.only else RECIPES:
            found = compare(recipe, args.before, folder / "store", folder)
            print(recipe, json.dumps(found), flush=True)
            differ += found["arrays_differ"] + found["lines_differ"]
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
