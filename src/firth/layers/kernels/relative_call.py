"""Calling a kernel of relative attention, on each device of a mesh for its own rows and heads.

Letters are those of `fused_relative`.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from firth.layers.fused import HEAD_AXIS, LANES, ROW_AXES, mesh_axes


def run(
    name: str, kernel, direction_B, arrays: dict, results: dict, width, scale, products: int
) -> dict:
    """Run a kernel for every group of heads and row of the batch, on each device for its own.

    `arrays` are the inputs by name and `results` the shapes of the outputs. Those that are None are
    left out. All rows of a direction add to one gradient of its distances. `products` is the number
    of products of the size of the scores.
    """
    arrays, results = (
        {name: x for name, x in named.items() if x is not None} for named in (arrays, results)
    )
    rows, heads, auto = None, None, mesh_axes()
    if auto:
        rows = tuple(axis for axis in ROW_AXES if axis in auto) or None
        heads = HEAD_AXIS if HEAD_AXIS in auto else None

    def local(direction_B, *inputs):
        (B, S, D), J = inputs[0].shape, inputs[2].shape[1]
        shapes = _of_one_device(results, inputs[0].shape)
        out = [jax.ShapeDtypeStruct(shapes[name], x.dtype) for name, x in results.items()]
        scores = B * S * J * D // width
        cost = pl.CostEstimate(
            flops=2 * products * scores * width,
            transcendentals=scores,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*inputs, *out)),
        )

        def named_kernel(direction_ref, *refs):
            named = dict(zip((*arrays, *results), refs, strict=True))
            kernel(direction_ref, named, width=width, scale=scale)

        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(D // LANES, B),
            in_specs=[_block(*named, D // LANES, S) for named in zip(arrays, inputs, strict=True)],
            out_specs=[_block(*named, D // LANES, S) for named in zip(results, out, strict=True)],
        )
        call = functools.partial(
            pl.pallas_call,
            named_kernel,
            out_shape=out,
            grid_spec=grid,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
            cost_estimate=cost,
            name=name,
        )
        given = direction_B, *inputs
        found = jax.lax.platform_dependent(*given, tpu=call(), default=call(interpret=True))
        found = dict(zip(results, found, strict=True))
        if "dr" in found:
            T = len(found["dr"])
            here_T = (direction_B == jnp.arange(T)[:, None]).any(1)  # others were never written
            found["dr"] = jnp.where(here_T[:, None, None], found["dr"], 0)
            found["dr"] = jax.lax.psum(found["dr"], rows) if rows else found["dr"]
        return found

    if not auto:
        return local(direction_B, *arrays.values())
    divided = jax.shard_map(
        local,
        in_specs=(P(rows), *(_spec(*named, rows, heads) for named in arrays.items())),
        out_specs={name: _spec(name, x, rows, heads) for name, x in results.items()},
        axis_names=set(auto),
        check_vma=False,
    )
    return divided(direction_B, *arrays.values())


def _of_one_device(results: dict, query_shape) -> dict[str, tuple[int, ...]]:
    """The shapes of the outputs for the rows and heads of one device."""
    B, _, D = query_shape
    whole_D = results["dr"].shape[1] if "dr" in results else results["out"].shape[2]
    shapes = {}
    for name, x in results.items():
        if name == "dr":
            shapes[name] = x.shape[0], D, x.shape[2]
        elif x.ndim == 3:
            shapes[name] = B, x.shape[1], D
        else:
            shapes[name] = B, x.shape[1] * D // whole_D, *x.shape[2:]
    return shapes


def _spec(name: str, x, rows, heads) -> P:
    """How an array is divided over a mesh: see `_block`."""
    if name in ("r", "dr"):
        return P(None, None, heads) if name == "r" else P(None, heads)
    if name in ("flags", "steps"):
        return P(rows)
    return P(rows, None, heads) if x.ndim == 3 else P(rows, heads)


def _block(name: str, x, groups: int, queries: int) -> pl.BlockSpec:
    """The part of an array that one call of a kernel gets: of a group of heads and a row.

    Distances and their gradient are those of the row's direction, and all groups share the flags.
    """
    if name == "r":
        return pl.BlockSpec((None, x.shape[1], LANES), lambda g, b, of: (of[b], 0, g))
    if name == "dr":
        return pl.BlockSpec((None, LANES, x.shape[2]), lambda g, b, of: (of[b], g, 0))
    if name in ("flags", "steps"):
        return pl.BlockSpec((None, *x.shape[1:]), lambda g, b, of: (b, 0, 0))
    if x.ndim == 3:
        return pl.BlockSpec((None, x.shape[1], LANES), lambda g, b, of: (b, 0, g))
    rows = x.shape[2]
    if name == "bits":  # rows that it lacks are read as anything: their queries are zeros
        rows += -rows % queries
    part = None, x.shape[1] // groups, rows, x.shape[3]
    return pl.BlockSpec(part, lambda g, b, of: (b, g, 0, 0))
