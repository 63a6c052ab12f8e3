"""Training objectives: one file each, and one line here that names it.

An objective is independent of the encoder's family. It names the `heads` it needs, the
`coefficients` of its loss terms, and has three functions of a batch:

- `corrupt(batch, key)`: the batch that is learned from; on the device, before accumulation;
- `weights(batch)`: {term: what the term's sum is divided by}, independent of the parameters, so
  that micro-batches, devices and hosts add up to exactly the loss of one large batch;
- `losses(model, batch, train=)`: {term: sum} and metrics {name: (sum, weight)}.

`check(data)` refuses the data section of a config that cannot feed it. `bidirectional` says whether
the encoder sees both sides of a token.

One with memory has `carry(model, rows, memory)`, what the first batch finds in `batch["carry"]`,
and its losses return as a third what the next batch finds there: trees of arrays, the rows first.

One of labelled tasks computes its losses from `logits(model, batch, train=)` by
`losses_of(logits, batch)`, so that one pass serves predictions and losses. One that needs a second
model says which by `parts(spec)`, what to start from by `initial(spec)` and what of it is never
trained by `frozen`.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

OBJECTIVES = {  # name -> function of (fields of the config, Given)
    "mlm": "firth.objectives.mlm:from_config",
    "clm": "firth.objectives.clm:from_config",
    "plm": "firth.objectives.plm:from_config",
    "rtd": "firth.objectives.rtd:from_config",
    "distill": "firth.objectives.distill:from_config",
    "finetune": "firth.objectives.finetune:from_config",
}


@dataclasses.dataclass(frozen=True)
class Given:
    """What an objective is built from beside its own fields.

    tokenizer: `firth.tokenizers.base.Tokenizer`. task: `firth.data.tasks.task.Task`, or None.
    body: the model section of the config, vocabulary filled in.
    counts: counts every token of the corpus, int64 [V]; None where there is no corpus.
    load: reads a model from where it is published (`firth.weights.read.read_model`).
    """

    tokenizer: object
    task: object = None
    body: dict = dataclasses.field(default_factory=dict)
    counts: Callable[[], np.ndarray] | None = None
    load: Callable | None = None


def carry_of(objective, model, rows: int, memory: int = 0):
    """What an objective's first batch of so many rows continues from; {} without memory.

    `memory`: how many places it has, where that is not the objective's own number.
    """
    return objective.carry(model, rows, memory) if hasattr(objective, "carry") else {}
