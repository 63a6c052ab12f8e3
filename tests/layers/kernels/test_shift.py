"""Moving the rows of a block, each by a number of places of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firth.layers.fused import LANES
from firth.layers.kernels.shift import moved, moved_back


@pytest.mark.parametrize("reach", [LANES, 2 * LANES, 3 * LANES, 4 * LANES])
def test_each_row_begins_at_a_place_of_its_own_and_goes_back(reach):
    rng, keys = np.random.default_rng(0), 2 * LANES
    scores = rng.normal(size=(LANES, keys + reach)).astype(np.float32)
    dout = rng.normal(size=(LANES, keys)).astype(np.float32)
    steps = rng.integers(0, reach, LANES)
    steps[:2] = 0, reach - 1
    lanes = jnp.broadcast_to(jnp.asarray(steps, jnp.int32)[:, None], (LANES, LANES))
    expected, grad = np.zeros_like(dout), np.zeros_like(scores)
    for row, step in enumerate(steps):
        expected[row] = scores[row, step : step + keys]
        grad[row, step : step + keys] = dout[row]
    found = jax.jit(moved, static_argnums=2)(scores, lanes, keys)
    np.testing.assert_array_equal(found, expected)
    found = jax.jit(moved_back, static_argnums=2)(dout, lanes, reach)
    np.testing.assert_array_equal(found, grad)
