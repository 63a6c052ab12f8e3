"""Rotary positions (Su et al. 2021), and the layers with them of ModernBERT (Warner et al. 2024).

B batch, L length, M key length, P places, D model width, H heads, K head width, F MLP width.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from firth.layers.attention import attend_heads, bias_at, gather
from firth.layers.dropout import Dropout
from firth.layers.transformer import ACTIVATIONS, dense, layer_norm, rematerialised, scanned


def rotary(places, width: int, theta: float):
    """(cosines, sines) float32 [..., K] of the angles place x theta**(-2i/K) (Su et al. 2021).

    `places` are int [L], or [B, L] where those of rows differ.
    """
    rates = theta ** -(jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = places.astype(jnp.float32)[..., None] * jnp.tile(rates, 2)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BLHK, cosines, sines):
    """Turn each pair (k, k + K/2) of a head by its place's angle in `rotary`, in float32."""
    x = x_BLHK.astype(jnp.float32)
    low, high = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([-high, low], axis=-1)
    return (x * cosines[..., None, :] + turned * sines[..., None, :]).astype(x_BLHK.dtype)


class RotaryAttention(nn.Module):
    """Self-attention with one projection for query, key and value, and rotary positions.

    `reach` is as in `attend_heads`. Under a scan it is known at run time alone, in the bias: there
    attention is plain.
    """

    config: object
    reach: tuple[int, int] | None = None

    @nn.compact
    def __call__(self, x_BLD, bias, rotation, *, train: bool, at_BP=None):
        """Return the output [B, L, D] and the probabilities [B, H, L, M] before dropout.

        With `at_BP` queries are those of these places alone; both have P places instead of L.
        """
        c = self.config
        B, L, D = x_BLD.shape
        H, K = c.num_heads, D // c.num_heads
        # The gradient of a split is one concatenation; that of indexing is three padded sums.
        parts = jnp.split(dense(c, 3 * D, "qkv")(x_BLD), 3, axis=-1)
        q_BLHK, k_BMHK, v_BMHK = (part.reshape(B, L, H, K) for part in parts)
        q_BLHK, k_BMHK = rotate(q_BLHK, *rotation), rotate(k_BMHK, *rotation)
        if at_BP is not None:
            q_BLHK, bias = gather(q_BLHK, at_BP), bias_at(bias, at_BP)
        drop = Dropout(c.attention_dropout)
        packed = rotation[0].ndim == 3  # places of each row's own; the kernels know padding alone
        out_BLHK, probs_BHLM = attend_heads(
            q_BLHK * K**-0.5,
            k_BMHK,
            v_BMHK,
            bias,
            drop,
            train=train,
            fuse=c.fused_attention and not packed,
            kernels=c.attention,
            reach=self.reach,
        )
        out_BLD = dense(c, D, "output")(out_BLHK.reshape(B, -1, D))
        return drop(out_BLD, train=train), probs_BHLM


class Block(nn.Module):
    """One pre-norm layer; the `first` has no attention norm, since the embeddings have one."""

    config: object
    first: bool = False
    local: bool = False

    @nn.compact
    def __call__(self, x_BLD, context, train: bool, attentions: bool, at_BP=None):
        """`context` is (bias, rotation). Returns as `layers.transformer.Block`."""
        c, (bias, rotation) = self.config, context
        normed_BLD = x_BLD if self.first else layer_norm(c, "attention_norm")(x_BLD)
        reach = (c.window // 2, c.window // 2) if self.local else None
        attention = RotaryAttention(c, reach, name="attention")
        out_BLD, probs = attention(normed_BLD, bias, rotation, train=train, at_BP=at_BP)
        x_BLD = out_BLD + (x_BLD if at_BP is None else gather(x_BLD, at_BP))
        h_BL2F = dense(c, 2 * c.intermediate_size, "mlp_in")(layer_norm(c, "mlp_norm")(x_BLD))
        value_BLF, gate_BLF = jnp.split(h_BL2F, 2, axis=-1)
        h_BLF = Dropout(c.dropout)(ACTIVATIONS[c.activation](value_BLF) * gate_BLF, train=train)
        x_BLD += dense(c, c.hidden_size, "mlp_out")(h_BLF)
        if at_BP is not None:
            return x_BLD, (None, None)
        return x_BLD, (x_BLD, probs if attentions else None)


class ScannedBlock(Block):
    """A layer that takes at run time whether it is local."""

    def __call__(self, x_BLD, contexts, train: bool, attentions: bool, is_local):
        """`contexts` are those of global and of local layers; `is_local` is a bool scalar."""
        context = jax.tree.map(lambda far, near: jnp.where(is_local, near, far), *contexts)
        return super().__call__(x_BLD, context, train, attentions)


class Stack(nn.Module):
    """`num_layers` blocks, unrolled, or scanned but for the first, which has no norm.

    `transformer.run_layers` does not fit: layers differ in their norms and contexts.
    """

    config: object

    @nn.compact
    def __call__(self, x_BLD, contexts, *, train: bool, attentions: bool, at_BP=None):
        """`contexts` are those of global and of local layers. Returns as `transformer.Stack`."""
        c, collected = self.config, []
        unrolled = 1 if c.scan else c.num_layers
        is_local_N = np.arange(c.num_layers) % c.global_every > 0
        for i, local in enumerate(is_local_N[:unrolled].tolist()):
            layer = rematerialised(c, Block)(c, i == 0, local, name=f"layer_{i}")
            own_BP = at_BP if i == c.num_layers - 1 else None
            x_BLD, out = layer(x_BLD, contexts[local], train, attentions, own_BP)
            collected.append(jax.tree.map(lambda leaf: leaf[None], out))
        if unrolled < c.num_layers:
            block = rematerialised(c, ScannedBlock)
            layers = scanned(block, c.num_layers - 1, 0)(c, name="layers")
            x_BLD, out = layers(x_BLD, contexts, train, attentions, is_local_N[1:])
            collected.append(out)
        if at_BP is not None:
            return x_BLD, None, None
        hidden, probs = zip(*collected, strict=True)
        return x_BLD, jnp.concatenate(hidden), jnp.concatenate(probs) if attentions else None
