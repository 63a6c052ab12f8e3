"""Attention as cuDNN's fused kernels, on NVIDIA GPUs.

`jax.nn.dot_product_attention` calls them, and they give the gradients too. No array of the size of
the scores reaches memory. They take 16-bit numbers alone, and have no dropout whose mask changes
from step to step, so `unfit` refuses it.

B batch, L query length, M key length, H heads, K head width.
"""

import jax
import jax.numpy as jnp
from jax.sharding import get_abstract_mesh

from firth.errors import FirthError

DTYPES = "bfloat16", "float16"
WIDEST, MULTIPLE = 128, 8  # of heads, on every GPU that cuDNN's kernels know


def attend(q_BLHK, k_BMHK, v_BMHK, bias, *, causal: bool = False):
    """Softmax of `q k + bias` over the keys, and the sum of the values so weighted.

    Returns [B, L, H, K]. The queries come scaled. The bias, float32, hides keys; it is a constant.
    With `causal` each query sees no later key, whatever the bias says: the kernels leave such keys
    out, and of the bias the last query's row is read, which hides padding alone.

    The shape of the bias says how it reaches the kernels:

    - [B or 1, 1, 1, M], padding: as the number of keys of each row, which cost nothing. So what a
      row hides must be at its end, and a row with holes becomes nan. A row without any key sees its
      first.
    - [B or 1, 1, L, M], such as blocks on the diagonal or local windows: as an array that the
      kernels read. (Their own windows are causal, and end at the query.)
    """
    (B, L, _, _), M = q_BLHK.shape, k_BMHK.shape[1]
    bias = jnp.asarray(bias, jnp.float32)
    if causal:
        bias = bias[:, :, -1:]
    if bias.shape[2] > 1:
        bias_B1LM = jnp.broadcast_to(bias, (B, 1, L, M)).astype(q_BLHK.dtype)
        return _call(q_BLHK, k_BMHK, v_BMHK, bias=jax.lax.stop_gradient(bias_B1LM))
    seen_BM = jnp.broadcast_to(bias[:, 0, 0] == 0, (B, M))
    keys_B = seen_BM.sum(-1, dtype=jnp.int32)
    whole_B = (seen_BM == (jnp.arange(M) < keys_B[:, None])).all(-1)
    keys_B = jnp.maximum(keys_B, 1)
    out_BLHK = _call(q_BLHK, k_BMHK, v_BMHK, key_value_seq_lengths=keys_B, is_causal=causal)
    return jnp.where(whole_B[:, None, None, None], out_BLHK, jnp.nan)


def _call(q_BLHK, k_BMHK, v_BMHK, **masks):
    return jax.nn.dot_product_attention(
        q_BLHK, k_BMHK, v_BMHK, scale=1.0, implementation="cudnn", **masks
    )


def unfit(dtype, width: int, dropout: float) -> str:
    """Why the kernels cannot compute such attention, with what to set, or "".

    `width` is that of a head, `dropout` the rate of the probabilities in training.
    """
    if jnp.dtype(dtype).name not in DTYPES:
        return f"it computes in 16 bits, and model.dtype={jnp.dtype(dtype).name}; set bfloat16"
    if width % MULTIPLE or width > WIDEST:
        return f"its heads are a multiple of {MULTIPLE} wide, at most {WIDEST}, and not {width}"
    if dropout:
        return (
            "it has no dropout that is drawn anew at every step; set model.attention_dropout=0 to "
            f"train without it (it is {dropout:g})"
        )
    return ""


def taken(kernels: str, dtype, width: int, dropout: float) -> bool:
    """Whether a layer whose `model.attention` is `kernels` computes with them here.

    The other arguments are those of `unfit`; the dropout is 0 outside training. Raises FirthError
    where the kernels are asked for and cannot compute it.
    """
    if kernels != "cudnn" or not on_cuda():
        return False
    if why := unfit(dtype, width, dropout):
        raise FirthError(f"model.attention=cudnn: {why}; or set model.attention=plain")
    return True


def on_cuda() -> bool:
    """Whether the devices of the current mesh are NVIDIA GPUs; without a mesh, JAX's devices."""
    device = get_abstract_mesh().abstract_device
    platform = device.platform if device else jax.default_backend()
    return platform == "cuda" or (
        platform == "gpu" and "cuda" in jax.devices()[0].client.platform_version
    )
