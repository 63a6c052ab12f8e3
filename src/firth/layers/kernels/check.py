"""Whether relative attention's kernels compute on this device what the plain way does."""

import types

import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.fused import LANES
from firth.layers.relative import RelativeAttention, create_context

NEAR = 0.05  # of the largest element: both round to bfloat16, each in its own order


def check_relative():
    """Raise FirthError unless the kernels of `fused_relative` agree with plain attention.

    Tests run the kernels in an interpreter and compile them for described chips. This runs both
    ways once, on the device that will train: two streams, two directions, memory, padding, segments
    and dropout, in bfloat16, with all gradients.
    """
    plain, kernels = (jax.device_get(_attend(fused)) for fused in (False, True))
    found = zip(jax.tree_util.tree_leaves_with_path(plain), jax.tree.leaves(kernels), strict=True)
    for (path, one), other in found:
        one, other = one.astype("float32"), other.astype("float32")
        if not abs(one - other).max() < NEAR * abs(one).max():  # nan fails too
            wrong = "/".join(str(key.key) for key in path if hasattr(key, "key"))
            raise FirthError(
                f"model.fused_attention=True: on this {jax.devices()[0].device_kind} the kernels' "
                f"{wrong} is not that of plain relative attention; set model.fused_attention=False"
            )


def _attend(fused: bool) -> dict:
    """{"output": of both streams, "gradient": {of each input and parameter}}, by kernels or not."""
    B, L, M, P, H, K = 2, 2 * LANES, LANES, LANES // 2, 2, LANES // 2
    D, J = H * K, M + L
    config = types.SimpleNamespace(
        hidden_size=D, num_heads=H, attention_dropout=0.1, dtype="bfloat16", segments=True,
        causal=False, init_stddev=0.3, truncated=False, fused_attention=fused,
    )  # fmt: skip
    keys = iter(jax.random.split(jax.random.key(0), 16))
    shapes = {"content": (B, L, D), "query": (B, P, D), "past": (B, M, D), "far": (2, J + L, D)}
    arrays = {name: jax.random.normal(next(keys), s, "bfloat16") for name, s in shapes.items()}
    mask_BL = jnp.arange(L) < jnp.array([[L], [L // 2 + 3]])
    segments_BL = jax.random.randint(next(keys), (B, L), 0, 2)
    ranks_BL, places_BL = (
        jnp.stack([jax.random.permutation(next(keys), L) for _ in range(B)]) for _ in range(2)
    )
    memory, order = {"filled": jnp.array([M, M // 2])}, (ranks_BL, places_BL[:, :P])
    context = create_context(config, mask_BL, segments_BL, memory, order, (B, L, M))
    layer = RelativeAttention(config)

    def given(arrays):
        inputs = (arrays[name] for name in ("content", "query", "past"))
        return *inputs, context._replace(distances=arrays["far"])

    @jax.jit
    def both():
        params = layer.init(jax.random.key(1), *given(arrays), train=False)

        def out(params, arrays):
            rngs = {"dropout": jax.random.key(2)}
            return layer.apply(params, *given(arrays), train=True, rngs=rngs)[:2]

        streams, pull = jax.vjp(out, params, arrays)
        seeds = tuple(jax.random.normal(jax.random.key(3), x.shape, x.dtype) for x in streams)
        parameters, inputs = pull(seeds)
        output = dict(zip(("content", "query"), streams, strict=True))
        return {"output": output, "gradient": {**parameters["params"], **inputs}}

    return both()
