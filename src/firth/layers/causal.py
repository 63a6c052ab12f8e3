"""Causal layers: GPT's (post-norm) and GPT-2's (pre-norm).

A cache of fixed capacity holds the keys and values of earlier tokens, for prefill and decode steps;
every call fills its next slots. B batch, L length, C capacity, M keys (L without a cache, else C),
D model width, N layers, H heads, K head width, R = B H heads of all rows, F MLP width.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.layers.attention import attend_heads
from firth.layers.dropout import Dropout
from firth.layers.transformer import (
    ACTIVATIONS,
    dense,
    initializer,
    layer_norm,
    run_layers,
)


def causal_mask(mask_BL):
    """Bool [B, L, L], True where the first position may see the second: not later, not padding."""
    return jnp.tri(mask_BL.shape[1], dtype=bool) & mask_BL[:, None, :]


def empty_cache(config, rows: int, capacity: int):
    """An empty cache of `Stack`, for `rows` texts of at most `capacity` tokens.

    (keys, values) [R, C, K] in the compute dtype for each layer: a tuple of N pairs, so that XLA
    writes each array in place; under `scan` one pair with a leading axis N.
    """
    c = config
    shape = (rows * c.num_heads, capacity, c.hidden_size // c.num_heads)
    if c.scan:
        return tuple(jnp.zeros((c.num_layers, *shape), c.dtype) for _ in "kv")
    return tuple(tuple(jnp.zeros(shape, c.dtype) for _ in "kv") for _ in range(c.num_layers))


def attend_cache(q_BLHK, past, bias):
    """Attention to all slots of a layer's cache, (keys, values) [R, C, K], without dropout.

    Rows and heads stay one axis in both products. XLA then reads the cache where it lies. Were the
    axes apart, it would copy the keys and the values of a single row for every token.

    Returns the output [B, L, H, K] and the probabilities float32 [B, H, L, C].
    """
    (B, L, H, K), (k_RCK, v_RCK) = q_BLHK.shape, past
    q_RLK = q_BLHK.swapaxes(1, 2).reshape(B * H, L, K)
    scores_RLC = jnp.einsum("RLK,RCK->RLC", q_RLK, k_RCK, preferred_element_type=jnp.float32)
    probs_BHLC = jax.nn.softmax(scores_RLC.reshape(B, H, L, -1) + bias, axis=-1)
    probs_RLC = probs_BHLC.reshape(B * H, L, -1).astype(v_RCK.dtype)
    out_RLK = jnp.einsum("RLC,RCK->RLK", probs_RLC, v_RCK)
    return out_RLK.reshape(B, H, L, K).swapaxes(1, 2), probs_BHLC


class CausalAttention(nn.Module):
    """Self-attention with one projection for query, key and value, with or without a cache."""

    config: object

    @nn.compact
    def __call__(self, x_BLD, bias, past, slot, *, train: bool):
        """Attend to every key that `bias`, broadcastable to [B, H, L, M], allows.

        `past` is a layer's cache, (keys, values) [R, C, K]. With it, the keys and values of
        `x_BLD` go to the slots from `slot` on, and attention is over all C, without dropout.

        Returns the output [B, L, D], the probabilities before dropout [B, H, L, M] float32, and
        the new keys and values (None without `past`).
        """
        c = self.config
        B, L, D = x_BLD.shape
        H, K = c.num_heads, D // c.num_heads
        parts = jnp.split(dense(c, 3 * D, "qkv")(x_BLD), 3, axis=-1)
        q_BLHK, k_BMHK, v_BMHK = (part.reshape(B, L, H, K) for part in parts)
        q_BLHK *= K**-0.5
        if past is not None:
            new = (array.swapaxes(1, 2).reshape(B * H, L, K) for array in (k_BMHK, v_BMHK))
            past = tuple(
                jax.lax.dynamic_update_slice_in_dim(old_RCK, new_RLK, slot, axis=1)
                for old_RCK, new_RLK in zip(past, new, strict=True)
            )
            out_BLHK, probs_BHLM = attend_cache(q_BLHK, past, bias)
        else:
            out_BLHK, probs_BHLM = attend_heads(
                q_BLHK,
                k_BMHK,
                v_BMHK,
                bias,
                Dropout(c.attention_dropout),
                train=train,
                fuse=c.fused_attention,
                kernels=c.attention,
                reach=(L, 0),
            )
        out_BLD = dense(c, D, "output", init=initializer(c, c.residual_scale))(
            out_BLHK.reshape(B, L, D)
        )
        return out_BLD, probs_BHLM, past


class Block(nn.Module):
    """One layer; `config.pre_norm` puts the norms before attention and MLP, not after the sums."""

    config: object

    @nn.compact
    def __call__(self, x_BLD, context, train: bool, attentions: bool, past=None):
        """`context` is (bias, slot). Return the hidden states and what the stack collects."""
        c, (bias, slot) = self.config, context
        attention_norm, mlp_norm = layer_norm(c, "attention_norm"), layer_norm(c, "mlp_norm")
        drop = Dropout(c.dropout)
        seen_BLD = attention_norm(x_BLD) if c.pre_norm else x_BLD
        out_BLD, probs, past = CausalAttention(c, name="attention")(
            seen_BLD, bias, past, slot, train=train
        )
        x_BLD += drop(out_BLD, train=train)
        x_BLD = x_BLD if c.pre_norm else attention_norm(x_BLD)
        seen_BLD = mlp_norm(x_BLD) if c.pre_norm else x_BLD
        h_BLF = ACTIVATIONS[c.activation](dense(c, c.intermediate_size, "mlp_in")(seen_BLD))
        narrowed = initializer(c, c.residual_scale)
        out_BLD = dense(c, c.hidden_size, "mlp_out", init=narrowed)(h_BLF)
        x_BLD += drop(out_BLD, train=train)
        x_BLD = x_BLD if c.pre_norm else mlp_norm(x_BLD)
        return x_BLD, (x_BLD, probs if attentions else None, past)


class Stack(nn.Module):
    """`num_layers` blocks; see `transformer.run_layers`."""

    config: object

    @nn.compact
    def __call__(self, x_BLD, bias, *, train: bool, attentions: bool, cache=None, slot=0):
        """Return as `transformer.Stack`, and the cache with the new slots filled."""
        return run_layers(self.config, Block, x_BLD, (bias, slot), train, attentions, cache)
