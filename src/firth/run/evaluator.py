"""Evaluation: held-out losses of pretraining, metrics of tasks, and evaluators of recipes.

firth evaluate --workdir runs/mini [--step N]

A run's own evaluator measures its held-out sets. A recipe adds others by name, each with its
interval in steps and its own options:

    config.evals.blanks = dict(type="my_module:Blanks", every=1000, texts="blanks.txt")

Its metrics are logged as `eval/blanks/...`.
"""

import abc
import contextlib
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from firth import recipe, registry
from firth.data.submissions.predictions import save_predictions
from firth.data.tasks.metrics import score
from firth.distributed import job
from firth.errors import FirthError
from firth.models.model import bound
from firth.progress import Progress
from firth.run import bounds, counted, experiment
from firth.run.labelled.scores import predictions_of
from firth.run.logistic import training as logistic
from firth.run.program import with_products
from firth.run.recorded import remeasured
from firth.storage.local import write_text
from firth.storage.remote import is_url
from firth.training import metrics as pairs
from firth.training import partition
from firth.training.checkpoint import Checkpoints
from firth.training.remote_workdir import download_workdir, upload_files
from firth.training.state import TrainState

EVALUATION_SEED = 0x0F1E  # the masks of held-out text are the same at every evaluation


EVALUATORS = {"heldout": "firth.run.evaluator:Heldout"}


class Evaluator(abc.ABC):
    """Measures a train state; `options` are those of its entry in the recipe.

    `experiment` holds the parts of the run; `mesh` has the devices of the state. Raises FirthError
    for an unknown option.
    """

    def __init__(self, experiment, config, mesh, **options):
        if options:
            raise FirthError(f"{type(self).__name__} has no option {min(options)!r}")
        self.experiment, self.config, self.mesh = experiment, config, mesh

    @abc.abstractmethod
    def run(self, state) -> dict[str, float]:
        """{metric: value} of a `TrainState`; all processes must call it."""


class Heldout(Evaluator):
    """Measures parameters on every held-out set with labels, or any set in pretraining.

    `show` is told of each batch.
    """

    def show(self, text: str) -> None:
        """Nothing, unless `Evaluators` has put another function in its place."""

    def __init__(self, experiment, config, mesh, **options):
        super().__init__(experiment, config, mesh, **options)
        objective, task = experiment.objective, experiment.task
        check_rows(config, mesh)
        model = with_options(experiment.model, config.eval.get("model", {}))
        model = with_products(model, config)
        key = jax.random.key(EVALUATION_SEED, impl=config.rng)

        memory = config.eval.get("memory", 0)

        def fresh():  # the memory before the first batch of a held-out set
            carry = objective.carry(model, config.eval.batch_size, memory)
            return {"carry": carry} if carry else {}

        shardings = partition.shardings_of(jax.eval_shape(fresh), mesh)
        self._fresh = jax.jit(fresh, out_shardings=shardings)

        def measure(model, batch):
            batch = objective.corrupt(batch, key)
            _, measured, *carry = objective.losses(model, batch, train=False)
            return measured, {"carry": carry[0]} if carry else {}

        def predict(model, batch):
            return objective.outputs(model, batch)

        # Each host gets the predictions of all hosts; a model's memory keeps its sharding.
        whole = NamedSharding(mesh, PartitionSpec()) if task else None
        self._pass = jax.jit(bound(model, predict if task else measure), out_shardings=whole)

    def run(self, state) -> dict[str, float]:
        """{"<set>/<metric>": value}: means of the objective's metrics and the task's metrics."""
        sets, task = self.experiment.heldout, self.experiment.task
        results = {
            f"{name}/{metric}": value
            for name in sets
            if not task or name.startswith("dev")
            for metric, value in self.measure(state.params, name)[0].items()
        }
        return results | self.experiment.summary(results)

    def measure(self, params, name: str):
        """One pass over the held-out set `name`: ({metric: value}, predictions).

        A set without labels has no metrics. Predictions of a task are the classes, int [n], or
        the scores, float [n], of all examples in file order, or what `Experiment.scorers` make of
        the outputs; in pretraining they are None.
        """
        task, total, columns = self.experiment.task, {}, []
        carry = {} if task else self._fresh()
        batches = self.experiment.passes.get(name)
        of = f" of {batches:,}" if batches else ""
        for number, batch in enumerate(self.experiment.heldout[name](), 1):
            on_device = partition.put_batch(batch, self.mesh)
            measured, outputs = self._pass(params, on_device | carry)
            total = pairs.add(total, jax.device_get(measured))
            if not task:
                carry = outputs
            elif name in self.experiment.scorers:
                columns.append(jax.device_get(outputs))
            else:
                rows = jax.device_get(outputs)
                labels = rows.get("labels", np.zeros(rows["weight"].shape))
                real = rows["weight"] > 0
                columns.append((rows["example"][real], rows["logits"][real], labels[real]))
            self.show(f"{name}: batch {number:,}{of}")
        means = pairs.means(total)
        for term in ("mlm", "lm", "forward", "backward"):
            if f"{term}_loss" in means:
                means[f"{term}_perplexity"] = float(np.exp(means[f"{term}_loss"]))
        if "lm_loss" in means and self.experiment.tokenizer.kind == "char":
            means["bits_per_character"] = means["lm_loss"] / math.log(2)  # a token is a character
        if not task:
            return means, None
        if name in self.experiment.scorers:
            scores, predictions = self.experiment.scorers[name](columns)
            return means | scores, predictions
        example, logits, labels = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(example)
        logits, labels = logits[order], labels[order]
        predictions = predictions_of(task, logits)
        if means:  # labelled
            means |= score(task.metrics, predictions, labels)
            groups = self.experiment.groups.get(name, np.zeros(0, str))
            for group in np.unique(groups):
                part = groups == group
                found = score(task.metrics, predictions[part], labels[part])
                means |= {f"{metric}_{group}": value for metric, value in found.items()}
        return means, predictions


class Evaluators:
    """All evaluators of a run: its own, called "", and those of the recipe.

    `show` is called with a short text after each batch of the run's own. Raises FirthError for an
    unknown evaluator or option, and for a `plateau` without held-out text.
    """

    def __init__(self, experiment, config, mesh, show: Callable[[str], None] | None = None):
        self.best = experiment.best
        if config.get("plateau") and not experiment.heldout:
            raise FirthError(
                f"plateau.name={config.plateau.name!r} heeds a held-out loss, but there is no "
                "held-out text: set data.heldout_store=DIR, or data.heldout to a share of the text"
            )
        self.every = {"": experiment.evaluate_every}
        self.heldout = Heldout(experiment, config, mesh)
        self.heldout.show = show or self.heldout.show
        self.evaluators: dict[str, Evaluator] = {"": self.heldout}
        for name, entry in config.get("evals", {}).items():
            options = dict(entry)
            kind, self.every[name] = options.pop("type", ""), options.pop("every", 0)
            evaluator = registry.resolve(f"evals.{name}.type", kind, EVALUATORS)
            self.evaluators[name] = evaluator(experiment, config, mesh, **options)

    def due(self, step: int, last: bool) -> list[str]:
        """Names of the evaluators that run after this step; after the last step, all run."""
        return [name for name, every in self.every.items() if last or (every and step % every == 0)]

    def run(self, state, names: list[str]) -> dict[str, float]:
        """{metric: value} of these evaluators; those of the recipe prefix "<name>/".

        Raises FirthError if the run's own evaluator lacks the metric that chooses the best
        checkpoint.
        """
        results = {}
        for name in names:
            own = self.evaluators[name].run(state)
            results |= {f"{name}/{metric}" if name else metric: v for metric, v in own.items()}
        if "" in names and self.best and self.best not in results:
            raise FirthError(
                f"checkpoint.best={self.best!r} is not measured; there are {', '.join(results)}"
            )
        return results


def with_options(model, options) -> nn.Module:
    """The model with the options of `eval.model` in its body; its parameters stay the same.

    Transformer-XL, for instance, is trained without `clamp_len` and `same_length`, but evaluated
    with clamped distances and a context of equal length (Dai et al. 2019, section 4.1 and the
    released scripts). Raises FirthError for a field that the body lacks, and for one that changes
    its parameters.
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
            f"eval.model={dict(options)} makes other parameters than were trained; evaluation may "
            "change only how they are used, as with clamp_len or same_length"
        )
    return other


def _shapes(model):
    """{path: (shape, dtype)} of a model's parameters."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 8), jnp.int32))
    return {name: (leaf.shape, leaf.dtype) for name, leaf in flatten_dict(shapes["params"]).items()}


def check_rows(config, mesh) -> None:
    """Raise FirthError if the devices of the mesh do not divide the rows of an evaluation."""
    devices = mesh.shape["data"] * mesh.shape["fsdp"]
    if config.eval.batch_size % devices:
        raise FirthError(
            f"eval.batch_size={config.eval.batch_size} is not a multiple of data x fsdp = {devices}"
        )


def mesh_for(config):
    """The mesh of an evaluation alone, with as many devices as divide its rows.

    A text is read in one row, for one, whatever the machine has. A mesh with a fixed `data`, of
    several processes or slices stays as it is.
    """
    spec, devices = config.mesh, jax.devices()
    if jax.process_count() == 1 and spec.data == -1 and spec.get("slices", 1) == 1:
        others = spec.fsdp * spec.tensor
        data = math.gcd(len(devices) // others, config.eval.batch_size // spec.fsdp)
        devices = devices[: others * data]
    return partition.create_mesh(spec, devices)


def evaluate(workdir: Path, step: int | None = None, changes=()) -> dict[str, float]:
    """Measure one checkpoint of a workdir: that of `step`, else the best, else the newest.

    `changes` override fields for the evaluation, as on the command line:
    "--config.data.heldout_store=test/". Writes `evaluation.json`, and for a task
    `predictions/<split>.tsv` of every split but train, in GLUE's submission format (answers to
    questions: .json, in SQuAD's). Raises FirthError for a folder or URL that is no workdir, and for
    bad `changes`.
    """
    if is_url(workdir):
        copy = download_workdir(workdir)
        results = evaluate(copy, step, changes)
        written = [copy / "evaluation.json", *(copy / "predictions").glob("*.*")]
        upload_files(copy, workdir, [path.relative_to(copy).as_posix() for path in written])
        return results
    workdir = Path(workdir)
    before = recipe.read(workdir)
    if counted.is_counted(before):
        if step is not None:
            raise FirthError(f"{workdir} holds a model that was counted, which has no steps")
        return counted.evaluate(workdir, changes)
    if logistic.is_logistic(before):
        if step is not None or changes:
            raise FirthError(
                f"{workdir} holds a logistic regression, which has no steps and no fields to "
                "measure it by; for another text give --model and --data"
            )
        return logistic.evaluate(workdir)
    if before.get("model", {}).get("family") in recipe.OWN_RUNS:
        raise FirthError(
            f"{workdir} holds word vectors, which no held-out text measures; `firth analogy "
            "--questions FILE` scores them"
        )
    if not {"data", "eval", "model", "objective"} <= set(before.keys()):
        raise FirthError(f"{workdir} is not a workdir: its config.json is not that of a run")
    config, changed = remeasured(before, changes)
    bounds.check(config)
    mesh = mesh_for(config)
    run = experiment.build(config, mesh, cache=workdir / "epochs.json")
    saves = Checkpoints(workdir, **dict(config.checkpoint) | {"best": run.best}, read_only=True)
    step, params = saves.restore_params(step)
    params = jax.device_put(params, partition.shardings_of(params, mesh))
    bar = Progress(len(run.heldout), 0, "sets", quiet=not config.get("progress", True))
    evaluators = Evaluators(run, config, mesh, lambda text: bar.update(bar.step, text))
    results = {}
    with contextlib.closing(bar):
        for name in run.heldout:
            means, predictions = evaluators.heldout.measure(params, name)
            results |= {f"{name}/{metric}": value for metric, value in means.items()}
            if run.task and job.leads():
                save_predictions(workdir, name, run.task, predictions)
            bar.update(bar.step + 1)
    results |= run.summary(results)
    state = TrainState(jnp.asarray(step), jnp.zeros((), jnp.int32), params, (), {}, {})
    added = [name for name in evaluators.evaluators if name]
    results = {"step": step, **changed, **results, **evaluators.run(state, added)}
    if job.leads():
        write_text(workdir / "evaluation.json", json.dumps(results, indent=2) + "\n")
    return results
