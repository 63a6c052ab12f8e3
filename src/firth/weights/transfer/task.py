"""The model of one of several tasks, by its own head."""

import dataclasses

from firth.errors import FirthError
from firth.weights.read import Saved

HEADS, HEAD = "tasks", "classifier"


def of_task(saved: Saved, name: str | None) -> Saved:
    """A model of several tasks as that of one: its body, and that task's head as its classifier.

    None leaves the model as it is. Raises FirthError, with the names there are, for an unknown one,
    and for a name where the model has no heads of tasks.
    """
    if name is None:
        return saved
    if name not in saved.tasks:
        there = f"there are {', '.join(saved.tasks)}" if saved.tasks else "it is of one task"
        raise FirthError(f"{saved.source} has no task {name!r}; {there}")
    labels, kind = saved.tasks[name]
    own = {part: value for part, value in saved.params.items() if part != HEADS}
    return dataclasses.replace(
        saved,
        heads=(*(head for head in saved.heads if head != HEADS), HEAD),
        num_labels=max(len(labels), 1),
        labels=labels or None,
        regression=kind == "regression",
        multilabel=kind == "multilabel",
        tasks={},
        params=own | {HEAD: saved.params[HEADS][name]},
    )
