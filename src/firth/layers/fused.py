"""Attention as two TPU kernels: no array of the size of the scores leaves the core.

One kernel computes what `attention.attend` does: a softmax between two products. Another computes
its gradient, with the probabilities again from the logarithm of their sum (Dao et al. 2022,
algorithms 1 and 4). Whole rows of scores fit the memory of a core, so a softmax is one pass. Heads
narrower than a register share it side by side, as the projections leave them. To multiply by one
head, the kernels set the others to zero, which costs the matrix unit nothing.

With a reach (before, after), the query at place i sees the keys from i - before to i + after alone,
as causal and local attention has them. The kernels leave out the blocks of scores that no query of
theirs reaches.

The mask of dropout comes from outside, a bit an element. It is that of `dropout.keep_mask`: both
ways of computing attention drop the same elements.

B batch, L query length, M key length, H heads, K head width, D = H x K, G = D / LANES groups of
heads, Q = M / 4. Within a kernel: R rows of queries, W = LANES, S keys within their reach.
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
BEYOND = -1e5  # the score of a key out of reach: below padding, which a row of padding must see

# Products of [a, c] with [b, c], of [a, c] with [c, b], and of [c, a] with [c, b]: each [a, b].
NT, NN, TN = ((((i,), (j,)), ((), ())) for i, j in ((1, 1), (1, 0), (0, 0)))


def attend(q_BLHK, k_BMHK, v_BMHK, bias_B11M, dropout: Dropout, *, train: bool, reach=None):
    """Softmax of `q k + bias` over the keys, dropout, and the sum of the values so weighted.

    Returns [B, L, H, K]. The queries come scaled. The bias, float32, hides keys; it is a constant
    and gets no gradient. `reach` is (before, after), or None where every query sees all keys. The
    shapes must satisfy `applies`. On other platforms than a TPU an interpreter runs the kernels,
    for tests.

    A query with no key in its reach but hidden ones sees those, where plain attention would see
    all keys alike. Only padding is such a query.
    """
    (B, L, H, K), M = q_BLHK.shape, k_BMHK.shape[1]
    drops = train and dropout.rate > 0
    # Without the barrier a scanned layer draws them twice: for the kernel and for its residuals.
    bits_BHLQ = jax.lax.optimization_barrier(dropout.bits((B, H, L, M))) if drops else None
    bias_B11M = jnp.broadcast_to(bias_B11M, (B, 1, 1, M))
    q_BLD, k_BMD, v_BMD = (x.reshape(*x.shape[:2], H * K) for x in (q_BLHK, k_BMHK, v_BMHK))
    scale = dropout.scale if drops else 1.0
    out_BLD = _attend(q_BLD, k_BMD, v_BMD, bias_B11M, bits_BHLQ, K, scale, reach)
    return out_BLD.reshape(B, L, H, K)


def applies(q_shape: tuple, k_shape: tuple, bias_shape: tuple, reach=None) -> bool:
    """Whether JAX traces this for a TPU, and the kernels take the shapes.

    The shapes are those of queries [B, L, H, K], keys [B, M, H, K] and a bias [B or 1, 1, 1, M].
    With a reach, L is M. Both lengths must be among LENGTHS. Each device must get whole rows, and
    heads that fill registers.
    """
    (B, L, H, K), M, sizes = q_shape, k_shape[1], mesh_axes()
    rows = sizes.get(ROW_AXES[0], 1) * sizes.get(ROW_AXES[1], 1)
    return (
        on_tpu()
        and {L, M} <= set(LENGTHS)
        and LANES % K == 0
        and K * SUBLANES >= LANES
        and B % rows == H * K % (LANES * sizes.get(HEAD_AXIS, 1)) == 0
        and tuple(bias_shape[1:]) == (1, 1, M)
        and (reach is None or L == M)
    )


def on_tpu() -> bool:
    """Whether the devices of the current mesh are TPUs; without a mesh, whether JAX has TPUs."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (device.platform if device else jax.default_backend()) == "tpu"


# ----------------------------------------------------------------------------- with its gradient


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _attend(q_BLD, k_BMD, v_BMD, bias_B11M, bits_BHLQ, width: int, scale: float, reach):
    return _forward(q_BLD, k_BMD, v_BMD, bias_B11M, bits_BHLQ, width, scale, reach)[0]


def _forward(q_BLD, k_BMD, v_BMD, bias_B11M, bits_BHLQ, width: int, scale: float, reach):
    def results(q_BLD, *_):
        B, L, D = q_BLD.shape
        return q_BLD, jax.ShapeDtypeStruct((B, D // LANES, SUBLANES, L), jnp.float32)

    kernel = functools.partial(_forward_kernel, width=width, scale=scale, reach=reach)
    inputs = q_BLD, k_BMD, v_BMD, bias_B11M, bits_BHLQ
    out_BLD, log_BG8L = _run(names(reach)[0], kernel, results, inputs, products=2)
    residuals = checkpoint_name((out_BLD, log_BG8L, bits_BHLQ), RESIDUALS)
    return residuals[0], (q_BLD, k_BMD, v_BMD, bias_B11M, *residuals)


def _backward(width: int, scale: float, reach, residuals, dout_BLD):
    q_BLD, k_BMD, v_BMD, bias_B11M, out_BLD, log_BG8L, bits_BHLQ = residuals
    kernel = functools.partial(_backward_kernel, width=width, scale=scale, reach=reach)
    bias_B1M1 = bias_B11M.swapaxes(2, 3)
    inputs = q_BLD, k_BMD, v_BMD, bias_B1M1, out_BLD, dout_BLD, log_BG8L, bits_BHLQ
    grads = _run(names(reach)[1], kernel, lambda *arrays: arrays[:3], inputs, products=5)
    return *grads, jnp.zeros_like(bias_B11M), None


_attend.defvjp(_forward, _backward)


# ------------------------------------------------------------------------------------ the kernels


def _forward_kernel(q_ref, k_ref, v_ref, bias_ref, *rest, width: int, scale: float, reach):
    *bits_ref, out_ref, log_ref = rest
    L, M = q_ref.shape[0], k_ref.shape[0]
    for start, low, high in blocks(L, M, reach):
        R = block_rows(M, reach)
        rows, keys = pl.ds(start, R), slice(low, high)
        lane_RW = jax.lax.broadcasted_iota(jnp.int32, (R, LANES), 1)
        q_RW, v_SW = q_ref[rows], v_ref[keys]
        out_RW = log_RW = jnp.zeros((R, LANES), jnp.float32)
        for head in range(LANES // width):
            scores_RS = product(q_RW, only(head, width, k_ref[keys]), NT) + bias_ref[0][:, keys]
            scores_RS = _within(reach, scores_RS, start, low, key_axis=1)
            most_R1 = scores_RS.max(-1, keepdims=True)
            exp_RS = jnp.exp(scores_RS - most_R1)
            sum_R1 = exp_RS.sum(-1, keepdims=True)
            if bits_ref:
                keep_RS = _keep_mask(bits_ref[0][head, rows], axis=1)[:, keys]
                exp_RS = jnp.where(keep_RS, exp_RS, 0)
            head_RW = product(exp_RS.astype(v_SW.dtype), v_SW, NN) * (scale / sum_R1)
            out_RW += only(head, width, head_RW)
            log_RW = jnp.where(lane_RW == head, most_R1 + jnp.log(sum_R1), log_RW)
        out_ref[rows] = out_RW.astype(out_ref.dtype)
        log_ref[0, :, rows] = log_RW.T[:SUBLANES]  # a head a row


def _backward_kernel(
    q_ref, k_ref, v_ref, bias_ref, out_ref, dout_ref, log_ref, *rest, width, scale, reach
):
    """Scores lie transposed, [S, R], so three of four gradients are plain products."""
    *bits_ref, dq_ref, dk_ref, dv_ref = rest
    L, M, dtype = q_ref.shape[0], k_ref.shape[0], q_ref.dtype
    tile = M if reach is None else LANES
    dk_tiles, dv_tiles = ([jnp.zeros((tile, LANES), jnp.float32)] * (M // tile) for _ in "kv")
    row_8W = jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 0)
    heads_8W = (_head_of_lane(row_8W.shape, width) == row_8W).astype(jnp.float32)
    for start, low, high in blocks(L, M, reach):
        R = block_rows(M, reach)
        rows, keys = pl.ds(start, R), slice(low, high)
        q_RW, dout_RW = q_ref[rows], dout_ref[rows]
        # The mean gradient of a row's probabilities: output times its gradient, a head a row.
        both_RW = out_ref[rows].astype(jnp.float32) * dout_RW.astype(jnp.float32)
        mean_8R = product(heads_8W, both_RW, NT, precision=jax.lax.Precision.HIGHEST)
        dout_RW = (dout_RW * jnp.asarray(scale, dtype)).astype(dtype)
        dq_RW = jnp.zeros((R, LANES), jnp.float32)
        for head in range(LANES // width):
            k_SW, v_SW = only(head, width, k_ref[keys]), only(head, width, v_ref[keys])
            log_1R = log_ref[0, head : head + 1, rows]
            scores_SR = product(k_SW, q_RW, NT) + bias_ref[0][keys]
            probs_SR = jnp.exp(_within(reach, scores_SR, start, low, key_axis=0) - log_1R)
            kept_SR, dkept_SR = probs_SR, product(v_SW, dout_RW, NT)
            if bits_ref:
                bits_QR = bits_ref[0][head, rows].astype(jnp.int32).T
                keep_SR = _keep_mask(bits_QR, axis=0)[keys]
                kept_SR, dkept_SR = (jnp.where(keep_SR, x, 0) for x in (kept_SR, dkept_SR))
            dscores_SR = (probs_SR * (dkept_SR - mean_8R[head : head + 1])).astype(dtype)
            dv_SW = product(kept_SR.astype(dtype), only(head, width, dout_RW), NN)
            dk_SW = product(dscores_SR, only(head, width, q_RW), NN)
            dq_RW += product(dscores_SR, k_SW, TN)
            for i in range(low // tile, high // tile):
                part = slice(i * tile - low, (i + 1) * tile - low)
                dk_tiles[i], dv_tiles[i] = dk_tiles[i] + dk_SW[part], dv_tiles[i] + dv_SW[part]
        dq_ref[rows] = dq_RW.astype(dtype)
    for i in range(M // tile):
        part = pl.ds(i * tile, tile)
        dk_ref[part], dv_ref[part] = dk_tiles[i].astype(dtype), dv_tiles[i].astype(dtype)


def block_rows(M: int, reach) -> int:
    """How many queries one block of scores has: fewer where some of its keys may be left out."""
    return SCORES // M if reach is None else LANES


def blocks(L: int, M: int, reach) -> list[tuple[int, int, int]]:
    """(first query, first key, end of the keys) of the blocks of scores of L x M that are made."""
    R = block_rows(M, reach)
    before, after = reach or (M, M)
    return [
        (start, max(start - before, 0) // LANES * LANES, min(M, _up(start + R + after)))
        for start in range(0, L, R)
    ]


def _up(places: int) -> int:
    """The next multiple of LANES."""
    return -(-places // LANES) * LANES


def _within(reach, scores, start: int, low: int, key_axis: int):
    """A block's scores, with BEYOND at those of keys that the query does not reach."""
    if reach is None:
        return scores
    (before, after), place = reach, functools.partial(jax.lax.broadcasted_iota, jnp.int32)
    ahead = low - start + place(scores.shape, key_axis) - place(scores.shape, 1 - key_axis)
    seen = ahead <= after
    if start + scores.shape[1 - key_axis] - 1 - low > before:  # else no key lies too far back
        seen &= ahead >= -before
    return jnp.where(seen, scores, BEYOND)


def product(a, b, dimensions, precision=None):
    """A product of two arrays (`dimensions` is NT, NN or TN), float32 [a, b]."""
    return jax.lax.dot_general(
        a, b, dimensions, precision=precision, preferred_element_type=jnp.float32
    )


def only(head: int, width: int, x):
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
        width, reach = (kernel.keywords[name] for name in ("width", "reach"))
        R = block_rows(M, reach)
        scores = B * sum(R * (high - low) for _, low, high in blocks(L, M, reach))
        cost = pl.CostEstimate(
            flops=2 * products * scores * D,
            transcendentals=D // width * scores,
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

    auto = mesh_axes()
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


def names(reach) -> tuple[str, str]:
    """Of the two kernels: each kind has its own cycles a score."""
    kind = "" if reach is None else "_causal" if reach[1] == 0 else "_local"
    return FORWARD + kind, BACKWARD + kind


def _block(shape: tuple[int, ...], groups: int) -> pl.BlockSpec:
    """The part of an array that one call of a kernel gets: a group of heads of a row."""
    if len(shape) == 3:
        return pl.BlockSpec((None, shape[1], LANES), lambda b, g: (b, 0, g))
    if shape[1] == 1:
        return pl.BlockSpec((None, *shape[1:]), lambda b, g: (b, 0, 0, 0))
    return pl.BlockSpec((None, shape[1] // groups, *shape[2:]), lambda b, g: (b, g, 0, 0))


def mesh_axes() -> dict[str, int]:
    """Sizes of the axes of the current mesh over which arrays are not yet divided here."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return {name: size for name, size, kind in axes if kind == AxisType.Auto}
