"""Evaluation: held-out losses of pretraining, and a task's own metrics.

firth evaluate --workdir runs/mini [--step N]
"""

import dataclasses
import json
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from firth import recipe
from firth.data.tasks.metrics import score
from firth.data.tasks.submission import write_predictions
from firth.distributed import job
from firth.errors import FirthError
from firth.models.model import bound
from firth.run import experiment
from firth.storage.local import write_text
from firth.storage.remote import is_url
from firth.training import metrics as pairs
from firth.training import partition
from firth.training.checkpoint import Checkpoints
from firth.training.remote_workdir import fetch, put_back

EVALUATION_SEED = 0x0F1E  # the masks of held-out text are the same at every evaluation


class Evaluator:
    """Measures parameters on every held-out set of a run that has labels or needs none."""

    def __init__(self, run: experiment.Experiment, config, mesh):
        self.run, self.mesh = run, mesh
        objective = run.objective
        model = with_options(run.model, config.eval.get("model", {}))
        key = jax.random.key(EVALUATION_SEED, impl=config.rng)

        memory = config.eval.get("memory", 0)

        def fresh():  # what the first batch of a held-out set continues from
            carry = objective.carry(model, config.eval.batch_size, memory)
            return {"carry": carry} if carry else {}

        shardings = partition.shardings_of(jax.eval_shape(fresh), mesh)
        self._fresh = jax.jit(fresh, out_shardings=shardings)

        def measure(model, batch):
            batch = objective.corrupt(batch, key)
            _, measured, *carry = objective.losses(model, batch, train=False)
            return measured, {"carry": carry[0]} if carry else {}

        def predict(model, batch):
            logits = objective.logits(model, batch, train=False)
            measured = objective.losses_of(logits, batch)[1] if "labels" in batch else {}
            rows = {name: batch[name] for name in ("example", "weight", "labels") if name in batch}
            return measured, rows | {"logits": logits}

        # Predictions of all hosts come to each of them; what is remembered stays where it is.
        whole = NamedSharding(mesh, PartitionSpec()) if run.task else None
        self._pass = jax.jit(bound(model, predict if run.task else measure), out_shardings=whole)

    def measurements(self, params) -> dict[str, float]:
        """{"<set>/<metric>": value}: means of the objective's metrics, then the task's own."""
        names = [n for n in self.run.heldout if not self.run.task or n.startswith("dev")]
        return {
            f"{name}/{metric}": value
            for name in names
            for metric, value in self.measure(params, name)[0].items()
        }

    def measure(self, params, name: str):
        """One pass over the held-out set `name`: ({metric: value}, predictions).

        Metrics are missing where labels are. Predictions are, in file order, the class int [n] or
        the score float [n] of every example of a task, and None in pretraining.
        """
        task, total, columns = self.run.task, {}, []
        carry = {} if task else self._fresh()
        for batch in self.run.heldout[name]():
            on_device = partition.put_batch(batch, self.mesh)
            measured, found = self._pass(params, on_device | carry)
            total = pairs.add(total, jax.device_get(measured))
            if not task:
                carry = found
            else:
                rows = jax.device_get(found)
                labels = rows.get("labels", np.zeros(len(rows["logits"])))
                real = rows["weight"] > 0
                columns.append((rows["example"][real], rows["logits"][real], labels[real]))
        means = pairs.means(total)
        for term in ("mlm", "lm"):
            if f"{term}_loss" in means:
                means[f"{term}_perplexity"] = float(np.exp(means[f"{term}_loss"]))
        if not task:
            return means, None
        example, logits, labels = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(example)
        logits, labels = logits[order], labels[order]
        predictions = logits[:, 0] if task.kind == "regression" else logits.argmax(axis=1)
        if means:  # labelled
            means |= score(task.metrics, predictions, labels)
        return means, predictions


def with_options(model, options) -> nn.Module:
    """The model with other options of its body, as `eval.model` names them; the same parameters.

    Transformer-XL is measured with distances clamped and sight of equal length (`clamp_len`,
    `same_length`), though it is trained with neither (Dai et al. 2019, section 4.1 and the released
    scripts). Raises FirthError for a field that the body does not have, and for one that changes
    what its parameters are.
    """
    if not options:
        return model
    known = {field.name for field in dataclasses.fields(model.encoder.config)}
    if unknown := sorted(set(options) - known):
        raise FirthError(
            f"eval.model has no field {', '.join(unknown)}{recipe.suggest(unknown[0], known)}"
        )
    config = dataclasses.replace(model.encoder.config, **options)
    other = model.clone(encoder=model.encoder.clone(config=config))
    if _shapes(model) != _shapes(other):
        raise FirthError(
            f"eval.model={dict(options)} makes other parameters than were trained: only what says "
            "how they are used may differ in evaluation, such as clamp_len or same_length"
        )
    return other


def _shapes(model):
    """{path: (shape, dtype)} of a model's parameters."""
    made = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 8), jnp.int32))
    return {name: (leaf.shape, leaf.dtype) for name, leaf in flatten_dict(made["params"]).items()}


def evaluate(workdir: Path, step: int | None = None, changes=()) -> dict[str, float]:
    """Measure one checkpoint of a workdir: that of `step`, else the best, else the newest.

    `changes` are fields to measure it by other than it was trained with, as on the command line:
    "--config.data.heldout_store=test/". Writes `evaluation.json`, and for a task
    `predictions/<split>.tsv` of every split but train, in GLUE's submission format. Raises
    FirthError for a folder or URL that is no workdir.
    """
    if is_url(workdir):
        copy = fetch(workdir)
        found = evaluate(copy, step, changes)
        written = [copy / "evaluation.json", *(copy / "predictions").glob("*.tsv")]
        put_back(copy, workdir, [path.relative_to(copy).as_posix() for path in written])
        return found
    workdir = Path(workdir)
    config, changed = recipe.remeasured(recipe.read(workdir), changes)
    mesh = partition.create_mesh(config.mesh)
    run = experiment.build(config, mesh, cache=workdir / "epochs.json")
    saves = Checkpoints(workdir, **dict(config.checkpoint) | {"best": run.best}, read_only=True)
    step, params = saves.restore_params(step)
    params = jax.device_put(params, partition.shardings_of(params, mesh))
    evaluator, found = Evaluator(run, config, mesh), {}
    for name in run.heldout:
        means, predictions = evaluator.measure(params, name)
        if not run.task or name.startswith("dev"):
            found |= {f"{name}/{metric}": value for metric, value in means.items()}
        if run.task and job.leads():
            (workdir / "predictions").mkdir(exist_ok=True)
            path = workdir / "predictions" / f"{name}.tsv"
            write_predictions(path, run.task, predictions)
    found = {"step": step, **changed, **found}
    if job.leads():
        write_text(workdir / "evaluation.json", json.dumps(found, indent=2) + "\n")
    return found
