"""Whether products in bfloat16 are faster on this CPU."""

import time

import jax
import jax.numpy as jnp

from firth.inference.encoder import Encoder

FASTER = 1.05  # the least ratio of rates that counts as faster
TOKENS = 1024  # of the products that are timed


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
    """What to tell who asked for bfloat16 on a CPU that is no faster with it; None elsewhere.

    Whatever is no `Encoder`, such as counted n-grams, computes nothing in bfloat16.
    """
    if not isinstance(encoder, Encoder) or encoder.model.products != "bfloat16":
        return None
    config = encoder.model.encoder.config
    width = config.hidden_size
    rates = product_rates(width, getattr(config, "intermediate_size", 4 * width))
    if rates["bfloat16"] >= FASTER * rates["float32"]:
        return None
    return (
        f"bfloat16 is not faster than float32 on this CPU: its products reach "
        f"{rates['bfloat16']:.0f} GFLOP/s against {rates['float32']:.0f}"
    )
