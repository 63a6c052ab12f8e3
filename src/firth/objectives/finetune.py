"""Classification and regression on the pooled output (Devlin et al. 2019, section 4.1)."""

import dataclasses

import jax.numpy as jnp

from firth.objectives.losses import cross_entropy


@dataclasses.dataclass(frozen=True)
class Finetune:
    """Softmax cross-entropy over the labels, or the squared error of a single output."""

    regression: bool = False
    heads = ("classifier",)
    coefficients = {"task": 1.0}  # noqa: RUF012 - a dataclass constant, never written

    def corrupt(self, batch, key):
        """Labelled examples are used as they are."""
        del key
        return batch

    def weights(self, batch):
        """Number of real rows."""
        return {"task": batch["weight"].sum()}

    def logits(self, model, batch, *, train: bool):
        """Logits float32 [B, C]."""
        out = model.encoder(batch["tokens"], batch["segments"], batch["mask"], train=train)
        return model.classify(out, batch["mask"], train=train)

    def losses(self, model, batch, *, train: bool):
        """Sums {term: loss sum} and metrics {name: (sum, weight)}."""
        return self.losses_of(self.logits(model, batch, train=train), batch)

    def losses_of(self, logits_BC, batch):
        """The same of logits that are there already."""
        weights_B = batch["weight"]
        weight = weights_B.sum()
        if self.regression:
            error_B = logits_BC[:, 0] - batch["labels"].astype(jnp.float32)
            loss = (error_B**2 * weights_B).sum()
            return {"task": loss}, {"task_loss": (loss, weight)}
        loss, right = cross_entropy(logits_BC, batch["labels"], weights_B)
        metrics = {"task_loss": (loss, weight), "task_accuracy": (right, weight)}
        return {"task": loss}, metrics


def from_config(fields: dict, given) -> Finetune:
    """Build from a config's `objective` section and the task."""
    return Finetune(regression=given.task.kind == "regression", **fields)
