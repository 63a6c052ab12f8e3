"""Less to compile, for code that runs once and on little data."""

import functools

import jax
import numpy as np

from helpers.compiler import OPTIONS

jit = functools.partial(jax.jit, compiler_options=OPTIONS)  # a third of the time to compile


def initial(module, *inputs, seed=0, scale=0.02, **options) -> dict:
    """Parameters as of `module.init`, drawn by numpy: matrices, norms of one, biases of zero.

    For tests that any values suit. `inputs` and `options` are those of the module.
    """
    init = functools.partial(module.init, **options)
    shapes = jax.eval_shape(init, jax.random.key(0), *inputs)["params"]
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name = path[-1].key
        drawn = rng.normal(0, scale, leaf.shape) if leaf.ndim > 1 else np.zeros(leaf.shape)
        return (np.ones(leaf.shape) if name == "scale" else drawn).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)
