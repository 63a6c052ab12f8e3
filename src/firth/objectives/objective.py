"""The interface of training objectives, for the step, the evaluation and plans."""

import abc
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from firth.errors import FirthError
from firth.layers.products import Product


@dataclasses.dataclass(frozen=True)
class Sources:
    """The sources of an objective, beside its own fields.

    tokenizer: `firth.tokenizers.base.Tokenizer`. task: `firth.data.tasks.task.Task`, or None.
    body: the model section of the config, with the vocabulary size set.
    counts: counts every token of the corpus, int64 [V]; None without a corpus.
    load: reads a published or trained model (`firth.weights.read.read_model`).
    labels: those of the task's train split, as indices; None where there are none.
    """

    tokenizer: object
    task: object = None
    body: dict = dataclasses.field(default_factory=dict)
    counts: Callable[[], np.ndarray] | None = None
    load: Callable | None = None
    labels: np.ndarray | None = None


class Objective(abc.ABC):
    """A training objective, independent of the encoder's family.

    A new one is a subclass in a file of its own, named in `firth.objectives.OBJECTIVES` or by a
    recipe as "module:Class". It must define `weights` and `losses`. The defaults of the rest suit
    an objective without memory and without a second model.

    heads: names of the heads whose logits the losses need.
    coefficients: {term of the loss: its weight in the total}.
    bidirectional: whether the encoder must see both sides of a token; None: it may or may not.
    by_halves: whether the two halves of a batch are treated differently, so that a row's place in
      the batch matters.
    frozen: regular expressions for the paths of parameters that are never trained.
    """

    heads: tuple[str, ...] = ()
    coefficients: dict[str, float] = {}  # noqa: RUF012 (a frozen dataclass overrides it)
    bidirectional: bool | None = None
    by_halves: bool = False
    frozen: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, fields: dict, sources: Sources) -> "Objective":
        """Build it from the other fields of a config's `objective` section."""
        del sources
        return cls(**fields)

    def check(self, data) -> None:
        """Raise FirthError for a data section whose rows cannot feed this objective."""
        del data

    def corrupt(self, batch: dict, key) -> dict:
        """The batch to learn from: inputs changed, targets added.

        It runs on the device, once for the whole batch, before its division into micro-batches.
        The key is that of the step.
        """
        del key
        return batch

    @abc.abstractmethod
    def weights(self, batch: dict) -> dict:
        """{term: divisor of the sum of its losses}, scalars, of a corrupted batch.

        They do not depend on parameters, so micro-batches, devices and hosts add up to exactly the
        loss of one large batch.
        """

    @abc.abstractmethod
    def losses(self, model, batch: dict, *, train: bool) -> tuple:
        """(sums, metrics) of a corrupted batch, or (sums, metrics, carry) with memory.

        sums: {term: sum of its losses}. metrics: {name: (sum, weight)}. carry: `batch["carry"]` of
        the next batch, a tree of arrays whose first axis is the rows.
        """

    def products(self, model, *, rows: int, length: int, micro: int) -> Iterator[Product]:
        """The matrix products of an update on so many rows in `micro` micro-batches.

        `firth plan` counts FLOPs from them. Raises FirthError where there is no formula.
        """
        raise FirthError(f"no formula counts the FLOPs of objective {type(self).__name__}")

    def carry(self, model, rows: int, memory: int = 0) -> dict:
        """The memory for the first batch of so many rows; {} without memory.

        `memory`: its number of positions; 0: the objective's own.
        """
        del model, rows, memory
        return {}

    def parts(self, spec: dict) -> dict:
        """The second model for a body of this spec, as arguments of `models.model.create`."""
        del spec
        return {}

    def initial(self, spec: dict) -> dict:
        """Initial parameters, nested and with layers unrolled; {} for none."""
        del spec
        return {}


class TaskObjective(Objective):
    """An objective of labelled examples; the task's metrics measure its predictions.

    `losses_of` computes the losses from `logits`, so one pass of an evaluation gives predictions
    and losses.
    """

    @abc.abstractmethod
    def logits(self, model, batch: dict, *, train: bool):
        """Logits float32 [B, C], or scores [B, 1]."""

    @abc.abstractmethod
    def losses_of(self, logits, batch: dict) -> tuple[dict, dict]:
        """(sums, metrics) of these logits, as `losses` has them."""

    def outputs(self, model, batch: dict) -> tuple[dict, dict]:
        """(metrics, {name: array}) of an evaluation; no metrics of rows without labels.

        The arrays are what the host measures: example, weight, labels, and the logits.
        """
        logits = self.logits(model, batch, train=False)
        measured = self.losses_of(logits, batch)[1] if "labels" in batch else {}
        rows = {name: batch[name] for name in ("example", "weight", "labels") if name in batch}
        return measured, rows | {"logits": logits}
