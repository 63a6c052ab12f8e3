"""Answers as spans of their texts (Devlin et al. 2019, section 4.2). B rows, L length."""

import dataclasses

import jax.numpy as jnp

from firth.errors import FirthError
from firth.objectives.losses import log_loss
from firth.objectives.objective import Sources, TaskObjective

LOWEST = -1e9  # of a place that no answer may have


@dataclasses.dataclass(frozen=True)
class Answer(TaskObjective):
    """The mean of two softmax cross-entropies over a row's tokens: of the span's begin and end.

    A row that does not hold its answer points twice at [CLS], in training too. Padding has no
    probability.

    max_answer: the most tokens of an answer. null_threshold: where questions may have no answer,
      one is given unless no answer scores higher than it by more than this. Both are used by the
      measures, not by the loss.
    """

    max_answer: int = 30
    null_threshold: float = 0.0

    heads = ("answer",)
    coefficients = {"answer": 1.0}  # noqa: RUF012 (as in the base)

    @classmethod
    def from_config(cls, fields: dict, sources: Sources) -> "Answer":
        """Build it from a config's `objective` section and the task."""
        if sources.task is None or sources.task.kind != "answering":
            raise FirthError(
                "objective 'answer' learns to answer questions, and this recipe has no such task; "
                "use squad.py"
            )
        return cls(**fields)

    def __post_init__(self):
        if self.max_answer < 1:
            raise FirthError(f"objective.max_answer={self.max_answer}: expected 1 token or more")

    def weights(self, batch):
        """Number of real rows."""
        return {"answer": batch["weight"].sum()}

    def logits(self, model, batch, *, train: bool):
        """Logits float32 [B, L, 2] that the answer begins and ends at each token."""
        mask_BL = batch["mask"]
        out = model.encoder(batch["tokens"], batch["segments"], mask_BL, train=train)
        logits_BL2 = model.head("answer")(out.last, train=train)
        return jnp.where(mask_BL[..., None], logits_BL2, LOWEST)

    def losses(self, model, batch, *, train: bool):
        """Sums {term: loss sum} and metrics {name: (sum, weight)}."""
        return self.losses_of(self.logits(model, batch, train=train), batch)

    def losses_of(self, logits_BL2, batch):
        """The sums and metrics of these logits; answer_accuracy is that both ends are right."""
        weights_B = batch["weight"]
        begin_B, begins_B = log_loss(logits_BL2[..., 0], batch["starts"])
        end_B, ends_B = log_loss(logits_BL2[..., 1], batch["ends"])
        weight, loss = weights_B.sum(), ((begin_B + end_B) / 2 * weights_B).sum()
        right = (begins_B * ends_B * weights_B).sum()
        return {"answer": loss}, {"answer_loss": (loss, weight), "answer_accuracy": (right, weight)}

    def outputs(self, model, batch):
        """The logits of a batch; and its metrics, where it has answers."""
        logits_BL2 = self.logits(model, batch, train=False)
        measured = self.losses_of(logits_BL2, batch)[1] if "starts" in batch else {}
        rows = {name: batch[name] for name in ("example", "weight")}
        return measured, rows | {"logits": logits_BL2}
