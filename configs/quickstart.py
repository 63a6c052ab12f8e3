"""The pretraining of the quick start: a tiny modern encoder, a few minutes on two CPU cores.

    firth train --config quickstart.py --workdir quickstart/pretrained \\
        --config.data.store=quickstart/store

Three layers of ModernBERT's body, masked LM, on 25,000 film reviews with their own vocabulary of
8,000 pieces. Many small steps at a high rate: so it learns words and their company within minutes,
which BERT's rate and depth would take hours for. Its initial values are as wide for the width as
BERT-base's: from .02 the same steps end at a held-out masked perplexity of 201 or 224, from .049 at
106 (docs/results.md).
"""

from firth.configs import modernbert


def get_config(arg=None):
    del arg
    c = modernbert.get_config("tiny,length=64")
    c.update(steps=3200, batch_size=16, log_every=20)
    c.objective.update(rate=0.2, max_predictions=13)
    c.optimizer.weight_decay = 0.1
    c.schedule.update(lr=4e-3, warmup=0.05)
    c.eval.update(every=800, batch_size=64, batches=16)
    c.checkpoint.update(every=0, minutes=2.0)
    return c
