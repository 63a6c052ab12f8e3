"""bfloat16 on CPUs: XLA multiplies fast there only where the product itself is float32.

A product of bfloat16 arrays that is bfloat16 too runs on converted copies, slower than in float32.
"""

import functools
import time
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

FASTER = 1.05  # the least ratio of rates that counts as faster
TOKENS = 1024  # of the products that are timed


def wide_products(function: Callable) -> Callable:
    """The function, traced with float32 products in the dense layers of a bfloat16 model on a CPU.

    The sum with the bias is float32, too; then the layer's output is rounded as in any bfloat16
    model. On other platforms, and in models of another dtype, the function stays as it is.
    """

    @functools.wraps(function)
    def traced(*args):
        if jax.default_backend() != "cpu":
            return function(*args)
        with nn.intercept_methods(_widen):
            return function(*args)

    return traced


def _widen(method, args, kwargs, context):
    layer = context.module
    narrow = isinstance(layer, nn.Dense) and jnp.dtype(layer.dtype or "float32") == jnp.bfloat16
    if not narrow or context.method_name != "__call__" or layer.is_initializing():
        return method(*args, **kwargs)
    x, kernel = args[0].astype(jnp.bfloat16), layer.get_variable("params", "kernel")
    out = jnp.matmul(x, kernel.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    if layer.use_bias:
        out += layer.get_variable("params", "bias")
    return out.astype(jnp.bfloat16)


def narrow_kernels(params):
    """The parameters of a bfloat16 model with the kernels of its dense layers in bfloat16.

    Every use rounds them so. Without this a CPU does it again for every batch.
    """

    def narrow(path, leaf):
        return leaf.astype(jnp.bfloat16) if path[-1].key == "kernel" else leaf

    return jax.tree_util.tree_map_with_path(narrow, params)


def product_rates(width: int, features: int, rounds: int = 7) -> dict[str, float]:
    """{dtype: GFLOP/s} of the products of [1024, width] and [width, features] on this device."""
    multiply = jax.jit(lambda x, w: jnp.matmul(x, w, preferred_element_type=jnp.float32))
    operands, best = {}, {}
    for dtype in ("float32", "bfloat16"):
        operands[dtype] = jnp.ones((TOKENS, width), dtype), jnp.ones((width, features), dtype)
        multiply(*operands[dtype]).block_until_ready()
    for _ in range(rounds):  # in turn, so that other work on the machine slows both
        for dtype, arrays in operands.items():
            began = time.perf_counter()
            multiply(*arrays).block_until_ready()
            best[dtype] = min(best.get(dtype, 1e9), time.perf_counter() - began)
    return {dtype: 2e-9 * TOKENS * width * features / took for dtype, took in best.items()}


def not_faster(encoder) -> str | None:
    """What to tell who asked for bfloat16 on a CPU that is no faster with it; None elsewhere."""
    config = encoder.model.encoder.config
    if config.dtype != "bfloat16" or jax.default_backend() != "cpu":
        return None
    rates = product_rates(config.hidden_size, config.intermediate_size)
    if rates["bfloat16"] >= FASTER * rates["float32"]:
        return None
    return (
        f"bfloat16 is not faster than float32 on this CPU: its products reach "
        f"{rates['bfloat16']:.0f} GFLOP/s against {rates['float32']:.0f}"
    )
