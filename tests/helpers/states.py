"""Small train states on meshes, for the tests of checkpoints."""

import jax
import numpy as np

from firth.training.partition import create_mesh, shardings_of


def make_state(seed, width=16):
    """A small state with every kind of leaf, values of every kind among them."""
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(8, width)).astype(np.float32)
    kernel[0, :5] = [np.inf, -np.inf, -0.0, 1e-45, np.nan]
    moments = {"mlp_in": {"kernel": rng.random((8, width), np.float32), "bias": np.zeros(width)}}
    return {
        "step": np.int32(seed),
        "params": {"mlp_in": {"kernel": kernel, "bias": rng.random(width, np.float32)}},
        "opt_state": {"count": np.int32(seed), "mu": jax.tree.map(np.float32, moments)},
    }


def mesh(data=2, fsdp=2, tensor=2):
    sizes = dict(data=data, fsdp=fsdp, tensor=tensor)
    return create_mesh(sizes, jax.devices()[: data * fsdp * tensor])


def on(over, state):
    """The state on a mesh, and its shapes with their shardings."""
    shardings = shardings_of(state, over)
    shapes = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings
    )

    def lay(leaf, sharding):
        whole = np.asarray(leaf)  # not device_put: between processes, it finds NaN unequal
        return jax.make_array_from_callback(whole.shape, sharding, whole.__getitem__)

    return jax.tree.map(lay, state, shardings), shapes


def assert_same_bytes(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
