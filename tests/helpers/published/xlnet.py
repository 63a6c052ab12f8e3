"""Small XLNets, with random weights and odd dimensions."""

import numpy as np

from helpers.published import save_random

SHAPES = {
    "gelu": dict(vocab_size=83, d_model=28, n_layer=3, n_head=4, d_inner=44, ff_activation="gelu"),
    "clamped": dict(
        vocab_size=61,
        d_model=30,
        n_layer=2,
        n_head=3,
        d_inner=52,
        ff_activation="relu",
        clamp_len=4,
        layer_norm_eps=1e-5,
    ),
}


def make_xlnet(directory, shape="gelu", name="XLNetLMHeadModel", **settings):
    """Save a transformers model with all parameters random; returns the torch model, in eval."""
    import torch
    import transformers

    torch.manual_seed(1)
    model_class = getattr(transformers, name)
    config = transformers.XLNetConfig(pad_token_id=5, **(SHAPES[shape] | settings))
    return save_random(model_class(config).eval(), directory, 0.2)


def rows(shape="gelu", B=4, L=11, seed=0):
    """(tokens, segments) int32 [B, L]."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, SHAPES[shape]["vocab_size"], (B, L)).astype(np.int32)
    return tokens, rng.integers(0, 3, (B, L)).astype(np.int32)


def orders(B=4, L=11, P=4, seed=0):
    """(ranks int32 [B, L], positions int32 [B, P]): a third is first, the last P are predicted."""
    rng = np.random.default_rng(seed)
    ranks = np.zeros((B, L), np.int32)
    positions = np.zeros((B, P), np.int32)
    for row in range(B):
        order = rng.permutation(L)
        ranks[row, order] = np.maximum(np.arange(L) - L // 3, 0)
        positions[row] = order[-P:]
    return ranks, positions
