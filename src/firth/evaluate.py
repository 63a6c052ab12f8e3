"""Evaluation: held-out losses of pretraining, and a task's own metrics.

firth evaluate --workdir runs/mini [--step N]
"""

import argparse
import functools
import json
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np

from firth import experiment, recipe
from firth.data import scores
from firth.errors import FirthError
from firth.training import metrics as pairs
from firth.training import partition
from firth.training.checkpoint import Checkpoints

EVALUATION_SEED = 0x0F1E  # the masks of held-out text are the same at every evaluation


class Evaluator:
    """Measures parameters on every held-out set of a run that has labels or needs none."""

    def __init__(self, run: experiment.Experiment, config, mesh):
        self.run, self.mesh = run, mesh
        objective, model = run.objective, run.model
        key = jax.random.key(EVALUATION_SEED, impl=config.rng)

        def measure(params, batch):
            batch = objective.corrupt(batch, key)
            losses = functools.partial(objective.losses, train=False)
            _, measured = nn.apply(lambda m, b: losses(m, b), model)({"params": params}, batch)
            return measured

        def predict(params, batch):
            logits = functools.partial(objective.logits, train=False)
            return nn.apply(lambda m, b: logits(m, b), model)({"params": params}, batch)

        self.measure, self.logits = jax.jit(measure), jax.jit(predict)

    def measurements(self, params) -> dict[str, float]:
        """{"<set>/<metric>": value}: means of the objective's metrics, then the task's own."""
        found = {}
        for name in self.run.heldout:
            if self.run.task and not name.startswith("dev"):
                continue
            total = {}
            for batch in self.run.heldout[name]():
                batch = partition.put_batch(batch, self.mesh)
                total = pairs.add(total, jax.device_get(self.measure(params, batch)))
            means = pairs.means(total)
            if "mlm_loss" in means:
                means["mlm_perplexity"] = float(np.exp(means["mlm_loss"]))
            if self.run.task:
                predictions, labels = self.predictions(params, name)
                means |= scores.score(self.run.task.metrics, predictions, labels)
            found |= {f"{name}/{metric}": value for metric, value in means.items()}
        return found

    def predictions(self, params, name: str):
        """Predicted class int [n] or score float [n] of a split in file order, and its labels."""
        examples, outputs, labels = [], [], []
        for batch in self.run.heldout[name]():
            real = batch["weight"] > 0
            known = batch.pop("labels", np.zeros(len(real), np.int32))
            logits = self.logits(params, partition.put_batch(batch, self.mesh))
            examples.append(batch["example"][real])
            outputs.append(np.asarray(jax.device_get(logits))[real])
            labels.append(known[real])
        order = np.argsort(np.concatenate(examples))
        logits, labels = np.concatenate(outputs)[order], np.concatenate(labels)[order]
        regression = self.run.task.kind == "regression"
        return logits[:, 0] if regression else logits.argmax(axis=1), labels


def evaluate(workdir: Path, step: int | None = None) -> dict[str, float]:
    """Measure one checkpoint of a workdir: that of `step`, else the best, else the newest.

    Writes `evaluation.json`, and for a task `predictions/<split>.tsv` of every split but train,
    in GLUE's submission format. Raises FirthError for a folder that is no workdir.
    """
    workdir = Path(workdir)
    config = recipe.read(workdir)
    run = experiment.build(config, cache=workdir / "epochs.json")
    mesh = partition.create_mesh(config.mesh)
    saves = Checkpoints(workdir, **dict(config.checkpoint) | {"best": run.best}, read_only=True)
    step, params = saves.restore_params(step)
    params = jax.device_put(params, partition.shardings_of(params, mesh))
    evaluator = Evaluator(run, config, mesh)
    found = evaluator.measurements(params)
    if run.task:
        (workdir / "predictions").mkdir(exist_ok=True)
        for split in run.heldout:
            predictions, _ = evaluator.predictions(params, split)
            path = workdir / "predictions" / f"{split}.tsv"
            scores.write_predictions(path, run.task, predictions)
    text = json.dumps({"step": step, **found}, indent=2) + "\n"
    recipe.write_atomically(workdir / "evaluation.json", text)
    return {"step": step, **found}


def main(argv: list[str]) -> int:
    """`firth evaluate`."""
    parser = argparse.ArgumentParser(prog="firth evaluate", description=__doc__.split("\n")[0])
    parser.add_argument("--workdir", required=True, help="the folder of a run of `firth train`")
    parser.add_argument("--step", type=int, help="checkpoint (default: the best, else the newest)")
    args = parser.parse_args(argv)
    if not Path(args.workdir).is_dir():
        raise FirthError(f"--workdir {args.workdir}: no such folder")
    for name, value in evaluate(args.workdir, args.step).items():
        print(f"{name:<32} {value:.6g}" if name != "step" else f"{name:<32} {value}")
    return 0
