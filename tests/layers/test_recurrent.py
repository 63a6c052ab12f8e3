"""The scan of recurrent layers: its own backward pass against plain differentiation of the scan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import jit

from firth.layers.recurrent import CELLS, unroll

L, B, H = 6, 3, 5


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_gradients_are_those_of_plain_differentiation(name, dropped, masked):
    gates, parts, cell = CELLS[name]
    rng = np.random.default_rng(0)

    def random(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    keep = jnp.asarray(rng.integers(0, 2, (B, H)) * 2.0, jnp.float32) if dropped else None
    mask = jnp.arange(L)[:, None] < jnp.array([L, 4, 0]) if masked else None
    weights = random(L, B, H), tuple(random(B, H) for _ in parts)
    given = random(L, B, gates, H), random(H, gates, H), tuple(random(B, H) for _ in parts)

    def loss(function):
        def of(given):
            out = function(cell, *given, keep, mask)
            products = jax.tree.map(jnp.vdot, out, weights)
            return sum(jax.tree.leaves(products))

        return jit(jax.value_and_grad(of))(given)

    own, plain = loss(unroll), loss(unroll.fun)
    for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_backward_scan_makes_no_gradient_of_the_kernel():
    """It would be added to in every step, as large as the kernel: one product makes it instead."""
    shapes = (L, B, 4, H), (H, 4, H)
    state = (jnp.zeros((B, H)),) * 2

    def loss(z, kernel):
        return unroll(CELLS["lstm"][2], z, kernel, state, None, None)[0].sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(*map(jnp.zeros, shapes)).jaxpr
    scans = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    assert len(scans) == 2
    for scan in scans:
        carried = scan.params["jaxpr"].jaxpr.outvars[: scan.params["num_carry"]]
        assert [v.aval.shape for v in carried] == [(B, H)] * 2
