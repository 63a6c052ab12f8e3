"""Attention as two TPU kernels: no array of the size of the scores leaves the core.

One kernel computes what `attention.attend` does: a softmax between two products. Another computes
its gradient, with the probabilities again from the logarithm of their sum (Dao et al. 2022,
algorithms 1 and 4). Whole rows of scores fit the memory of a core, so a softmax is one pass. Heads
narrower than a register share it side by side, as the projections leave them. To multiply by one
head, the kernels set the others to zero, which costs the matrix unit nothing.

The mask of dropout comes from outside, a bit an element. It is that of `dropout.keep_mask`: both
ways of computing attention drop the same elements.

B batch, L query length, M key length, H heads, K head width, D = H x K, G = D / LANES groups of
heads, Q = M / 4. Within a kernel: R rows of queries, W = LANES.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from firth.layers.dropout import Dropout

RESIDUALS = "attention"  # for policies of `jax.checkpoint`: what the backward kernel needs
LANES, SUBLANES = 128, 8  # of a vector register
LENGTHS = 512, 1024  # their quarters fill registers, their scores fit the memory of a core
SCORES = 256 * 512  # R x M: the fastest of 64 to 512 rows at 512 keys, in cycles
ROW_AXES, HEAD_AXIS = ("data", "fsdp"), "tensor"  # of the mesh
FORWARD, BACKWARD = "fused_attention_forward", "fused_attention_backward"

# Products of [a, c] with [b, c], of [a, c] with [c, b], and of [c, a] with [c, b]: each [a, b].
NT, NN, TN = ((((i,), (j,)), ((), ())) for i, j in ((1, 1), (1, 0), (0, 0)))


def attend(q_BLHK, k_BMHK, v_BMHK, bias_B11M, dropout: Dropout, *, train: bool):
    """Softmax of `q k + bias` over the keys, dropout, and the sum of the values so weighted.

    Returns [B, L, H, K]. The queries come scaled. The bias, float32, hides keys; it is a constant
    and gets no gradient. The shapes must satisfy `applies`. On other platforms than a TPU an
    interpreter runs the kernels, for tests.
    """
    (B, L, H, K), M = q_BLHK.shape, k_BMHK.shape[1]
    drops = train and dropout.rate > 0
    # Without the barrier a scanned layer draws them twice: for the kernel and for its residuals.
    bits_BHLQ = jax.lax.optimization_barrier(dropout.bits((B, H, L, M))) if drops else None
    bias_B11M = jnp.broadcast_to(bias_B11M, (B, 1, 1, M))
    q_BLD, k_BMD, v_BMD = (x.reshape(*x.shape[:2], H * K) for x in (q_BLHK, k_BMHK, v_BMHK))
    scale = dropout.scale if drops else 1.0
    return _attend(q_BLD, k_BMD, v_BMD, bias_B11M, bits_BHLQ, K, scale).reshape(B, L, H, K)


def applies(q_shape: tuple[int, ...], k_shape: tuple[int, ...], bias_shape: tuple) -> bool:
    """Whether JAX traces this for a TPU, and the kernels take the shapes.

    The shapes are those of queries [B, L, H, K], keys [B, M, H, K] and a bias [B or 1, 1, 1, M].
    Both lengths must be among LENGTHS. Each device must get whole rows, and heads that fill
    registers.
    """
    (B, L, H, K), M, sizes = q_shape, k_shape[1], _mesh_axes()
    rows = sizes.get(ROW_AXES[0], 1) * sizes.get(ROW_AXES[1], 1)
    return (
        on_tpu()
        and {L, M} <= set(LENGTHS)
        and LANES % K == 0
        and K * SUBLANES >= LANES
        and B % rows == H * K % (LANES * sizes.get(HEAD_AXIS, 1)) == 0
        and tuple(bias_shape[1:]) == (1, 1, M)
    )


def on_tpu() -> bool:
    """Whether the devices of the current mesh are TPUs; without a mesh, whether JAX has TPUs."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (device.platform if device else jax.default_backend()) == "tpu"


# ----------------------------------------------------------------------------- with its gradient


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(q_BLD, k_BMD, v_BMD, bias_B11M, bits_BHLQ, width: int, scale: float):
    return _forward(q_BLD, k_BMD, v_BMD, bias_B11M, bits_BHLQ, width, scale)[0]


def _forward(q_BLD, k_BMD, v_BMD, bias_B11M, bits_BHLQ, width: int, scale: float):
    def results(q_BLD, *_):
        B, L, D = q_BLD.shape
        return q_BLD, jax.ShapeDtypeStruct((B, D // LANES, SUBLANES, L), jnp.float32)

    kernel = functools.partial(_forward_kernel, width=width, scale=scale)
    inputs = q_BLD, k_BMD, v_BMD, bias_B11M, bits_BHLQ
    out_BLD, log_BG8L = _run(FORWARD, kernel, results, inputs, products=2)
    residuals = checkpoint_name((out_BLD, log_BG8L, bits_BHLQ), RESIDUALS)
    return residuals[0], (q_BLD, k_BMD, v_BMD, bias_B11M, *residuals)


def _backward(width: int, scale: float, residuals, dout_BLD):
    q_BLD, k_BMD, v_BMD, bias_B11M, out_BLD, log_BG8L, bits_BHLQ = residuals
    kernel = functools.partial(_backward_kernel, width=width, scale=scale)
    bias_B1M1 = bias_B11M.swapaxes(2, 3)
    inputs = q_BLD, k_BMD, v_BMD, bias_B1M1, out_BLD, dout_BLD, log_BG8L, bits_BHLQ
    grads = _run(BACKWARD, kernel, lambda *arrays: arrays[:3], inputs, products=5)
    return *grads, jnp.zeros_like(bias_B11M), None


_attend.defvjp(_forward, _backward)


# ------------------------------------------------------------------------------------ the kernels


def _forward_kernel(q_ref, k_ref, v_ref, bias_ref, *rest, width: int, scale: float):
    *bits_ref, out_ref, log_ref = rest
    R = SCORES // k_ref.shape[0]
    lane_RW = jax.lax.broadcasted_iota(jnp.int32, (R, LANES), 1)
    for start in range(0, q_ref.shape[0], R):
        rows = pl.ds(start, R)
        q_RW, v_MW = q_ref[rows], v_ref[...]
        out_RW = log_RW = jnp.zeros((R, LANES), jnp.float32)
        for head in range(LANES // width):
            scores_RM = _product(q_RW, _only(head, width, k_ref[...]), NT) + bias_ref[0]
            most_R1 = scores_RM.max(-1, keepdims=True)
            exp_RM = jnp.exp(scores_RM - most_R1)
            sum_R1 = exp_RM.sum(-1, keepdims=True)
            if bits_ref:
                exp_RM = jnp.where(_keep_mask(bits_ref[0][head, rows], axis=1), exp_RM, 0)
            head_RW = _product(exp_RM.astype(v_MW.dtype), v_MW, NN) * (scale / sum_R1)
            out_RW += _only(head, width, head_RW)
            log_RW = jnp.where(lane_RW == head, most_R1 + jnp.log(sum_R1), log_RW)
        out_ref[rows] = out_RW.astype(out_ref.dtype)
        log_ref[0, :, rows] = log_RW.T[:SUBLANES]  # a head a row


def _backward_kernel(
    q_ref, k_ref, v_ref, bias_ref, out_ref, dout_ref, log_ref, *rest, width: int, scale: float
):
    """Scores lie transposed, [M, R], so three of four gradients are plain products."""
    *bits_ref, dq_ref, dk_ref, dv_ref = rest
    M, dtype = k_ref.shape[0], q_ref.dtype
    R = SCORES // M
    dk_MW = dv_MW = jnp.zeros((M, LANES), jnp.float32)
    row_8W = jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 0)
    heads_8W = (_head_of_lane(row_8W.shape, width) == row_8W).astype(jnp.float32)
    for start in range(0, q_ref.shape[0], R):
        rows = pl.ds(start, R)
        q_RW, dout_RW = q_ref[rows], dout_ref[rows]
        # The mean gradient of a row's probabilities: output times its gradient, a head a row.
        both_RW = out_ref[rows].astype(jnp.float32) * dout_RW.astype(jnp.float32)
        mean_8R = _product(heads_8W, both_RW, NT, precision=jax.lax.Precision.HIGHEST)
        dout_RW = (dout_RW * jnp.asarray(scale, dtype)).astype(dtype)
        dq_RW = jnp.zeros((R, LANES), jnp.float32)
        for head in range(LANES // width):
            k_MW, v_MW = _only(head, width, k_ref[...]), _only(head, width, v_ref[...])
            log_1R = log_ref[0, head : head + 1, rows]
            probs_MR = jnp.exp(_product(k_MW, q_RW, NT) + bias_ref[0] - log_1R)
            kept_MR, dkept_MR = probs_MR, _product(v_MW, dout_RW, NT)
            if bits_ref:
                keep_MR = _keep_mask(bits_ref[0][head, rows].astype(jnp.int32).T, axis=0)
                kept_MR, dkept_MR = (jnp.where(keep_MR, x, 0) for x in (kept_MR, dkept_MR))
            dscores_MR = (probs_MR * (dkept_MR - mean_8R[head : head + 1])).astype(dtype)
            dv_MW += _product(kept_MR.astype(dtype), _only(head, width, dout_RW), NN)
            dk_MW += _product(dscores_MR, _only(head, width, q_RW), NN)
            dq_RW += _product(dscores_MR, k_MW, TN)
        dq_ref[rows] = dq_RW.astype(dtype)
    dk_ref[...], dv_ref[...] = dk_MW.astype(dtype), dv_MW.astype(dtype)


def _product(a, b, dimensions, precision=None):
    return jax.lax.dot_general(
        a, b, dimensions, precision=precision, preferred_element_type=jnp.float32
    )


def _only(head: int, width: int, x):
    """`x` [..., W] with the lanes of all other heads set to zero."""
    return jnp.where(_head_of_lane(x.shape, width) == head, x, 0).astype(x.dtype)


def _head_of_lane(shape: tuple[int, int], width: int):
    return jax.lax.div(jax.lax.broadcasted_iota(jnp.int32, shape, 1), jnp.int32(width))


def _keep_mask(bits, axis: int):
    """The mask whose quarters along `axis` are the four lowest bits of each byte."""
    bits = bits.astype(jnp.int32)
    return jnp.concatenate([bits & (1 << i) for i in range(4)], axis=axis) != 0


# ------------------------------------------------------------------------------ calling a kernel


def _run(name: str, kernel, results, inputs, products: int):
    """Run a kernel for every row of the batch and group of heads, on each device for its own.

    Arrays of three axes are [B, length, D]. The second axis of those of four counts groups or
    heads, or is 1 where all groups share the array. `results` gives the shapes of the outputs from
    the arrays of one device. `products` is the number of products of [L, K] with [K, M] a head.
    """
    inputs = [x for x in inputs if x is not None]

    def local(*arrays):
        (B, L, D), M = arrays[0].shape, arrays[1].shape[1]
        out = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results(*arrays))
        cost = pl.CostEstimate(
            flops=2 * products * B * L * M * D,
            transcendentals=B * D // kernel.keywords["width"] * L * M,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *out)),
        )
        call = functools.partial(
            pl.pallas_call,
            kernel,
            out_shape=out,
            grid=(B, D // LANES),
            in_specs=[_block(x.shape, D // LANES) for x in arrays],
            out_specs=tuple(_block(x.shape, D // LANES) for x in out),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
            cost_estimate=cost,
            name=name,
        )
        return jax.lax.platform_dependent(*arrays, tpu=call(), default=call(interpret=True))

    auto = _mesh_axes()
    if not auto:
        return local(*inputs)
    rows = tuple(axis for axis in ROW_AXES if axis in auto) or None
    heads = HEAD_AXIS if HEAD_AXIS in auto else None

    def spec(x):
        shared = x.ndim == 4 and x.shape[1] == 1
        return P(rows, None, heads) if x.ndim == 3 else P(rows, None if shared else heads)

    run = jax.shard_map(
        local,
        in_specs=tuple(spec(x) for x in inputs),
        out_specs=tuple(spec(x) for x in results(*inputs)),
        axis_names=set(auto),
        check_vma=False,
    )
    return run(*inputs)


def _block(shape: tuple[int, ...], groups: int) -> pl.BlockSpec:
    """The part of an array that one call of a kernel gets: a group of heads of a row."""
    if len(shape) == 3:
        return pl.BlockSpec((None, shape[1], LANES), lambda b, g: (b, 0, g))
    if shape[1] == 1:
        return pl.BlockSpec((None, *shape[1:]), lambda b, g: (b, 0, 0, 0))
    return pl.BlockSpec((None, shape[1] // groups, *shape[2:]), lambda b, g: (b, g, 0, 0))


def _mesh_axes() -> dict[str, int]:
    """Sizes of the axes of the current mesh over which arrays are not yet divided here."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return {name: size for name, size, kind in axes if kind == AxisType.Auto}
