"""Parameters that a program multiplies in bfloat16, rounded once instead of in every call.

A model keeps its parameters in float32 and rounds them where it multiplies (`layers.affine`). For
a few rows of text that takes longer than the products. What a function rounds is found in its
trace, so whatever else it does with a parameter stays as it is, and so does its result.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

KEPT = ("stop_gradient", "optimization_barrier")  # primitives that change no value


class Rounding(NamedTuple):
    """bfloat16 of a parameter: its number among the leaves, and the order of its axes."""

    leaf: int
    axes: tuple[int, ...]


@jax.jit(static_argnames="axes")
def rounded(parameter, axes: tuple[int, ...]):
    """The parameter in bfloat16, with its axes in this order."""
    return parameter.transpose(axes).astype(jnp.bfloat16)


def split(function: Callable, params, arrays) -> tuple[tuple[Rounding, ...], Callable]:
    """What `function(params, *arrays)` rounds, and a function that does the rest.

    Returns (roundings, rest): `rest(params, values, *arrays)` is the function's value, with the
    values of `roundings` in their order. Shapes may stand for arrays. What is rounded within a
    loop, or in a function that is compiled by itself, stays there.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(params, *arrays)
    jaxpr, count = closed.jaxpr, len(jax.tree.leaves(params))
    known = {
        variable: Rounding(leaf, tuple(range(variable.aval.ndim)))
        for leaf, variable in enumerate(jaxpr.invars[:count])
    }
    roundings, values, others = [], [], []
    for equation in jaxpr.eqns:
        name, given = equation.primitive.name, equation.invars
        one = len(given) == 1 and not isinstance(given[0], Literal) and known.get(given[0])
        if one and name in KEPT:
            known[equation.outvars[0]] = one
        elif one and name == "transpose":
            axes = tuple(one.axes[axis] for axis in equation.params["permutation"])
            known[equation.outvars[0]] = Rounding(one.leaf, axes)
        elif one and name == "convert_element_type" and equation.params["new_dtype"] == "bfloat16":
            roundings.append(one)
            values += equation.outvars
            continue
        others.append(equation)
    rest = jaxpr.replace(
        invars=[*jaxpr.invars[:count], *values, *jaxpr.invars[count:]],
        eqns=others,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    evaluate = jaxpr_as_fun(ClosedJaxpr(rest, closed.consts))

    def finish(params, values, *arrays):
        found = evaluate(*jax.tree.leaves(params), *values, *arrays)
        return jax.tree.unflatten(jax.tree.structure(shapes), found)

    return tuple(roundings), finish
