"""Steps, `prepare` and generation of two commits, in turn on one machine.

    python experiments/one_house/speed.py --before PYTHON --corpus FILE [--rounds 5]

PYTHON is the interpreter of an environment in which the earlier commit is installed. Each round
runs both commits; the order changes from round to round. Printed are medians and their ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
COMMAND = "import sys; from firth.cli import main; sys.exit(main(sys.argv[1:]))"
TRAIN = "--config=bert.py:mini,length=128 --config.steps=24 --config.batch_size=16"
TRAIN += " --config.log_every=4 --config.data.loader=thread --config.progress=False"
TRAIN += " --config.eval.batches=1 --config.eval.batch_size=16"
GPT = "--config=gpt2.py:tiny,length=128 --config.steps=2 --config.batch_size=8"
GPT += " --config.data.loader=thread --config.progress=False --config.eval.batches=1"
GENERATE = """
import sys, time, firth
encoder = firth.load(sys.argv[1])
encoder.generate("the", max_tokens=100, greedy=True)
began = time.monotonic()
for _ in range(5):
    encoder.generate("the", max_tokens=100, greedy=True)
print(500 / (time.monotonic() - began))
"""


def run(python: str, *argv, program: str = COMMAND) -> str:
    """What a program prints."""
    command = [python, "-c", program, *map(str, argv)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")
    return done.stdout


def measure(python: str, corpus: Path, folder: Path) -> dict[str, float]:
    """Milliseconds a step, tokens a second of `prepare` and of generation."""
    tokenizer, store, workdir = folder / "tok", folder / "store", folder / "run"
    trained = f"--train-tokenizer=bpe --vocab-size=4000 --tokenizer={tokenizer}".split()
    run(python, "prepare", "--input", corpus, *trained, "--output", store)
    text = run(python, "prepare", "--input", corpus, *trained, "--output", folder / "again")
    tokens, seconds = text.split(": ")[1].split(" tokens")[0], text.split(" in ")[1].split(" s")[0]
    wordpiece = f"--train-tokenizer=wordpiece --vocab-size=4000 --tokenizer={folder}/words".split()
    run(python, "prepare", "--input", corpus, *wordpiece, "--output", folder / "pairs")
    data = f"--config.data.store={folder}/pairs"
    run(python, "train", *TRAIN.split(), f"--workdir={workdir}", data)
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    steps = [line["perf/step_ms"] for line in lines if "perf/step_ms" in line]
    run(python, "train", *GPT.split(), f"--workdir={folder}/gpt", f"--config.data.store={store}")
    return {
        "step_ms": statistics.median(steps[1:]),
        "prepare_tokens_per_s": float(tokens.replace(",", "")) / float(seconds.replace(",", "")),
        "generated_tokens_per_s": float(run(python, folder / "gpt", program=GENERATE)),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True, help="Python of the earlier commit")
    parser.add_argument("--corpus", required=True, type=Path, help="a text file of some megabytes")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    sides = {"before": args.before, "after": sys.executable}
    measured = {side: [] for side in sides}
    for number in range(args.rounds):
        for side in sorted(sides, reverse=bool(number % 2)):
            with tempfile.TemporaryDirectory() as name:
                found = measure(sides[side], args.corpus.resolve(), Path(name))
            measured[side].append(found)
            print(number, side, json.dumps(found), flush=True)
    for name in measured["before"][0]:
        before, after = (statistics.median(r[name] for r in measured[s]) for s in sides)
        print(f"{name}: before {before:,.1f}, after {after:,.1f}, ratio {after / before:.3f}")


if __name__ == "__main__":
    main()
