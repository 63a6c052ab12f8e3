"""What the small sizes train with: `tiny` and `mini` on two CPU cores, `small` on one GPU.

The papers' settings teach small models nothing in the time that a laptop has. experiments/
small_recipes searches for those here, and says what is measured and what is still open. They are
meant for a vocabulary of about 8,000 pieces.

A run of tiny ends within ten minutes (ALBERT's within twenty, since it learns more slowly), one of
mini within two hours, one of small within an hour on a GPU. None of them reads a corpus of 50
million tokens often, so there is no dropout. Most have small rows: on a CPU many small steps learn
more than a few large ones.
"""

import math
from typing import NamedTuple


class Settings(NamedTuple):
    """What one size of a family trains with; None leaves what the recipe has."""

    steps: int
    batch_size: int  # rows
    length: int  # tokens of a row
    lr: float
    warmup: float  # share of the steps
    weight_decay: float
    rate: float | None = None  # share of the tokens that are masked


TINY, MINI, SMALL = (16, 64), (32, 64), (64, 128)  # rows, tokens of a row
# With a vector for each position and few targets a row, BERT finds what stands beside a blank
# sooner in short rows: tiny after 3,000 steps has a held-out loss of 5.57, and of 6.13 in TINY;
# mini after 1,900 has 5.29, and 6.28 in MINI.
TINY_SHORT, MINI_SHORT = (32, 32), (64, 32)

# From experiments/small_recipes, for a vocabulary of 8,192 pieces
TABLE = {
    "bert": {
        "tiny": Settings(6_500, *TINY_SHORT, lr=2e-3, warmup=0.1, weight_decay=0.01, rate=0.2),
        "mini": Settings(9_500, *MINI_SHORT, lr=1e-3, warmup=0.1, weight_decay=0.01, rate=0.2),
        "small": Settings(12_000, *SMALL, lr=5e-4, warmup=0.1, weight_decay=0.01, rate=0.2),
    },
    "roberta": {
        "tiny": Settings(6_000, *TINY_SHORT, lr=2e-3, warmup=0.1, weight_decay=0.01, rate=0.2),
        "mini": Settings(9_000, *MINI_SHORT, lr=1e-3, warmup=0.1, weight_decay=0.01, rate=0.2),
        "small": Settings(12_000, *SMALL, lr=5e-4, warmup=0.1, weight_decay=0.01, rate=0.2),
    },
    "albert": {
        "tiny": Settings(15_000, *TINY_SHORT, lr=2e-3, warmup=0.1, weight_decay=0.01, rate=0.2),
        "mini": Settings(9_000, *MINI_SHORT, lr=1e-3, warmup=0.1, weight_decay=0.01, rate=0.2),
        "small": Settings(12_000, *SMALL, lr=5e-4, warmup=0.1, weight_decay=0.01, rate=0.2),
    },
    "distilbert": {
        "tiny": Settings(1_800, *TINY_SHORT, lr=2e-3, warmup=0.05, weight_decay=0.0, rate=0.2),
        "mini": Settings(6_000, *MINI_SHORT, lr=1e-3, warmup=0.05, weight_decay=0.0, rate=0.2),
        "small": Settings(12_000, *SMALL, lr=5e-4, warmup=0.05, weight_decay=0.0, rate=0.2),
    },
    "electra": {
        "tiny": Settings(5_000, *TINY_SHORT, lr=2e-3, warmup=0.1, weight_decay=0.01),
        "mini": Settings(8_500, *MINI_SHORT, lr=1e-3, warmup=0.1, weight_decay=0.01),
        "small": Settings(12_000, *SMALL, lr=5e-4, warmup=0.1, weight_decay=0.01),
    },
    "modernbert": {
        "tiny": Settings(5_000, *TINY, lr=4e-3, warmup=0.05, weight_decay=0.1, rate=0.2),
        "mini": Settings(9_500, *MINI, lr=2e-3, warmup=0.05, weight_decay=0.1, rate=0.2),
        "small": Settings(12_000, *SMALL, lr=1e-3, warmup=0.05, weight_decay=0.1, rate=0.2),
    },
    "xlnet": {
        "tiny": Settings(6_500, *TINY, lr=2e-3, warmup=0.1, weight_decay=0.01),
        "mini": Settings(9_000, *MINI, lr=1e-3, warmup=0.1, weight_decay=0.01),
        "small": Settings(12_000, *SMALL, lr=5e-4, warmup=0.1, weight_decay=0.01),
    },
    "gpt": {
        "tiny": Settings(2_800, *TINY, lr=2e-3, warmup=0.05, weight_decay=0.01),
        "mini": Settings(6_500, *MINI, lr=1e-3, warmup=0.05, weight_decay=0.01),
        "small": Settings(12_000, *SMALL, lr=6e-4, warmup=0.05, weight_decay=0.01),
    },
    "gpt2": {
        "tiny": Settings(2_800, *TINY, lr=4e-3, warmup=0.05, weight_decay=0.1),
        "mini": Settings(6_000, *MINI, lr=2e-3, warmup=0.05, weight_decay=0.1),
        "small": Settings(12_000, *SMALL, lr=1e-3, warmup=0.05, weight_decay=0.1),
    },
    "transformer_xl": {
        "tiny": Settings(2_400, *TINY, lr=2e-3, warmup=0.05, weight_decay=0.0),
        "mini": Settings(6_000, *MINI, lr=1e-3, warmup=0.05, weight_decay=0.0),
        "small": Settings(12_000, *SMALL, lr=5e-4, warmup=0.05, weight_decay=0.0),
    },
}

# family -> size -> (minutes, GiB of a run's arrays) with 8,192 pieces: on two cores from the
# measured time of a step, of small on a V100 as planned. test_laptop.py counts them again.
COSTS = {
    "bert": {"tiny": (8, 0.1), "mini": (94, 0.4), "small": (29, 3.1)},
    "roberta": {"tiny": (8, 0.1), "mini": (93, 0.3), "small": (29, 2.1)},
    "albert": {"tiny": (19, 0.1), "mini": (96, 0.4), "small": (28, 2.8)},
    "distilbert": {"tiny": (8, 0.1), "mini": (100, 0.4), "small": (37, 1.9)},
    "electra": {"tiny": (10, 0.1), "mini": (96, 0.3), "small": (24, 3.3)},
    "modernbert": {"tiny": (8, 0.1), "mini": (95, 0.3), "small": (31, 2.5)},
    "xlnet": {"tiny": (8, 0.1), "mini": (99, 0.5), "small": (39, 4.0)},
    "gpt": {"tiny": (8, 0.1), "mini": (100, 0.5), "small": (30, 3.5)},
    "gpt2": {"tiny": (8, 0.1), "mini": (100, 0.5), "small": (30, 3.5)},
    "transformer_xl": {"tiny": (8, 0.1), "mini": (100, 0.4), "small": (43, 2.6)},
}

# size -> what a run tells and saves: steps between two losses, minutes between two checkpoints
HABITS = {"tiny": (20, 2.0), "mini": (5, 5.0), "small": (20, 5.0)}
MEASURED = 10  # times that a run measures its held-out text
# LAMB is for thousands of rows: ALBERT-tiny reaches 6.23 in 5,200 steps, 6.18 in 3,000 of AdamW's.
OPTIMIZER = "adamw"
# Of Adam, for runs of a few thousand steps: BERT-tiny reaches 6.13 in 3,000, and 6.28 with its own.
MOMENTS = dict(b2=0.98, bias_correction=True)
# Initial values are as wide for the width as BERT-base's. After 400 steps of the quick start the
# held-out loss is 5.82, and with .02 it is above 6.4 after 800.
SPREAD = 0.02 * math.sqrt(768)
DROPOUT = ("dropout", "attention_dropout", "embedding_dropout")


def find(family: str, size: str | None) -> Settings | None:
    """The settings of a size; None of one that has the paper's."""
    return TABLE[family].get(size)


def length(family: str, size: str | None, usual: int) -> int:
    """Tokens of a row: those of the size, or `usual` of one that has the paper's settings."""
    return found.length if (found := find(family, size)) else usual


def settle(config, family: str, size: str | None):
    """The config with the settings of this size; one that has the paper's stays as it is.

    The length is the recipe's to set, since other fields follow from it.
    """
    if not (found := find(family, size)):
        return config
    log_every, minutes = HABITS[size]
    config.update(steps=found.steps, batch_size=found.batch_size, accumulate=1, log_every=log_every)
    config.schedule.update(lr=found.lr, warmup=found.warmup)
    config.optimizer.update(name=OPTIMIZER, weight_decay=found.weight_decay, **MOMENTS)
    if found.rate and config.objective.name != "rtd":  # ELECTRA's rate is another matter
        predictions = int(found.rate * config.data.length) + 1
        config.objective.update(rate=found.rate, max_predictions=predictions)
    config.model.update({name: 0.0 for name in DROPOUT if name in config.model})
    config.model.init_stddev = round(SPREAD / math.sqrt(config.model.hidden_size), 3)
    config.eval.update(every=found.steps // MEASURED, batch_size=64, batches=16)
    config.checkpoint.update(every=0, minutes=minutes)
    return config
