"""What a run of several labelled tasks has of its files: their rows, measures and heads."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from firth.data.multitask.mixture import Mixture, TaskBuckets
from firth.data.multitask.tasks import (
    Several,
    find_tasks,
    load_tasks,
    mean_metric,
    set_name,
)
from firth.data.tasks import overview as said
from firth.data.tasks.buckets import choose_lengths, tokenise
from firth.data.tasks.metrics import score
from firth.data.tasks.task import Examples
from firth.data.views.base import View
from firth.errors import FirthError
from firth.layers.heads import TaskHeads
from firth.models.heads import classifies_pooled
from firth.models.model import family
from firth.run.labelled.parts import Parts, task_tokenizer
from firth.run.labelled.scores import predictions_of
from firth.tokenizers.base import Tokenizer
from firth.weights.read import Saved

log = logging.getLogger("firth")


@dataclasses.dataclass
class Multitask(Parts):
    """The parts of a run.

    splits: {name of a task: {split: its examples}}. has_pooler: whether the weights have one.
    truncated: {name of a task: {split: how many examples lose tokens}}, once `rows` has made them.
    """

    section: ClassVar[dict] = {"name": "multitask"}

    task: Several
    splits: dict[str, dict[str, Examples]]
    tokenizer: Tokenizer
    length: int
    power: float
    has_pooler: bool
    truncated: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    fresh: tuple[str, ...] = ()

    @classmethod
    def read(cls, config, initial: Saved | None) -> "Multitask":
        """Read the files of a config's data section; `initial` are weights to start from.

        Raises FirthError as `find_tasks` and `load_splits` do, for a task with the name of what
        every head has, for packed rows, and for gradual unfreezing.
        """
        data, several = config.data, find_tasks(config.data)
        for task in several.tasks:
            if hasattr(TaskHeads, task.name) or task.name in TaskHeads.__dataclass_fields__:
                raise FirthError(f"data.tasks: a head cannot be called {task.name!r}; rename it")
        if data.get("packed", False):
            raise FirthError(
                "data.packed=True: the texts of several tasks have rows of their own; leave it out"
            )
        if config.get("unfreeze_epochs", 0.0):
            raise FirthError(
                f"unfreeze_epochs={config.unfreeze_epochs:g}: a run of several tasks trains all "
                "layers from its start"
            )
        splits = load_tasks(several, data.dir or None, data.get("dev_fraction", 0.0))
        pooler = initial is not None and "pooler" in initial.params.get("encoder", {})
        tokenizer, power = task_tokenizer(data, initial), float(data.get("task_power", 1.0))
        return cls(several, splits, tokenizer, data.length, power, pooler)

    def complete(self, spec: dict, cache: Path | None) -> None:
        """Give the body a pooler where the family's classifier reads it."""
        del cache
        if classifies_pooled(family(spec["family"]).Config):
            spec["pooler"] = True
            self.fresh = () if self.has_pooler else ("^encoder/pooler/",)

    def rows(self, spec: dict, data, seed: int) -> dict[str, View]:
        """The mixture of all train splits, and the view of every other set.

        All batches have the lengths that suit the texts of all train splits together.
        """
        roles, found, sizes = family(spec["family"]).SPECIAL_TOKENS, {}, []
        for name, splits in self.splits.items():
            found[name] = {
                split: tokenise(examples, self.tokenizer, data.length, roles)
                for split, examples in splits.items()
            }
            self.truncated[name] = {split: rows.truncated for split, rows in found[name].items()}
            sizes.append(np.diff(found[name]["train"].offsets))
        lengths = choose_lengths(np.concatenate(sizes), data.length)
        several = [len(task.labels) for task in self.task.tasks if task.kind == "multilabel"]
        views, train = {}, []
        for number, task in enumerate(self.task.tasks):
            more = dict(number=number, width=max(several, default=1))
            for split, rows in found[task.name].items():
                view = TaskBuckets(rows, lengths, seed, **more)
                if split == "train":
                    train.append(view)
                else:
                    views[set_name(split, task)] = view
        return {"train": Mixture(train, seed, self.power)} | views

    def overview(self) -> list[str]:
        """Lines on each task."""
        lines = []
        for task in self.task.tasks:
            own = (self.splits[task.name], self.truncated[task.name], self.length)
            found = said.overview(task, *own, bool(task.dev_splits))
            lines += [f"{task.name}: {line}" for line in found]
        return lines

    def baselines(self) -> dict[str, said.Baseline]:
        """Of each labelled set, but train."""
        return {
            set_name(split, task): baseline
            for task in self.task.tasks
            for split, baseline in said.baselines(task, self.splits[task.name]).items()
        }

    def score(self, split: str, columns: list[dict]) -> tuple[dict[str, float], np.ndarray]:
        """(metrics, predictions in file order) of a set, from the slice of its task's head."""
        task, begin = self.task.of_set(split), 0
        for other in self.task.tasks[: self.task.tasks.index(task)]:
            begin += max(len(other.labels), 1)
        rows = {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}
        real = np.flatnonzero(rows["weight"] > 0)
        order = real[np.argsort(rows["example"][real])]
        logits = rows["logits"][order, begin : begin + max(len(task.labels), 1)]
        predictions = predictions_of(task, logits)
        if "labels" not in rows:
            return {}, predictions
        labels = rows["labels"][order]
        if task.kind == "multilabel":
            labels = labels[:, : len(task.labels)].astype(np.int32)
        else:
            labels = labels[:, 0] if task.kind == "regression" else labels[:, 0].astype(np.int32)
        return score(task.metrics, predictions, labels), predictions

    def summary(self, results: Mapping[str, float]) -> dict[str, float]:
        """The mean of the tasks' main metrics."""
        return mean_metric(self.task, results)
