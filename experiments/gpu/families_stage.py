"""Training steps of the other families beside PyTorch's, as steps_stage measures BERT's.

Each side trains with its recipe's dropout of attention, so cuDNN's attention stands beside the
plain way for ALBERT alone, which has none. DistilBERT runs with its teacher on both sides. XLNet's
attention in transformers is eager.
"""

import steps_stage

FAMILIES = (  # recipe, rows, tokens, sides
    ("roberta.py:base", 128, 512, ("firth plain", "torch sdpa", "torch compile")),
    ("albert.py:base", 128, 512, ("firth plain", "firth cudnn", "torch sdpa", "torch compile")),
    ("distilbert.py:base", 256, 128, ("firth plain", "torch sdpa", "torch compile")),
    ("electra.py:small", 128, 128, ("firth plain", "torch sdpa", "torch compile")),
    ("electra.py:base", 256, 128, ("firth plain", "torch sdpa", "torch compile")),
    ("modernbert.py:base", 64, 512, ("firth plain", "torch sdpa", "torch compile")),
    ("xlnet.py:base", 32, 512, ("firth plain", "torch eager", "torch compile")),
    ("gpt2.py:base", 64, 512, ("firth plain", "torch sdpa", "torch compile")),
)
TINY = (
    ("electra.py:tiny", 2, 16, ("firth plain",)),
    ("gpt2.py:tiny", 2, 16, ("torch sdpa",)),
    ("distilbert.py:tiny", 2, 16, ("firth plain", "torch sdpa")),
    ("xlnet.py:tiny", 2, 16, ("torch eager",)),
)
measure = steps_stage.measure


def cells(tiny: bool, rounds: int) -> list[dict]:
    """(round, family, side)."""
    return [
        steps_stage.step_cell(recipe, rows, length, side, rate_of(recipe), number)
        for number in range(rounds)
        for recipe, rows, length, sides in (TINY if tiny else FAMILIES)
        for side in sides
    ]


def rate_of(recipe: str) -> float:
    """The rate of dropout on the probabilities of attention that a recipe trains with."""
    name = recipe.partition(":")[0]
    return 0.0 if name in ("albert.py", "modernbert.py") else 0.1
