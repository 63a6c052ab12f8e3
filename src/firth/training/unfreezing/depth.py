"""How deep in the body a parameter is, and learning rates by it."""

import re

import jax
import numpy as np
import optax

from firth.errors import FirthError
from firth.training.partition import leaf_path, map_with_path


def is_stacked(path: str) -> bool:
    """Whether the leading axis of this parameter runs over layers (see `layers.transformer`)."""
    return "/layers/" in path


def scale_by_depth(decay: float, top: int = 1, exclude: tuple[str, ...] = ()):
    """Layer-wise learning rates: `decay` ** `top` in the top layer, a factor more in each below it.

    The embeddings have one factor more than the bottom layer. In the fine-tuning of ULMFiT (Howard
    and Ruder 2018, section 3.2: 1/2.6) and ELECTRA (Clark et al. 2020, appendix B) the top layer
    has one factor; in the released ELECTRA code two (google-research/electra issues 51 and 64); in
    XLNet, where embeddings are excluded, none (Yang et al. 2019, appendix on fine-tuning).
    Parameters whose paths an expression of `exclude` matches keep their rate. Raises FirthError for
    a body without layers of its own.
    """
    excluded = [re.compile(pattern) for pattern in exclude]

    def factor(path, depth):
        if not np.any(depth) or any(pattern.search(path) for pattern in excluded):
            return 1.0
        return decay ** (depth - 1.0 + top)

    def update(updates, state, params=None):
        del params
        scaled = map_with_path(lambda p, u, d: u * factor(p, d), updates, depths(updates))
        return scaled, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def depths(tree):
    """How many levels below the heads each parameter is: a tree of int or, where stacked, arrays.

    Heads, the pooler and a final norm are at 0, the top layer at 1, the embeddings one level below
    the bottom layer. An array is [layers, 1, ...], to be broadcast over its parameter. Raises
    FirthError for a body without layers of its own.
    """
    numbers, stacked = set(), 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        path = _own(leaf_path(path))
        if path.startswith("encoder/") and (number := re.search(r"/layer_(\d+)/", path)):
            numbers.add(int(number[1]))
        if path.startswith("encoder/") and is_stacked(path):
            stacked = leaf.shape[0]
    layers = len(numbers) + stacked
    if not layers:
        raise FirthError(
            "optimizer.layer_decay and unfreeze_epochs go by layers, but this body has no layers of"
            " its own (ALBERT)"
        )

    def depth(path, leaf):
        path = _own(path)
        if not path.startswith("encoder/") or re.search(r"/(pooler|final_norm)/", path):
            return 0
        if is_stacked(path):
            return np.arange(stacked, 0, -1).reshape(-1, *[1] * (leaf.ndim - 1))
        number = re.search(r"/layer_(\d+)/", path)
        return layers - int(number[1]) if number else layers + 1

    return map_with_path(depth, tree)


def _own(path: str) -> str:
    """The path of a parameter; that of a factor of LoRA is the path of its kernel."""
    return path.removeprefix("lora/")
