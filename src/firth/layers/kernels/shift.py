"""Moving each row of an array by a number of places of its own, within a TPU kernel.

Within a register a row moves by a gather over its lanes, between registers by selections, a power
of two of registers at a time. Arrays have R rows, and C columns or, as scores by key,
J; W = LANES.
"""

import itertools

import jax
import jax.numpy as jnp

from firth.layers.fused import LANES


def moved(x_RC, steps_RW, keys: int):
    """Each row from place `steps` on, as many places as there are keys."""
    tiles = _tiles(x_RC)
    far = _far(steps_RW, len(tiles) - keys // LANES)
    missing = keys // LANES + (1 << len(far)) - len(tiles)
    tiles += [jnp.zeros(steps_RW.shape, x_RC.dtype)] * missing
    for step, moves_RW in far:
        tiles = [jnp.where(moves_RW, b, a) for a, b in zip(tiles, tiles[step:], strict=False)]
    lane_RW, near_RW = jax.lax.broadcasted_iota(jnp.int32, steps_RW.shape, 1), steps_RW % LANES
    places_RW = (lane_RW + near_RW) % LANES
    tiles = [jnp.take_along_axis(tile, places_RW, axis=1) for tile in tiles[: keys // LANES + 1]]
    stays_RW = lane_RW + near_RW < LANES
    return jnp.concatenate(
        [jnp.where(stays_RW, a, b) for a, b in itertools.pairwise(tiles)], axis=1
    )


def moved_back(x_RJ, steps_RW, reach: int):
    """The transpose of `moved`: each row begins at place `steps` of [R, J + reach] zeros."""
    lane_RW, near_RW = jax.lax.broadcasted_iota(jnp.int32, steps_RW.shape, 1), steps_RW % LANES
    places_RW = (lane_RW - near_RW) % LANES
    none = jnp.zeros(steps_RW.shape, x_RJ.dtype)
    tiles = [jnp.take_along_axis(tile, places_RW, axis=1) for tile in _tiles(x_RJ)]
    stays_RW = lane_RW >= near_RW
    tiles = [jnp.where(stays_RW, b, a) for a, b in itertools.pairwise([none, *tiles, none])]
    for step, moves_RW in reversed(_far(steps_RW, reach // LANES)):
        zeros = [none] * step
        tiles = [
            jnp.where(moves_RW, a, b)
            for a, b in zip([*zeros, *tiles], [*tiles, *zeros], strict=True)
        ]
    width = x_RJ.shape[1] + reach
    return jnp.concatenate(tiles, axis=1)[:, :width]


def _tiles(x_RC) -> list:
    """The columns of an array in whole registers."""
    return [x_RC[:, i : i + LANES] for i in range(0, x_RC.shape[1], LANES)]


def _far(steps_RW, tiles: int) -> list:
    """[(a power of two of registers, which rows move so many)], from the largest on."""
    bits = reversed(range((tiles - 1).bit_length()))
    return [(1 << bit, steps_RW & (LANES << bit) != 0) for bit in bits]
