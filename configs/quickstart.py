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
    c.update(steps=240, batch_size=64, log_every=10)
    c.objective.max_predictions = 10
    c.schedule.update(lr=1e-3, warmup=0.1)
    c.eval.update(every=80, batch_size=64, batches=8)
    c.checkpoint.update(every=0, minutes=2.0)
    return c
