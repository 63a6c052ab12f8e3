"""Choose the next token: the likeliest, or a draw from the top k or from the nucleus.

B rows, V vocabulary.
"""

import jax
import jax.numpy as jnp


def likeliest(logits_BV):
    """The first of each row's greatest logits, int32 [B].

    A maximum and a minimum are five times as fast as `jnp.argmax`, which XLA does not vectorise on
    a CPU. `argmax` took a sixth of the time of a decode step there.
    """
    greatest_BV = logits_BV == logits_BV.max(-1, keepdims=True)
    V = logits_BV.shape[-1]
    return jnp.where(greatest_BV, jnp.arange(V, dtype=jnp.int32), V - 1).min(-1)


def choose(logits_BV, keys_B, *, temperature, top_k=None, top_p=None):
    """Draw a token for each row; int32 [B].

    Args:
      logits_BV: float32; -inf where a token is never drawn.
      keys_B: one random key for each row, so that no row depends on its neighbours.
      temperature: float above 0; divides the logits.
      top_k: int, draw among this many of the likeliest tokens (more if the last ones tie); or None.
      top_p: float in (0, 1], draw from the nucleus: the fewest likeliest tokens that together have
        at least this probability (Holtzman et al. 2020, section 3.1); or None.
    """
    scores_BV = (logits_BV - logits_BV.max(-1, keepdims=True)) / temperature
    if top_k is not None:
        scores_BV = _keep(scores_BV, jnp.ones_like(scores_BV), top_k)
    if top_p is not None:
        scores_BV = _keep(scores_BV, jax.nn.softmax(scores_BV, axis=-1), top_p)
    return jax.vmap(jax.random.categorical)(keys_B, scores_BV).astype(jnp.int32)


def _keep(scores_BV, weights_BV, target):
    """The scores with -inf below the largest threshold whose weights sum to the target.

    The search sets the threshold bit by bit, because floats sort as their bits do. This takes 32
    sums instead of a sort of the vocabulary.
    """
    bits_BV = jax.lax.bitcast_convert_type(scores_BV, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    ordered_BV = jnp.where(bits_BV & sign, ~bits_BV, bits_BV | sign)

    def extend(i, threshold_B1):
        higher_B1 = threshold_B1 | (sign >> i.astype(jnp.uint32))
        above_BV = jnp.where(ordered_BV >= higher_B1, weights_BV, 0)
        return jnp.where(above_BV.sum(-1, keepdims=True) >= target, higher_B1, threshold_B1)

    none = jnp.zeros_like(ordered_BV[:, :1])
    return jnp.where(ordered_BV >= jax.lax.fori_loop(0, 32, extend, none), scores_BV, -jnp.inf)
