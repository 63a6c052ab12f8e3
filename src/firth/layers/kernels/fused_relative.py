"""Relative attention as two TPU kernels, for one stream of XLNet or Transformer-XL.

They compute what `layers.relative` does from the queries on: scores by content, scores by distance
moved to their keys, scores of segments, masks, softmax, dropout, and the sum of the values. As in
`layers.fused`, no array of the size of the scores leaves the core, and the backward kernel computes
the probabilities again from the logarithm of their sum (Dao et al. 2022, algorithms 1 and 4).

The shift. Row s of a block of R queries needs its scores by distance from place R - 1 - s of the
block's window on, so the row moves that far to the left (`kernels.shift`). A query stream's rows
move by as much as their positions say.

Only the difference of the two segment scores is given: a constant over all keys of a row leaves
the softmax as it is.

The masks of dropout are those of `dropout.keep_bits`.

B rows, T directions, S queries (L of the content stream, P of the query stream), M memory,
J = M + L keys, N = J + L places by distance, H heads, K head width, D = H x K, G = D / LANES groups
of heads, W = LANES, Q = J / 4, R queries in a block, C columns of its window.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from firth.layers.dropout import Dropout
from firth.layers.fused import (
    HEAD_AXIS,
    LANES,
    NN,
    NT,
    RESIDUALS,
    ROW_AXES,
    SUBLANES,
    mesh_axes,
    on_tpu,
    only,
    product,
)
from firth.layers.kernels.relative_call import run
from firth.layers.kernels.shift import moved, moved_back

PACKED = 32  # rows that a register of bytes holds: a query stream in one block has no more zeros
LONGEST, MOST_KEYS = 1024, 2048  # queries and keys: what a kernel holds fits the memory of a core
HIDDEN = -1e4  # the score of a hidden key, as in plain attention
VISIBLE, OTHER = 1, 2  # bits of the flags of a query and a key
FORWARD, BACKWARD = "relative_attention_forward", "relative_attention_backward"


def attend(
    content_BSHK,
    position_BSHK,
    k_BJHK,
    v_BJHK,
    r_TNHK,
    segments_BHS,
    visible_B1SJ,
    other_B1SJ,
    positions_BP,
    bits_BHSQ,
    scale: float,
    *,
    shares: bool = False,
):
    """Relative attention of one stream: the output [B, S, H, K], and the keys and values.

    Args:
      content_BSHK, position_BSHK: queries for scores by content and by distance, scaled, with
        their biases.
      k_BJHK, v_BJHK: keys and values.
      r_TNHK: encodings of distances; one place of keys ahead may lack, as in causal models.
      segments_BHS: float32, how much higher keys of the other segment score; None: no segments.
      visible_B1SJ, other_B1SJ: as `relative.Context` has them.
      positions_BP: int, the positions of the queries; None: they are all L in order.
      bits_BHSQ: the mask of dropout, from `draw`; None where nothing drops.
      scale: of the probabilities that stay.
      shares: another stream reads the keys and values, those that are returned. The gradient that
        it gives them is then added within the backward kernel.

    A query that sees no key gets the mean of all values, as in plain attention; the gradient of its
    output must be zero. The shapes must satisfy `applies`. On other platforms than a TPU an
    interpreter runs the kernels, for tests.
    """
    (B, S, H, K), J = content_BSHK.shape, k_BJHK.shape[1]
    L = S if positions_BP is None else r_TNHK.shape[1] - J
    flags_BSJ = visible_B1SJ[:, 0] * jnp.int8(VISIBLE)
    if other_B1SJ is not None:
        flags_BSJ += other_B1SJ[:, 0] * jnp.int8(OTHER)
    T = len(r_TNHK)
    # From the second place on: the first is never read, and shifts begin at 0.
    r_TNHK = r_TNHK[:, 1 : J + L]
    r_TNHK = jnp.pad(r_TNHK, ((0, 0), (0, J + L - r_TNHK.shape[1]), (0, 0), (0, 0)))
    flat = [x.reshape(*x.shape[:2], H * K) for x in (k_BJHK, v_BJHK, r_TNHK)]
    queries = (_whole_blocks(x.reshape(B, S, H * K), 1) for x in (content_BSHK, position_BSHK))
    steps_BSW = None
    if positions_BP is not None:
        steps_BS = _whole_blocks(L - 1 - positions_BP.astype(jnp.int32), 1)
        steps_BSW = jnp.broadcast_to(steps_BS[..., None], (*steps_BS.shape, LANES))
    segments_BG8S = None
    if segments_BHS is not None:
        heads = LANES // K
        segments_BG8S = _whole_blocks(segments_BHS, 2).reshape(B, H // heads, heads, -1)
        missing = ((0, 0), (0, 0), (0, SUBLANES - heads), (0, 0))
        segments_BG8S = jnp.pad(segments_BG8S, missing)
    direction_B = jnp.arange(B, dtype=jnp.int32) // (B // T)
    constants = direction_B, _whole_blocks(flags_BSJ, 1), steps_BSW, bits_BHSQ
    found = _attend(*queries, *flat, segments_BG8S, constants, K, scale, shares)
    out_BSD, *read = found if shares else (found[0], *flat[:2])
    return out_BSD[:, :S].reshape(B, S, H, K), *(x.reshape(B, J, H, K) for x in read)


def draw(dropout: Dropout, shape: tuple[int, int, int, int], train: bool):
    """(the mask of dropout on probabilities [B, H, S, J] or None, the scale) for `attend`."""
    if not dropout.drops(train):
        return None, 1.0
    # Without the barrier a scanned layer draws them twice: for the kernel and for its residuals.
    return jax.lax.optimization_barrier(dropout.bits(shape)), dropout.scale


def applies(q_shape: tuple, k_shape: tuple, r_shape: tuple, rows_in_order: bool) -> bool:
    """Whether JAX traces this for a TPU of v5e or later, and the kernels take the shapes.

    The shapes are those of queries [B, S, H, K], keys [B, J, H, K] and distances [T, N, H, K]. Keys
    and the rows of a content stream come in whole registers. Each device must get whole rows, and
    heads that fill registers.
    """
    (B, S, H, K), J, sizes = q_shape, k_shape[1], mesh_axes()
    L = S if rows_in_order else r_shape[1] - J
    rows = sizes.get(ROW_AXES[0], 1) * sizes.get(ROW_AXES[1], 1)
    return (
        on_tpu()
        and not _too_old()
        and L % LANES == J % LANES == 0
        and max(S, L) <= LONGEST
        and J <= MOST_KEYS
        and LANES % K == 0
        and K * SUBLANES >= LANES
        and B % rows == H * K % (LANES * sizes.get(HEAD_AXIS, 1)) == 0
    )


def _too_old() -> bool:
    """Whether the devices cannot rotate each row of a register by its own number of lanes."""
    device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
    return device.device_kind in ("TPU v2", "TPU v3", "TPU v4")


def _whole_blocks(x, axis: int):
    """`x` with zeros along an axis, to blocks of LANES rows or to one with fewer."""
    unit = PACKED if x.shape[axis] <= LANES else LANES
    missing = [(0, -x.shape[i] % unit if i == axis else 0) for i in range(x.ndim)]
    return jnp.pad(x, missing)


# ----------------------------------------------------------------------------- with its gradient


@functools.partial(jax.custom_vjp, nondiff_argnums=(7, 8, 9))
def _attend(
    content_BSD, position_BSD, k_BJD, v_BJD, r_TND, segments, constants, width, scale, shares=False
):
    inputs = content_BSD, position_BSD, k_BJD, v_BJD, r_TND, segments, constants
    return _forward(*inputs, width, scale, shares)[0]


def _forward(
    content_BSD, position_BSD, k_BJD, v_BJD, r_TND, segments, constants, width, scale, shares
):
    direction_B, flags_BSJ, steps_BSW, bits_BHSQ = constants
    B, S, D = content_BSD.shape
    arrays = dict(
        content=content_BSD, position=position_BSD, k=k_BJD, v=v_BJD, r=r_TND,
        segments=segments, flags=flags_BSJ, steps=steps_BSW, bits=bits_BHSQ,
    )  # fmt: skip
    results = dict(
        out=jax.ShapeDtypeStruct((B, S, D), content_BSD.dtype),
        log=jax.ShapeDtypeStruct((B, D // LANES, SUBLANES, S), jnp.float32),
    )
    name = names(steps_BSW is None)[0]
    found = run(name, _forward_kernel, direction_B, arrays, results, width, scale, products=3)
    out_BSD, log_BG8S, bits_BHSQ = checkpoint_name(
        (found["out"], found["log"], bits_BHSQ), RESIDUALS
    )
    constants = direction_B, flags_BSJ, steps_BSW, bits_BHSQ
    inputs = content_BSD, position_BSD, k_BJD, v_BJD, r_TND, segments
    results = out_BSD, *((k_BJD, v_BJD) if shares else ())
    return results, (*inputs, constants, out_BSD, log_BG8S)


def _backward(width: int, scale: float, shares: bool, residuals, gradients):
    dout_BSD, dk_BJD, dv_BJD = gradients if shares else (*gradients, None, None)
    *inputs, constants, out_BSD, log_BG8S = residuals
    content_BSD, position_BSD, k_BJD, v_BJD, r_TND, segments = inputs
    direction_B, flags_BSJ, steps_BSW, bits_BHSQ = constants
    arrays = dict(
        content=content_BSD, position=position_BSD, k=k_BJD, v=v_BJD, r=r_TND,
        segments=segments, flags=flags_BSJ, steps=steps_BSW, bits=bits_BHSQ,
        out=out_BSD, dout=dout_BSD, log=log_BG8S, more_dk=dk_BJD, more_dv=dv_BJD,
    )  # fmt: skip
    T, N, D = r_TND.shape
    results = dict(
        dcontent=content_BSD, dposition=position_BSD, dk=k_BJD, dv=v_BJD,
        dr=jax.ShapeDtypeStruct((T, D, N), jnp.float32),  # the sum over all rows of a direction
        dsegments=segments,
    )  # fmt: skip
    name = names(steps_BSW is None)[1]
    found = run(name, _backward_kernel, direction_B, arrays, results, width, scale, products=8)
    found["dr"] = found["dr"].swapaxes(1, 2).astype(r_TND.dtype)
    return *(found.get(name) for name in results), None


_attend.defvjp(_forward, _backward)


def names(rows_in_order: bool) -> tuple[str, str]:
    """Of the two kernels: those of a query stream have cycles of their own."""
    kind = "" if rows_in_order else "_query"
    return FORWARD + kind, BACKWARD + kind


# ------------------------------------------------------------------------------------ the kernels


def _forward_kernel(direction_ref, ref: dict, *, width: int, scale: float):
    del direction_ref
    v_JW = ref["v"][...]
    R = _rows(ref)
    for block in range(ref["content"].shape[0] // R):
        rows = pl.ds(block * R, R)
        lane_RW = jax.lax.broadcasted_iota(jnp.int32, (R, LANES), 1)
        out_RW = log_RW = jnp.zeros((R, LANES), jnp.float32)
        scores_of = _scores(ref, block, width)
        for head in range(LANES // width):
            scores_RJ = scores_of(head)
            most_R1 = scores_RJ.max(-1, keepdims=True)
            exp_RJ = jnp.exp(scores_RJ - most_R1)
            sum_R1 = exp_RJ.sum(-1, keepdims=True)
            if "bits" in ref:
                exp_RJ = jnp.where(_kept(ref, head, block), exp_RJ, 0)
            head_RW = product(exp_RJ.astype(v_JW.dtype), v_JW, NN) * (scale / sum_R1)
            out_RW += only(head, width, head_RW)
            log_RW = jnp.where(lane_RW == head, most_R1 + jnp.log(sum_R1), log_RW)
        ref["out"][rows] = out_RW.astype(ref["out"].dtype)
        ref["log"][0, :, rows] = log_RW.T[:SUBLANES]  # a head a row


def _backward_kernel(direction_ref, ref: dict, *, width: int, scale: float):
    """Gradients of keys, values and distances are summed transposed: small arrays turn, not big."""
    row, dtype = pl.program_id(1), ref["content"].dtype
    first = (row == 0) | (direction_ref[row] != direction_ref[jnp.maximum(row - 1, 0)])

    @pl.when(first)
    def _():
        ref["dr"][...] = jnp.zeros_like(ref["dr"])

    J = ref["k"].shape[0]
    dk_WJ, dv_WJ = ([jnp.zeros((width, J), jnp.float32)] * (LANES // width) for _ in "kv")
    R = _rows(ref)
    for block in range(ref["content"].shape[0] // R):
        rows, window = pl.ds(block * R, R), _window(ref, block)
        content_RW, position_RW, dout_RW = (
            ref[name][rows] for name in ("content", "position", "dout")
        )
        both_RW = ref["out"][rows].astype(jnp.float32) * dout_RW.astype(jnp.float32)
        dout_RW = (dout_RW * jnp.asarray(scale, dtype)).astype(dtype)
        content_WR, position_WR, dout_WR = (x.T for x in (content_RW, position_RW, dout_RW))
        log_R8 = ref["log"][0, :, rows].T
        lane_RW = jax.lax.broadcasted_iota(jnp.int32, (R, LANES), 1)
        dcontent_RW = dposition_RW = dsegments_RW = jnp.zeros((R, LANES), jnp.float32)
        steps_RW, scores_of = _steps(ref, block), _scores(ref, block, width)
        for head in range(LANES // width):
            lanes = slice(head * width, (head + 1) * width)
            # The mean gradient of a row's probabilities: output times its gradient.
            mean_R1 = only(head, width, both_RW).sum(-1, keepdims=True)
            probs_RJ = jnp.exp(scores_of(head) - log_R8[:, head : head + 1])
            dkept_RJ = product(only(head, width, dout_RW), ref["v"][...], NT)
            kept_RJ = probs_RJ
            if "bits" in ref:
                keep_RJ = _kept(ref, head, block)
                kept_RJ, dkept_RJ = (jnp.where(keep_RJ, x, 0) for x in (kept_RJ, dkept_RJ))
            dscores_RJ = probs_RJ * (dkept_RJ - mean_R1)
            if "segments" in ref:
                other_RJ = ref["flags"][rows].astype(jnp.int32) & OTHER != 0
                sum_R1 = jnp.where(other_RJ, dscores_RJ, 0).sum(-1, keepdims=True)
                dsegments_RW = jnp.where(lane_RW == head, sum_R1, dsegments_RW)
            moved_RC = moved_back(dscores_RJ, steps_RW, _reach(ref)).astype(dtype)
            dscores_RJ, kept_RJ = dscores_RJ.astype(dtype), kept_RJ.astype(dtype)
            dcontent_RW += only(head, width, product(dscores_RJ, ref["k"][...], NN))
            dposition_RW += only(head, width, product(moved_RC, ref["r"][window], NN))
            dk_WJ[head] += product(content_WR[lanes], dscores_RJ, NN)
            dv_WJ[head] += product(dout_WR[lanes], kept_RJ, NN)
            ref["dr"][lanes, window] += product(position_WR[lanes], moved_RC, NN)
        ref["dcontent"][rows] = dcontent_RW.astype(dtype)
        ref["dposition"][rows] = dposition_RW.astype(dtype)
        if "segments" in ref:
            ref["dsegments"][0, :, rows] = dsegments_RW.T[:SUBLANES]
    for name, sums in (("dk", dk_WJ), ("dv", dv_WJ)):
        sum_JW = jnp.concatenate(sums).T
        if (more := f"more_{name}") in ref:  # of another stream
            sum_JW += ref[more][...].astype(jnp.float32)
        ref[name][...] = sum_JW.astype(dtype)


def _scores(ref: dict, block: int, width: int):
    """A function from a head to the masked scores [R, J] of a block."""
    R, J = _rows(ref), ref["k"].shape[0]
    rows = pl.ds(block * R, R)
    flags_RJ = ref["flags"][rows].astype(jnp.int32)
    steps_RW = _steps(ref, block)

    def of(head: int):
        content_RW = only(head, width, ref["content"][rows])
        position_RW = only(head, width, ref["position"][rows])
        by_distance_RC = product(position_RW, ref["r"][_window(ref, block)], NT)
        scores_RJ = product(content_RW, ref["k"][...], NT)
        if "steps" in ref:
            scores_RJ += moved(by_distance_RC, steps_RW, J)
        else:
            C = by_distance_RC.shape[1]
            scores_RJ += pltpu.roll(by_distance_RC, C - R + 1, 1, stride=1, stride_axis=0)[:, :J]
        if "segments" in ref:
            segments_R1 = ref["segments"][0, :, rows].T[:, head : head + 1]
            scores_RJ += jnp.where(flags_RJ & OTHER != 0, segments_R1, 0)
        return jnp.where(flags_RJ & VISIBLE != 0, scores_RJ, HIDDEN)

    return of


def _kept(ref: dict, head: int, block: int):
    """The mask of dropout of a block and head, bool [R, J].

    Bit i of a byte is that of quarter i of the keys, as `dropout.keep_bits` has them. Four rows of
    bytes are one of words, and the quarters move to their places as words.
    """
    R, J = _rows(ref), ref["k"].shape[0]
    words = pltpu.bitcast(ref["bits"][head, pl.ds(block * R, R)], jnp.int32)
    none = jnp.zeros((R // 4, LANES), jnp.int32)
    if missing := -words.shape[1] % LANES:
        words = jnp.concatenate([words, none[:, :missing]], axis=1)
    tiles = [none] * (J // LANES + 1)
    for quarter in range(4):
        first, ahead = divmod(J // 4 * quarter, LANES)
        own = words & (0x01010101 << quarter)
        if ahead:
            own = pltpu.roll(jnp.concatenate([own, none], axis=1), ahead, 1)
        for i in range(0, own.shape[1], LANES):
            if (at := first + i // LANES) < len(tiles):
                tiles[at] |= own[:, i : i + LANES]
    bytes_RJ = pltpu.bitcast(jnp.concatenate(tiles[:-1], axis=1), jnp.uint8)
    return bytes_RJ.astype(jnp.int32) != 0


# -------------------------------------------------------------------------------------- the blocks


def _rows(ref: dict) -> int:
    """Queries in a block: with LANES, the last bits of a shift are those within a register."""
    return min(LANES, ref["content"].shape[0])


def _reach(ref: dict) -> int:
    """How many places the rows of a block may be apart: no row moves so far."""
    return ref["r"].shape[0] - ref["k"].shape[0] if "steps" in ref else LANES


def _window(ref: dict, block: int):
    """The places by distance of a block's rows: all of them where any position may be in it."""
    N, J = ref["r"].shape[0], ref["k"].shape[0]
    reach = _reach(ref)
    return pl.ds(0 if "steps" in ref else N - J - (block + 1) * LANES, J + reach)


def _steps(ref: dict, block: int):
    """How far each row of a block moves, the same in all lanes: int32 [R, W]."""
    if "steps" in ref:
        return ref["steps"][pl.ds(block * _rows(ref), _rows(ref))]
    return LANES - 1 - jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), 0)
