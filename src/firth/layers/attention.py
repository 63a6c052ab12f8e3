"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2).

B batch, L query length, M key length, H heads, K head width, D model width.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.layers.dropout import Dropout

MASKED = -1e4  # added to masked scores, as BERT does: a row with no key at all stays finite


def mask_to_bias(mask_BM):
    """Additive bias float32 [B, 1, 1, M] that hides the keys where the bool mask is False."""
    return jnp.where(mask_BM, 0.0, MASKED)[:, None, None, :]


class MultiHeadAttention(nn.Module):
    """Self-attention with biases on all four projections and dropout on the probabilities."""

    num_heads: int
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32
    kernel_init: nn.initializers.Initializer = nn.initializers.truncated_normal(0.02)

    @nn.compact
    def __call__(self, x_BLD, bias, *, train: bool):
        """Attend from every position of `x_BLD` to every position that `bias` allows.

        Args:
          x_BLD: hidden states.
          bias: float, broadcastable to [B, H, L, M]; added to the scores.
          train: whether dropout is applied.

        Returns:
          The output [B, L, D] and the attention probabilities before dropout [B, H, L, M].
        """
        B, L, D = x_BLD.shape
        H, K = self.num_heads, D // self.num_heads

        def project(name, x):
            return nn.Dense(D, dtype=self.dtype, kernel_init=self.kernel_init, name=name)(x)

        q_BLHK = project("query", x_BLD).reshape(B, L, H, K)
        k_BMHK = project("key", x_BLD).reshape(B, L, H, K)
        v_BMHK = project("value", x_BLD).reshape(B, L, H, K)
        # The scale goes on the smaller operand; scores and softmax are float32 in every dtype.
        scores_BHLM = jnp.einsum(
            "BLHK,BMHK->BHLM", q_BLHK * K**-0.5, k_BMHK, preferred_element_type=jnp.float32
        )
        probs_BHLM = jax.nn.softmax(scores_BHLM + bias, axis=-1)
        kept_BHLM = Dropout(self.dropout)(probs_BHLM.astype(self.dtype), train=train)
        out_BLHK = jnp.einsum("BHLM,BMHK->BLHK", kept_BHLM, v_BMHK)
        return project("output", out_BLHK.reshape(B, L, D)), probs_BHLM
