"""The relative shift of single positions, in each way that it is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firth.layers.relative import _by_halves, _by_slices


@pytest.mark.parametrize(("length", "memory"), [(8, 0), (8, 5), (11, 3), (1, 2)])
def test_each_position_gets_its_window_and_gives_its_gradient(length, memory):
    """Place j of a window is place length - position + j of a row by distance."""
    keys, rng = memory + length, np.random.default_rng(0)
    scores = rng.normal(size=(2, 3, 4, keys + length)).astype(np.float32)
    dout = rng.normal(size=(2, 3, 4, keys)).astype(np.float32)
    positions = rng.integers(0, length, (2, 4))
    positions[0, :2] = 0, length - 1
    expected, grad = np.zeros_like(dout), np.zeros_like(scores)
    for row, place in np.ndindex(positions.shape):
        first = length - positions[row, place]
        window = slice(first, first + keys)
        expected[row, :, place] = scores[row, :, place, window]
        grad[row, :, place, window] = dout[row, :, place]
    for way in (_by_halves, _by_slices):

        def run(scores, way=way):
            return way(scores, jnp.asarray(positions), length, keys)

        found, pull = jax.vjp(run, scores)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(pull(dout)[0], grad)
