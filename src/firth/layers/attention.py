"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2).

B batch, L query length, M key length, P places, H heads, K head width, D model width.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from firth.errors import FirthError
from firth.layers import cudnn, fused
from firth.layers.affine import dot_general
from firth.layers.dropout import Dropout

RESIDUALS = fused.RESIDUALS  # for policies of `jax.checkpoint`: what the backward pass needs
MASKED = -1e4  # added to masked scores, as BERT does: a row with no key at all stays finite


def mask_to_bias(mask_BM):
    """Additive bias float32 [B, 1, 1, M] that hides the keys where the bool mask is False.

    In packed rows the mask is int: the number, from 1, of the text that each token is of, and 0 at
    padding. There the bias is [B, 1, M, M], and a token sees its own text alone.
    """
    if mask_BM.dtype == bool:
        return jnp.where(mask_BM, 0.0, MASKED)[:, None, None, :]
    return jnp.where(mask_BM[:, :, None] == mask_BM[:, None, :], 0.0, MASKED)[:, None]


def places(mask_BL):
    """The place of each token in its text, int [L], or [B, L] in packed rows (`mask_to_bias`)."""
    place_L = jnp.arange(mask_BL.shape[1])
    if mask_BL.dtype == bool:
        return place_L
    before_BL = jnp.pad(mask_BL, ((0, 0), (1, 0)))[:, :-1]
    return place_L - jax.lax.cummax(jnp.where(mask_BL != before_BL, place_L, 0), axis=1)


def gather(x_BL, places_BP):
    """Values of [B, L, ...] at places of each row: [B, P, ...]."""
    index = places_BP.reshape(places_BP.shape + (1,) * (x_BL.ndim - 2))
    return jnp.take_along_axis(x_BL, index, axis=1)


def bias_at(bias, at_BP):
    """What a bias [B, 1, 1 or M, M] adds to the scores of queries at some places alone."""
    return bias if bias.shape[2] == 1 else gather(bias[:, 0], at_BP)[:, None]


def attend(scores_BHLM, v_BMHK, dropout: Dropout, *, train: bool):
    """Softmax of float32 scores over the keys, dropout, and the sum of the values so weighted.

    The backward pass keeps one array of the size of the scores, in the dtype of the values: the
    probabilities, negative where dropout fell. It needs no more: the mean gradient of the
    probabilities is the product of the output and its gradient (Dao et al. 2022, appendix B.2).

    Returns the output [B, L, H, K] and the probabilities before dropout, float32 [B, H, L, M].
    """
    drops = train and dropout.rate > 0
    keep_BHLM = dropout.mask(scores_BHLM.shape) if drops else None
    out_BLHK = _attend(scores_BHLM, v_BMHK, keep_BHLM, dropout.scale if drops else 1.0)
    return out_BLHK, jax.nn.softmax(scores_BHLM, axis=-1)  # compiled only where it is used


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(scores_BHLM, v_BMHK, keep_BHLM, scale: float):
    return _attend_forward(scores_BHLM, v_BMHK, keep_BHLM, scale)[0]


def _attend_forward(scores_BHLM, v_BMHK, keep_BHLM, scale: float):
    signed_BHLM = jax.nn.softmax(scores_BHLM, axis=-1).astype(v_BMHK.dtype)
    if keep_BHLM is not None:
        signed_BHLM = jnp.where(keep_BHLM, signed_BHLM, -signed_BHLM)
    kept_BHLM = jnp.maximum(signed_BHLM, 0)
    # Straight to BLHK, einsum swaps the operands, and a CPU takes up to three times as long.
    out_BLHK = jnp.einsum("BHLM,BMHK->BHLK", kept_BHLM, v_BMHK).swapaxes(1, 2)
    out_BLHK *= jnp.asarray(scale, v_BMHK.dtype)
    signed_BHLM, out_BLHK = checkpoint_name((signed_BHLM, out_BLHK), RESIDUALS)
    return out_BLHK, (signed_BHLM, v_BMHK, out_BLHK)


def _attend_backward(scale: float, residuals, dout_BLHK):
    signed_BHLM, v_BMHK, out_BLHK = residuals
    mean_BLH = (dout_BLHK.astype(jnp.float32) * out_BLHK).sum(-1)
    mean_BHL1 = mean_BLH.swapaxes(1, 2)[..., None]
    dout_BLHK *= jnp.asarray(scale, dout_BLHK.dtype)
    dv_BMHK = jnp.einsum("BHLM,BLHK->BMHK", jnp.maximum(signed_BHLM, 0), dout_BLHK)
    dkept_BHLM = jnp.einsum(
        "BLHK,BMHK->BHLM", dout_BLHK, v_BMHK, preferred_element_type=jnp.float32
    )
    signed_BHLM = signed_BHLM.astype(jnp.float32)
    dscores_BHLM = signed_BHLM * jnp.where(signed_BHLM > 0, dkept_BHLM - mean_BHL1, mean_BHL1)
    return dscores_BHLM, dv_BMHK, None


_attend.defvjp(_attend_forward, _attend_backward)


def attend_heads(
    q_BLHK,
    k_BMHK,
    v_BMHK,
    bias,
    dropout: Dropout,
    *,
    train: bool,
    fuse: bool = False,
    kernels: str = "plain",
    reach: tuple[int, int] | None = None,
):
    """`attend` for the scores of scaled queries plus a bias, by kernels where they apply.

    Args:
      q_BLHK, k_BMHK, v_BMHK: queries, scaled; keys; values.
      bias: float, broadcastable to [B, H, L, M]; with a reach, [B, 1, L, M] that hides what lies
        beyond it.
      dropout, train: as `attend` takes them.
      fuse: use the kernels of `layers.fused` on TPUs, for shapes that they take.
      kernels: "plain", or "cudnn" for those of `layers.cudnn` on NVIDIA GPUs.
      reach: (before, after), how far from its own place each query sees; None: everywhere.
    """
    # Scores and softmax are float32 in every dtype.
    scores_BHLM = bias + jnp.einsum(
        "BLHK,BMHK->BHLM", q_BLHK, k_BMHK, preferred_element_type=jnp.float32
    )
    # A key that its own place may see is no padding.
    hides = bias.max(2, keepdims=True) if reach else bias
    if fuse and fused.applies(q_BLHK.shape, k_BMHK.shape, jnp.shape(hides), reach):
        out_BLHK = fused.attend(q_BLHK, k_BMHK, v_BMHK, hides, dropout, train=train, reach=reach)
        return out_BLHK, jax.nn.softmax(scores_BHLM, axis=-1)  # compiled only where it is used
    width, rate = q_BLHK.shape[-1], dropout.rate if train else 0.0
    if cudnn.taken(kernels, q_BLHK.dtype, width, rate):
        causal = reach is not None and reach[1] == 0
        out_BLHK = cudnn.attend(q_BLHK, k_BMHK, v_BMHK, bias, causal=causal)
        return out_BLHK, jax.nn.softmax(scores_BHLM, axis=-1)
    return attend(scores_BHLM, v_BMHK, dropout, train=train)


def reach_bias(mask_BM, reach):
    """`mask_to_bias` for queries that see no farther than `reach` (before, after): [B, 1, M, M]."""
    place_M = jnp.arange(mask_BM.shape[1])
    ahead_MM = place_M - place_M[:, None]
    near_MM = (ahead_MM >= -reach[0]) & (ahead_MM <= reach[1])
    return jnp.where(near_MM, mask_to_bias(mask_BM), MASKED)


def check_fused():
    """Raise FirthError unless the kernels of `layers.fused` agree with plain attention.

    Tests run the kernels in an interpreter and compile them for described chips. This runs both
    ways once for each reach, with padding, dropout and gradients, on the device that will train.
    """
    L = fused.LENGTHS[0]
    shape = 2, L, 2, fused.LANES // 2
    mask_BL = jnp.arange(L) < jnp.array([[L], [L // 2 + 3]])
    for kind, reach in (("", None), ("causal ", (L, 0)), ("local ", (L // 8, L // 8))):
        bias = reach_bias(mask_BL, reach) if reach else mask_to_bias(mask_BL)

        def kernels(q, k, v, dropout, bias=bias, reach=reach):
            out = attend_heads(q, k, v, bias, dropout, train=True, fuse=True, reach=reach)[0]
            return jnp.where(mask_BL[:, :, None, None], out, 0)

        if wrong := _differing(kernels, shape, "bfloat16", bias, 0.1, mask_BL):
            raise FirthError(
                f"model.fused_attention=True: on this {jax.devices()[0].device_kind} the {kind}"
                f"kernels' {wrong} is not that of plain attention; set model.fused_attention=False"
            )


def check_cudnn(dtype, width: int, masks: tuple[str, ...] = ("padding",)) -> str:
    """What cuDNN's attention computes on this device otherwise than the plain way, or "".

    It runs both once for each of some masks: "padding", "blocks" (texts packed into a row, each
    seeing itself alone), "causal" (with padding) and "window" (the tokens nearby, with padding).
    `width` is that of a head.
    """
    L = 64
    first_L = jnp.where(jnp.arange(L) < L // 2 + 3, 0, 1)  # the text that each token is of
    real_BL, place_L = jnp.stack([jnp.ones(L, bool), first_L == 0]), jnp.arange(L)
    near_LM = abs(place_L[:, None] - place_L) <= L // 8
    seen = {
        "padding": real_BL[:, None],
        "blocks": (first_L[:, None] == first_L)[None],
        "causal": real_BL[:, None] & (place_L[:, None] >= place_L),
        "window": real_BL[:, None] & near_LM,
    }
    for mask in masks:
        bias, causal = jnp.where(seen[mask], 0.0, MASKED)[:, None], mask == "causal"

        def kernels(q, k, v, _, bias=bias, causal=causal):
            return cudnn.attend(q, k, v, bias, causal=causal)

        try:
            wrong = _differing(kernels, (2, L, 2, width), dtype, bias, 0.0)
        except (RuntimeError, NotImplementedError, ValueError) as error:  # of JAX, XLA and cuDNN
            return f"with {mask} it fails: {' '.join(str(error).split())[:200]}"
        if wrong:
            return f"with {mask} its {wrong} is not that of plain attention"
    return ""


def _differing(way, shape, dtype, bias, rate: float, real_BL=True) -> str:
    """What `way` computes otherwise than plain attention: "output", "dq", "dk", "dv", or "".

    `way` is a function of queries, keys, values (of `shape` [B, L, H, K]) and a Dropout of `rate`.
    Both run on the device that JAX would use. Outputs where `real_BL` is False count as 0.
    """
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, dout = (jax.random.normal(key, shape, dtype) for key in keys)
    q *= shape[-1] ** -0.5

    def plain(q, k, v, dropout):
        scores = jnp.einsum("BLHK,BMHK->BHLM", q, k, preferred_element_type=jnp.float32)
        out = attend(scores + bias, v, dropout, train=True)[0]
        return jnp.where(jnp.asarray(real_BL)[..., None, None], out, 0)

    def run(way):
        def out(q, k, v):
            rngs = {"dropout": jax.random.key(1)}
            return Dropout(rate).apply({}, rngs=rngs, method=lambda drop: way(q, k, v, drop))

        value, pull = jax.vjp(out, q, k, v)
        return value, *pull(dout)

    results = [jax.device_get(jax.jit(run, static_argnums=0)(each)) for each in (plain, way)]
    for name, one, other in zip(("output", "dq", "dk", "dv"), *results, strict=True):
        one, other = one.astype("float32"), other.astype("float32")
        if not abs(one - other).max() < 0.05 * abs(one).max():  # nan fails too
            return name
    return ""


class MultiHeadAttention(nn.Module):
    """Self-attention with biases on all four projections and dropout on the probabilities."""

    num_heads: int
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32
    kernel_init: nn.initializers.Initializer = nn.initializers.truncated_normal(0.02)
    fused: bool = False  # use the kernels of `layers.fused` on TPUs, where they apply
    kernels: str = "plain"  # "cudnn": those of `layers.cudnn` on NVIDIA GPUs

    @nn.compact
    def __call__(self, x_BLD, bias, *, train: bool, at_BP=None):
        """Attend from every position of `x_BLD` to every position that `bias` allows.

        Args:
          x_BLD: hidden states.
          bias: float, broadcastable to [B, H, L, M]; added to the scores.
          train: whether to apply dropout.
          at_BP: int, the places that queries are of, for plain attention; None: all.

        Returns:
          The output [B, L, D] and the attention probabilities before dropout [B, H, L, M], with P
          places instead of L where there is `at_BP`.
        """
        B, M, D = x_BLD.shape
        H, K = self.num_heads, D // self.num_heads
        queries_BLD = x_BLD if at_BP is None else gather(x_BLD, at_BP)
        bias = bias if at_BP is None else bias_at(bias, at_BP)

        def project(name, x):
            return nn.Dense(
                D,
                dtype=self.dtype,
                kernel_init=self.kernel_init,
                dot_general=dot_general,
                name=name,
            )(x)

        q_BLHK = project("query", queries_BLD).reshape(B, -1, H, K)
        k_BMHK = project("key", x_BLD).reshape(B, M, H, K)
        v_BMHK = project("value", x_BLD).reshape(B, M, H, K)
        q_BLHK *= K**-0.5  # the scale goes on the smaller operand
        dropout = Dropout(self.dropout)
        out_BLHK, probs_BHLM = attend_heads(
            q_BLHK,
            k_BMHK,
            v_BMHK,
            bias,
            dropout,
            train=train,
            fuse=self.fused,
            kernels=self.kernels,
        )
        return project("output", out_BLHK.reshape(B, -1, D)), probs_BHLM
