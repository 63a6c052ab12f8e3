"""The training objectives: one file each.

An objective is independent of the encoder's family. It names the `heads` it needs, the
`coefficients` of its loss terms, and has three functions of a batch:

- `corrupt(batch, key)`: the batch that is learned from; on the device, before accumulation;
- `weights(batch)`: {term: what the term's sum is divided by}, independent of the parameters, so
  that micro-batches, devices and hosts add up to exactly the loss of one large batch;
- `losses(model, batch, train=)`: {term: sum} and metrics {name: (sum, weight)}.

One of labelled tasks computes its losses from `logits(model, batch, train=)` by
`losses_of(logits, batch)`, so that one pass serves predictions and losses.
"""

OBJECTIVES = {  # name -> function of (fields of the config, tokenizer, task)
    "mlm": "firth.objectives.mlm:from_config",
    "finetune": "firth.objectives.finetune:from_config",
}
