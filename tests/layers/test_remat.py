"""What each policy of `remat` keeps for the backward pass, in the stack of every family."""

import jax
import jax.numpy as jnp
import pytest

from firth.layers.transformer import REMAT_POLICIES
from firth.models.model import create

B, L, D, F, N, H = 2, 16, 32, 48, 2, 4
SPEC = dict(vocab_size=40, num_layers=N, hidden_size=D, num_heads=H, intermediate_size=F)


def kept(name, remat, scan):
    """The shapes of what lies between the forward and the backward pass, and its size."""
    model = create(SPEC | dict(family=name, remat=remat, scan=scan))
    tokens = jnp.zeros((B, L), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]

    def last(params):
        return model.apply({"params": params}, tokens)[0].last

    _, pull = jax.eval_shape(lambda params: jax.vjp(last, params), params)
    leaves = jax.tree.leaves(pull)
    return {leaf.shape[-4:] for leaf in leaves}, sum(leaf.size for leaf in leaves)


@pytest.mark.parametrize(
    ("name", "scan"),
    [("bert", True), *((n, False) for n in ("bert", "albert", "modernbert", "gpt", "xlnet"))],
)
def test_each_policy_keeps_less_than_the_next(name, scan):
    policies = ("full", "dots", "all_dots", "none")
    assert {*policies} == {*REMAT_POLICIES, "none"}
    shapes, sizes = zip(*(kept(name, remat, scan) for remat in policies), strict=True)
    assert list(sizes) == sorted(set(sizes))
    assert [(B, H, L, L) in found for found in shapes] == [False, False, True, True]
