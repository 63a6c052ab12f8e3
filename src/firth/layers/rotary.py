"""Rotary positions, and attention with them (Su et al. 2021).

B batch, L length, M key length, D model width, H heads, K head width.
"""

import flax.linen as nn
import jax.numpy as jnp

from firth.layers.attention import attend_heads
from firth.layers.dropout import Dropout
from firth.layers.transformer import dense


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
    def __call__(self, x_BLD, bias, rotation, *, train: bool):
        """Return the output [B, L, D] and the probabilities [B, H, L, L] before dropout."""
        c = self.config
        B, L, D = x_BLD.shape
        H, K = c.num_heads, D // c.num_heads
        # The gradient of a split is one concatenation; that of indexing is three padded sums.
        parts = jnp.split(dense(c, 3 * D, "qkv")(x_BLD), 3, axis=-1)
        q_BLHK, k_BMHK, v_BMHK = (part.reshape(B, L, H, K) for part in parts)
        q_BLHK, k_BMHK = rotate(q_BLHK, *rotation), rotate(k_BMHK, *rotation)
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
        out_BLD = dense(c, D, "output")(out_BLHK.reshape(B, L, D))
        return drop(out_BLD, train=train), probs_BHLM
