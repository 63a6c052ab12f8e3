"""What does a step save that computes its last layer only where it is read?

    python experiments/step_time/last_layer.py [--recipes bert.py:mini,minilm] [--length 32]

In turn, in one process: the step of a recipe as it is, and the same with the last layer computed at
every token. "minilm" is the fine-tuning of a classifier over MiniLM's body (6 x 384). Prints
medians and the median ratio.
"""

import argparse
import statistics
from unittest import mock

from bench import described, rows_of, step_of, timed

RECIPES = "bert.py:mini,albert.py:mini,modernbert.py:mini,electra.py:mini,minilm"
MINILM = dict(
    family="bert",
    num_layers=6,
    hidden_size=384,
    num_heads=12,
    intermediate_size=1536,
)


def step(recipe: str, batch: int, length: int, vocab: int, dtype: str = "float32"):
    """One step of a recipe on fixed tokens, compiled by its first call; dtype is of products."""
    from firth.objectives.finetune import Finetune

    if recipe != "minilm":
        config, spec, objective = described(recipe, length, vocab)
        config.accumulate, config.product_dtype = 1, dtype
        return step_of(config, spec, objective, rows_of(batch, length, vocab))
    import numpy as np

    config, *_ = described("bert.py:mini", length, vocab)
    names = ("tokens", "segments", "mask")
    rows = {name: value for name, value in rows_of(batch, length, vocab).items() if name in names}
    rows |= dict(weight=np.ones(batch, np.float32), labels=np.arange(batch, dtype=np.int32) % 2)
    config.accumulate, config.product_dtype = 1, dtype
    return step_of(config, MINILM | dict(vocab_size=vocab), Finetune(), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recipes", default=RECIPES)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    for recipe in args.recipes.split(","):
        shape = recipe, args.batch, args.length, args.vocab
        sides = {"where it is read": step(*shape)}
        sides["where it is read"]()  # compiled before the other way is chosen
        with mock.patch("firth.models.model.reads_places", lambda body: False):
            sides["everywhere"] = step(*shape)
            sides["everywhere"]()
        times = timed(sides, args.rounds)
        alone, whole = times.values()
        ratios = [one / other for one, other in zip(whole, alone, strict=True)]
        print(
            f"{recipe:<20} {statistics.median(alone):.3f} s, everywhere "
            f"{statistics.median(whole):.3f} s: {statistics.median(ratios):.2f} times as fast"
        )


if __name__ == "__main__":
    main()
