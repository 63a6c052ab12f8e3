"""Which head of the weights that a run starts from fits its task."""

import dataclasses

from firth.data.tasks.task import Task, shown
from firth.weights.read import Saved

HEAD = "classifier"


def without_other_labels(saved: Saved | None, task: Task) -> tuple[Saved | None, tuple[str, ...]]:
    """The weights without a classifier of other labels than the task's, and lines that say so.

    As many labels may be other ones, and the same labels may be in another order. A classifier
    whose labels have no names stays if it has as many. One that gives a text a single label is not
    one that gives it several.
    """
    if saved is None or HEAD not in saved.params or task.kind == "choice":
        return saved, ()
    there = () if saved.regression else saved.labels
    same_number = saved.num_labels == len(task.labels)
    alike = saved.multilabel == (task.kind == "multilabel")
    if alike and (
        there in (task.labels, task.names or task.labels) or (there is None and same_number)
    ):
        return saved, ()
    said = (
        f"{saved.source}: the encoder is taken, its classifier is not: that one is for "
        f"{_named(there, saved.multilabel)}, and task {task.name!r} has "
        f"{_named(task.labels, task.kind == 'multilabel')}"
    )
    params = {name: value for name, value in saved.params.items() if name != HEAD}
    return dataclasses.replace(saved, params=params), (said,)


def _named(labels: tuple[str, ...] | None, several: bool) -> str:
    if labels is None:
        return "labels without names"
    more = ", several of which a text may have" if several else ""
    return f"the labels {shown(labels)}{more}" if labels else "scores"
