"""Which head of the weights that a run starts from fits its task."""

import dataclasses

from firth.data.tasks.task import Task, shown
from firth.weights.read import Saved

HEAD = "classifier"


def without_other_labels(saved: Saved | None, task: Task) -> tuple[Saved | None, tuple[str, ...]]:
    """The weights without a classifier of other labels than the task's, and lines that say so.

    As many labels may be other ones, and the same labels may be in another order. A classifier
    whose labels have no names stays if it has as many.
    """
    if saved is None or HEAD not in saved.params or task.kind == "choice":
        return saved, ()
    there = () if saved.regression else saved.labels
    same_number = saved.num_labels == len(task.labels)
    if there in (task.labels, task.names or task.labels) or (there is None and same_number):
        return saved, ()
    said = (
        f"{saved.source}: the encoder is taken, its classifier is not: that one is for "
        f"{_named(there)}, and task {task.name!r} has {_named(task.labels)}"
    )
    params = {name: value for name, value in saved.params.items() if name != HEAD}
    return dataclasses.replace(saved, params=params), (said,)


def _named(labels: tuple[str, ...] | None) -> str:
    if labels is None:
        return "labels without names"
    return f"the labels {shown(labels)}" if labels else "scores"
