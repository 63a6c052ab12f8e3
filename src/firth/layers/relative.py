"""Attention with relative positions and memory: Transformer-XL and XLNet.

Dai et al. 2019, section 3.3; Yang et al. 2019, sections 2.3 to 2.6. B rows, L length, P predicted
positions, M memory, J = M + L keys, R relative positions, D model width, H heads, K head width.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.layers.attention import MASKED, attend
from firth.layers.dropout import Dropout
from firth.layers.kernels import fused_relative
from firth.layers.transformer import (
    ACTIVATIONS,
    dense,
    initializer,
    layer_norm,
    run_layers,
)


class Context(NamedTuple):
    """What all layers share.

    distances: encodings of the relative positions [T, R, D]. T is 2 where the second half of the
      rows runs backwards, otherwise 1.
    visible: bool [B, 1, L, J], the keys that each position of the content stream sees.
    other: bool [B, 1, L, J], the keys of another segment; None where there are no segments.
    query: the same two for the query stream [B, 1, P, J], and its positions int [B, P]; None where
      there is no query stream.
    biases: the biases on the query for content and position scores [H, K] that all layers share;
      None where each has its own.
    """

    distances: jax.Array
    visible: jax.Array
    other: jax.Array | None = None
    query: Any = None
    biases: Any = None


def sinusoids(distances_R, width: int):
    """Encodings float32 [R, width] of distances: sines in the first half, cosines in the second."""
    rates = 1 / 10000 ** (jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = distances_R.astype(jnp.float32)[:, None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def distances(length: int, memory: int, causal: bool, clamp: int = 0):
    """Distances query - key, int [R], from the farthest key before to the farthest one after.

    Row i of the scores by distance holds the scores of its keys from place `length` - i on.
    """
    last = -1 if causal else -length
    steps_R = jnp.arange(memory + length, last, -1)
    return jnp.clip(steps_R, -clamp, clamp) if clamp else steps_R


def shift(scores_BHLR, keys: int):
    """Turn scores by distance [B, H, L, R] into scores by key [B, H, L, J], without a gather.

    In one line of all rows, the part of each row that has keys begins R - 1 places after that of
    the row before (Dai et al. 2019, appendix B).
    """
    *outer, L, R = scores_BHLR.shape
    line = scores_BHLR.reshape(*outer, R, L)[..., 1:, :]
    return line.reshape(*outer, L, R - 1)[..., :keys]


def shift_at(scores_BHPR, positions_BP, length: int, keys: int):
    """The same for the rows of some positions: a window of each row [B, H, P, J].

    Scores must extend as far to the right as to the left, which those of a causal model do not.
    """

    shape = {"length": length, "keys": keys}
    return jax.lax.platform_dependent(
        scores_BHPR,
        positions_BP,
        tpu=functools.partial(_by_halves, **shape),
        default=functools.partial(_by_slices, **shape),
    )


def _by_slices(scores_BHPR, positions_BP, length: int, keys: int):
    def window(row_HR, position):
        return jax.lax.dynamic_slice_in_dim(row_HR, length - position, keys, axis=1)

    windows = jax.vmap(jax.vmap(window, in_axes=(1, 0), out_axes=1))
    return windows(scores_BHPR, positions_BP)


def _by_halves(scores_BHPR, positions_BP, length: int, keys: int):
    """The same by selections: a slice a row is a loop over all rows on a TPU.

    Bit by bit of how far a row's window lies from the last place, the row moves on or stays.
    """
    steps_B1P1 = (length - 1 - positions_BP)[:, None, :, None]
    bits = (length - 1).bit_length()
    missing = max(0, keys + 2**bits - scores_BHPR.shape[-1])
    x = jnp.pad(scores_BHPR[..., 1:], ((0, 0), (0, 0), (0, 0), (0, missing)))
    for bit in reversed(range(bits)):
        stays, moves = x[..., : -(1 << bit)], x[..., 1 << bit :]
        x = jnp.where(steps_B1P1 >> bit & 1, moves, stays)
    return x[..., :keys]


def create_context(config, mask_BL, segments_BL, memory, order, shape) -> Context:
    """Which keys each position sees: a `Context` with distances still to be set.

    Args:
      mask_BL, segments_BL: as an encoder has them, or None.
      memory: from `empty_memory` or `remember`, or None. It counts as segment 0.
      order: (ranks [B, L], positions [B, P]) of a factorization order, or None.
      shape: (B, L, M).
    """
    c, (B, L, M) = config, shape
    if mask_BL is None:
        mask_BL = jnp.ones((B, L), bool)
    place_L, place_J = jnp.arange(L), jnp.arange(M + L) - M
    inside_BLL = jnp.broadcast_to(mask_BL[:, None, :], (B, L, L))
    if c.causal:
        inside_BLL &= place_L[:, None] >= place_L
    if order is not None:
        ranks_BL, positions_BP = order
        rank_BP = jnp.take_along_axis(ranks_BL, positions_BP, axis=1)
        before_BPL = mask_BL[:, None, :] & (ranks_BL[:, None, :] < rank_BP[..., None])
        inside_BLL &= ranks_BL[:, None, :] <= ranks_BL[:, :, None]
    inside_BLL |= place_L[:, None] == place_L  # padding, too, must see something
    filled_B = jnp.zeros(B, jnp.int32) if memory is None else memory["filled"]
    remembered_BM = jnp.arange(M) >= M - filled_B[:, None]
    if segments_BL is None:
        segments_BL = jnp.zeros((B, L), jnp.int32)
    segments_BJ = jnp.pad(segments_BL, ((0, 0), (M, 0)))

    def of(inside_BSL, segments_BS):
        past_BSM = jnp.broadcast_to(remembered_BM[:, None], (B, inside_BSL.shape[1], M))
        visible = jnp.concatenate([past_BSM, inside_BSL], axis=2)[:, None]
        if not c.segments:
            return visible, None
        return visible, (segments_BS[:, :, None] != segments_BJ[:, None])[:, None]

    visible, other = of(inside_BLL, segments_BL)
    if c.causal and c.same_length and M:
        visible &= place_L[:, None] - place_J <= M
    if order is None:
        return Context(None, visible, other)
    query = of(before_BPL, jnp.take_along_axis(segments_BL, positions_BP, 1))
    return Context(None, visible, other, (*query, positions_BP))


def empty_memory(config, rows: int, length: int) -> dict:
    """Empty memory with room for `length` positions of each row.

    hidden: [rows, N, length, D], the inputs of each layer. filled: int32 [rows], how many places
    hold a position, counted from the end.
    """
    shape = (rows, config.num_layers, length, config.hidden_size)
    return {"hidden": jnp.zeros(shape, config.dtype), "filled": jnp.zeros(rows, jnp.int32)}


def remember(memory: dict, inputs_NBLD, kept: int | None = None) -> dict:
    """The memory with the first `kept` positions of a segment appended; without gradient."""
    old, M = memory["hidden"], memory["hidden"].shape[2]
    new = jnp.moveaxis(inputs_NBLD[:, :, :kept], 0, 1)
    hidden = jnp.concatenate([old, new], axis=2)[:, :, new.shape[2] :]
    filled = jnp.minimum(memory["filled"] + new.shape[2], M)
    return jax.lax.stop_gradient({"hidden": hidden, "filled": filled})


class RelativeAttention(nn.Module):
    """Attention of one stream, or of a content and a query stream that share all weights.

    Parameters are as in the released models: projections [D, H, K] without biases, and biases on
    the query for content, position and (where the family has segments) segment scores [H, K].
    """

    config: object

    @nn.compact
    def __call__(self, x_BLD, query_BPD, past_BMD, context: Context, *, train: bool):
        """Attend; returns (content [B, L, D], query [B, P, D] or None, probabilities).

        Probabilities are those of the content stream before dropout, [B, H, L, J].
        """
        c = self.config
        D, H = c.hidden_size, c.num_heads
        K = D // H
        init = initializer(c)

        def kernel(name):
            return self.param(name, init, (D, H, K)).astype(c.dtype)

        def bias(name, shape=(H, K)):
            return self.param(name, init, shape).astype(c.dtype)

        query, output = kernel("query"), kernel("output")
        keys_BJD = x_BLD if past_BMD is None else jnp.concatenate([past_BMD, x_BLD], axis=1)
        k_BJHK = jnp.einsum("BJD,DHK->BJHK", keys_BJD, kernel("key"))
        v_BJHK = jnp.einsum("BJD,DHK->BJHK", keys_BJD, kernel("value"))
        r_TRHK = jnp.einsum("TRD,DHK->TRHK", context.distances, kernel("relative"))
        biases = context.biases or (bias("content_bias"), bias("position_bias"))
        content_bias, position_bias = biases
        if c.segments:
            segment_bias = bias("segment_bias")
            segment_2HK = bias("segment_embedding", (2, H, K))
        drop = Dropout(c.attention_dropout)
        length, J = x_BLD.shape[1], keys_BJD.shape[1]

        def fuses(q_BSHK, in_order: bool) -> bool:
            shapes = q_BSHK.shape, k_BJHK.shape, r_TRHK.shape
            return c.fused_attention and fused_relative.applies(*shapes, in_order)

        def stream(q_BSHK, visible, other, positions_BP=None, kv=(), mask=(), shares=False):
            """One stream; S is L, or P where `positions_BP` says which positions they are.

            With `mask`, of the dropout, the kernels compute it from the keys and values `kv`.

            Returns the output, the probabilities, and the (keys, values) for another stream.
            """
            q_BSHK *= K**-0.5

            def biased(bias_HK):
                return q_BSHK + bias_HK * K**-0.5

            def scored(bias_HK):
                return biased(bias_HK).swapaxes(1, 2)

            scores = jnp.einsum(
                "BHSK,BJHK->BHSJ",
                scored(content_bias),
                k_BJHK,
                preferred_element_type=jnp.float32,
            )
            q_BHSK = scored(position_bias)
            T = len(r_TRHK)
            by_distance = jnp.einsum(
                "TBHSK,TRHK->TBHSR",
                q_BHSK.reshape(T, -1, *q_BHSK.shape[1:]),
                r_TRHK,
                preferred_element_type=jnp.float32,
            )
            by_distance = by_distance.reshape(*q_BHSK.shape[:3], -1)
            if positions_BP is None:
                scores += shift(by_distance, J)
            else:
                scores += shift_at(by_distance, positions_BP, length, J)
            more_BHS = None
            if other is not None:
                same_or_other = jnp.einsum(
                    "BHSK,XHK->XBHS",
                    scored(segment_bias),
                    segment_2HK,
                    preferred_element_type=jnp.float32,
                )
                more_BHS = same_or_other[1] - same_or_other[0]
                same_or_other = same_or_other[..., None]
                scores += jnp.where(other, same_or_other[1], same_or_other[0])
            scores = jnp.where(visible, scores, MASKED)
            if mask:
                out_BSHK, *kv = fused_relative.attend(
                    biased(content_bias),
                    biased(position_bias),
                    *kv,
                    r_TRHK,
                    more_BHS,
                    visible,
                    other,
                    positions_BP,
                    *mask,
                    shares=shares,
                )
                probs = jax.nn.softmax(scores, axis=-1)  # compiled only where it is used
            else:
                out_BSHK, probs = attend(scores, v_BJHK, drop, train=train)
            if positions_BP is not None:  # the first token of a factorization order may see nothing
                out_BSHK *= visible.any(-1)[..., None].swapaxes(1, 2)
            return jnp.einsum("BSHK,DHK->BSD", out_BSHK, output), probs, kv

        q_BLHK = jnp.einsum("BLD,DHK->BLHK", x_BLD, query)
        q_BPHK = None
        if query_BPD is not None:
            q_BPHK = jnp.einsum("BPD,DHK->BPHK", query_BPD, query)
        seen, kv = (context.visible, context.other, None), (k_BJHK, v_BJHK)
        masks = [(), ()]
        if fuses(q_BLHK, True) and (q_BPHK is None or fuses(q_BPHK, False)):
            queries = [q for q in (q_BLHK, q_BPHK) if q is not None]
            shapes = [(len(q), H, q.shape[1], J) for q in queries]
            masks = [fused_relative.draw(drop, shape, train) for shape in shapes]
        if q_BPHK is None:
            out_BLD, probs_BHLJ, _ = stream(q_BLHK, *seen, kv, masks[0])
            return out_BLD, None, probs_BHLJ
        if not masks[0]:  # the content stream draws its dropout first
            out_BLD, probs_BHLJ, _ = stream(q_BLHK, *seen)
            return out_BLD, stream(q_BPHK, *context.query)[0], probs_BHLJ
        # The query stream comes first: nothing may read the other one, which then is left out.
        out_BPD, _, kv = stream(q_BPHK, *context.query, kv, masks[1], shares=True)
        out_BLD, probs_BHLJ, _ = stream(q_BLHK, *seen, kv, masks[0])
        return out_BLD, out_BPD, probs_BHLJ


class Block(nn.Module):
    """One post-norm layer over one or two streams, which share every weight."""

    config: object

    @nn.compact
    def __call__(self, streams, context: Context, train: bool, attentions: bool, past_BMD):
        """Return the new (content, query) and what the stack collects: (content, probabilities)."""
        c = self.config
        x_BLD, query_BPD = streams
        out_BLD, out_BPD, probs = RelativeAttention(c, name="attention")(
            x_BLD, query_BPD, past_BMD, context, train=train
        )
        attention_norm, mlp_norm = layer_norm(c, "attention_norm"), layer_norm(c, "mlp_norm")
        mlp_in, mlp_out = (
            dense(c, c.intermediate_size, "mlp_in"),
            dense(c, c.hidden_size, "mlp_out"),
        )
        drop = Dropout(c.dropout)

        def rest(x, out):
            x = attention_norm(x + drop(out, train=train))
            h = drop(ACTIVATIONS[c.activation](mlp_in(x)), train=train)
            return mlp_norm(x + drop(mlp_out(h), train=train))

        x_BLD = rest(x_BLD, out_BLD)
        query_BPD = None if query_BPD is None else rest(query_BPD, out_BPD)
        return (x_BLD, query_BPD), (x_BLD, probs if attentions else None)


class Stack(nn.Module):
    """`num_layers` blocks, each with its own part of the memory; see `transformer.run_layers`."""

    config: object

    @nn.compact
    def __call__(self, streams, context, past_NBMD, *, train: bool, attentions: bool):
        """Return (content, query), all content hidden states [N, B, L, D], and probabilities."""
        c = self.config
        if not c.untie_r:
            shape = (c.num_heads, c.hidden_size // c.num_heads)
            biases = tuple(
                self.param(name, initializer(c), shape).astype(c.dtype)
                for name in ("content_bias", "position_bias")
            )
            context = context._replace(biases=biases)
        return run_layers(c, Block, streams, context, train, attentions, past_NBMD)
