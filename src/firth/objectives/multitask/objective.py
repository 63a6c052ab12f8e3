"""Several labelled tasks at once: one body, and a head for each (Clark et al. 2020, released code).

B rows, C outputs of a head.
"""

import dataclasses

import jax.numpy as jnp

from firth.errors import FirthError
from firth.models.model import family
from firth.objectives.finetune import Finetune
from firth.objectives.objective import Sources


@dataclasses.dataclass(frozen=True)
class Part:
    """A task: its name, the outputs of its head, and the loss of its kind."""

    name: str
    outputs: int
    objective: Finetune


@dataclasses.dataclass(frozen=True)
class MultiTask(Finetune):
    """Each row has the loss of its own task, by that task's head.

    A batch has task int32 [B] and labels float32 [B, W] (`firth.data.multitask.mixture`). As in
    ELECTRA's code all heads are computed, and what they say of rows of other tasks counts nothing:
    their parameters get a gradient of zero. So one program serves all tasks.
    """

    tasks: tuple[Part, ...] = ()

    @classmethod
    def from_config(cls, fields: dict, sources: Sources) -> "MultiTask":
        """Build it from a config's `objective` section and the tasks.

        Raises FirthError for a single task, for weights of classes, and for both orders of a task
        with one text.
        """
        several, body = sources.task, sources.body
        if several is None or several.kind != "multitask":
            raise FirthError(
                "objective 'multitask' learns several tasks; use finetune.py with "
                "--config.data.tasks=NAME,NAME"
            )
        if fields.pop("class_weights", ""):
            raise FirthError(
                "objective.class_weights: a run of several tasks does not weigh labels; leave it "
                "out, or train the tasks one by one"
            )
        single = [task.name for task in several.tasks if len(task.text_columns) != 2]
        if fields.get("both_orders") and single:
            raise FirthError(f"objective.both_orders needs two texts; task {single[0]!r} has one")
        counts = tuple(map(len, family(body["family"]).SPECIAL_TOKENS)) if body else (1, 1, 1)
        tasks = tuple(
            Part(
                task.name,
                max(len(task.labels), 1),
                Finetune(
                    regression=task.kind == "regression", multilabel=task.kind == "multilabel"
                ),
            )
            for task in several.tasks
        )
        return cls(tasks=tasks, special_counts=counts, **fields)

    @property
    def heads(self):
        """The heads of all tasks as one, whose logits lie beside each other."""
        return ("tasks", "lm") if self.lm_weight else ("tasks",)

    def parts(self, spec: dict) -> dict:
        """The names and outputs of the tasks' heads."""
        del spec
        return {"tasks": tuple((part.name, part.outputs) for part in self.tasks)}

    def losses_of(self, logits_BC, batch):
        """The sum over tasks, each of its own rows and its own slice of the logits."""
        loss, begin = jnp.zeros(()), 0
        for number, part in enumerate(self.tasks):
            end = begin + part.outputs
            own_B = batch["task"] == number
            labels_BW = jnp.where(own_B[:, None], batch["labels"], 0)
            rows = {"weight": jnp.where(own_B, batch["weight"], 0)}
            if part.objective.multilabel:
                rows["labels"] = labels_BW[:, : part.outputs]
            else:
                kind = jnp.float32 if part.objective.regression else jnp.int32
                rows["labels"] = labels_BW[:, 0].astype(kind)
            loss += part.objective.losses_of(logits_BC[:, begin:end], rows)[0]["task"]
            begin = end
        return {"task": loss}, {"task_loss": (loss, batch["weight"].sum())}
