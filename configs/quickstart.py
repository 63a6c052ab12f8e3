"""The pretraining of the quick start: BERT-mini, MLM and NSP, a few minutes on two CPU cores.

    firth train --config quickstart.py --workdir quickstart/pretrained \\
        --config.data.store=quickstart/store

Expected on 25,000 film reviews with their own vocabulary of 8,000 pieces: the masked-LM loss falls
from 9.0 to under 7; a word that knows its company takes the hours of `bert.py`.
"""

from firth.configs import bert


def get_config(arg=None):
    del arg
    c = bert.get_config("mini,length=64")
    c.steps = 240
    c.batch_size = 64
    c.objective.max_predictions = 10
    c.schedule.lr = 1e-3
    c.schedule.warmup = 0.1
    c.log_every = 10
    c.eval.every = 80
    c.eval.batch_size = 64
    c.eval.batches = 8
    c.checkpoint.every = 0
    c.checkpoint.minutes = 2.0
    return c
