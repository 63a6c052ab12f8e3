"""Attention: plain XLA against cuDNN, first that both compute the same, then how long they take.

A cell is one way of computing one shape, under one mask, with or without dropout. cuDNN has no
dropout of its own in JAX, so that cell says so and is skipped.
"""

import itertools

SHAPES = ((512, 128, 12, 64), (128, 512, 12, 64), (64, 512, 16, 64))  # rows, tokens, heads, width
TINY = ((2, 16, 2, 8),)
MASKS = ("none", "padding", "blocks")
WAYS = ("plain", "cudnn")
SECONDS = 0.5  # that a measurement lasts, at least


def cells(tiny: bool, rounds: int) -> list[dict]:
    """Both ways in turn, round by round."""
    shapes = TINY if tiny else SHAPES
    return [
        {"shape": list(shape), "mask": mask, "rate": rate, "way": way, "round": number}
        for number, shape, mask, rate, way in itertools.product(
            range(rounds), shapes, MASKS[1:2] if tiny else MASKS, (0.0, 0.1), WAYS
        )
        if rate == 0.0 or mask == "padding"
    ]


def measure(cell: dict, args) -> dict:
    """{"forward_ms", "both_ms"}: forward, and forward and backward; or why it is skipped."""
    import jax
    import jax.numpy as jnp

    from firth.layers import cudnn
    from firth.layers.attention import attend, check_cudnn
    from firth.layers.dropout import Dropout

    B, L, H, K = cell["shape"]
    if cell["way"] == "cudnn":
        why = "" if cudnn.on_cuda() else "no NVIDIA GPU"
        why = why or cudnn.unfit("bfloat16", K, cell["rate"])
        mask = "blocks" if cell["mask"] == "blocks" else "padding"
        if why := why or check_cudnn("bfloat16", K, (mask,)):
            return {"skipped": why}
    keys = jax.random.split(jax.random.key(0), 5)
    q, k, v, dout = (jax.random.normal(key, (B, L, H, K), jnp.bfloat16) for key in keys[:4])
    bias = bias_of(cell["mask"], B, L)

    def out(q, k, v):
        if cell["way"] == "cudnn":
            return cudnn.attend(q * K**-0.5, k, v, bias)
        scores = bias + jnp.einsum(
            "BLHK,BMHK->BHLM", q * K**-0.5, k, preferred_element_type=jnp.float32
        )

        def way(dropout):
            return attend(scores, v, dropout, train=True)[0]

        return Dropout(cell["rate"]).apply({}, rngs={"dropout": keys[4]}, method=way)

    def both(q, k, v):
        value, pull = jax.vjp(out, q, k, v)
        return value, pull(dout)

    return {
        name: round(1000 * seconds_of(jax.jit(function), (q, k, v)), 4)
        for name, function in (("forward_ms", out), ("both_ms", both))
    }


def bias_of(mask: str, B: int, L: int):
    """Rows half of which lack a quarter, or texts of three lengths packed into each row."""
    import jax.numpy as jnp

    from firth.layers.attention import MASKED, mask_to_bias

    if mask == "blocks":
        text_L = jnp.digitize(jnp.arange(L), jnp.array([L // 4, L // 2]))
        return jnp.where(text_L[:, None] == text_L, 0.0, MASKED)[None, None]
    short_B = jnp.arange(B) % 2 if mask == "padding" else jnp.zeros(B, int)
    return mask_to_bias(jnp.arange(L) < (L - short_B * (L // 4))[:, None])


def seconds_of(function, arguments) -> float:
    """Seconds of one call: the mean over at least SECONDS, after a call that compiles."""
    import time

    import jax

    jax.block_until_ready(function(*arguments))
    count = 1
    while True:
        began = time.perf_counter()
        for _ in range(count):
            found = function(*arguments)
        jax.block_until_ready(found)
        spent = time.perf_counter() - began
        if spent > SECONDS or count >= 4096:
            return spent / count
        count *= 4
