"""Relative attention's TPU kernels against the plain way, in JAX's interpreter of kernels.

The plain way is that of transformers' XLNet (tests/models/test_xlnet.py, test_relative_dropout.py).
On a TPU the kernels themselves run, with `JAX_PLATFORMS=tpu pytest tests/layers/kernels`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import nightly
from helpers.quick import jit

from firth.errors import FirthError
from firth.layers import relative
from firth.layers.kernels import fused_relative
from firth.layers.kernels.check import check_relative
from firth.models import transformer_xl, xlnet
from firth.planning.compiler import topology
from firth.training.partition import create_mesh

B, L, P, D = 2, 256, 37, 256
LOOSE = 2e-2 if jax.default_backend() == "tpu" else 0  # products round to bfloat16 there


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    monkeypatch.setattr(fused_relative, "on_tpu", lambda: True)


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def config(kernels, family=xlnet, heads=4, rate=0.1, dtype="float32"):
    return family.Config(
        hidden_size=D, num_heads=heads, num_layers=1, attention_dropout=rate,
        fused_attention=kernels, dtype=dtype,
    )  # fmt: skip


def given(c, memory, directions=1, streams=2):
    """(x, query, past, distances) and the context of two rows, of which one is padded.

    The second row's memory is not full, and the first target of its order may see nothing.
    """
    rng = np.random.default_rng(0)
    places = memory + L + (1 if c.causal else L)
    past = normal(rng, B, memory, D) if memory else None
    arrays = normal(rng, B, L, D), normal(rng, B, P, D), past, normal(rng, directions, places, D)
    mask = jnp.arange(L) < jnp.array([[L], [200]])
    segments = jnp.asarray(rng.integers(0, 2, (B, L)), jnp.int32)
    ranks = jnp.asarray(np.stack([rng.permutation(L) for _ in range(B)]), jnp.int32)
    positions = jnp.asarray(np.stack([rng.permutation(L)[:P] for _ in range(B)]), jnp.int32)
    positions = positions.at[:, :2].set(jnp.array([0, L - 1]))  # the ends of the row
    ranks = ranks.at[1, 0].set(-1)  # sees no key but memory
    held = {"filled": jnp.array([memory, memory // 3])} if memory else None
    order = (ranks, positions) if streams == 2 else None
    context = relative.create_context(c, mask, segments, held, order, (B, L, memory))
    if streams == 1:
        arrays = arrays[0], None, *arrays[2:]
    return tuple(x if x is None else x.astype(c.dtype) for x in arrays), context


def attend(c, arrays, context, mesh=None):
    """(outputs, their gradients for the parameters and all inputs) of a layer's attention."""
    layer = relative.RelativeAttention(c)
    rng = np.random.default_rng(1)
    plain = relative.RelativeAttention(config(False, type_of(c), c.num_heads))

    def init(*arrays):
        context_ = context._replace(distances=arrays[-1])
        return plain.init(jax.random.key(0), *arrays[:-1], context_, train=False)

    if not c.untie_r:
        biases = tuple(normal(rng, c.num_heads, D // c.num_heads) for _ in "cp")
        context = context._replace(biases=biases)
    shapes = jax.eval_shape(init, *arrays)
    params = jax.tree.map(lambda leaf: 0.1 * normal(rng, *leaf.shape), shapes)

    def streams(params, *arrays):
        rngs = {"dropout": jax.random.key(7)}
        context_ = context._replace(distances=arrays[-1])
        found = layer.apply(params, *arrays[:-1], context_, train=True, rngs=rngs)
        return tuple(x for x in found[:2] if x is not None)

    def run(params, *arrays):
        out, pull = jax.vjp(streams, params, *arrays)
        seeds = (
            normal(np.random.default_rng(i), *x.shape).astype(x.dtype) for i, x in enumerate(out)
        )
        return out, pull(tuple(seeds))

    if mesh is None:
        return jax.device_get(jit(run)(params, *arrays))
    with jax.set_mesh(mesh):
        return jax.device_get(jit(run)(params, *arrays))


def type_of(c):
    return transformer_xl if isinstance(c, transformer_xl.Config) else xlnet


def assert_equal(found, expected):
    """Each array within 2e-5, of its largest element where that is above 1."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True)
    for (path, one), other in pairs:
        assert abs(one).max() > 0
        atol = (2e-5 + LOOSE) * max(1, abs(one).max())
        np.testing.assert_allclose(other, one, rtol=0, atol=atol, err_msg=str(path))


@pytest.mark.parametrize(
    ("memory", "directions", "streams", "heads", "rate"),
    [
        (128, 2, 2, 4, 0.1),
        nightly(0, 1, 2, 2, 0.0),
        nightly(256, 1, 1, 8, 0.1),
    ],
)
def test_equals_the_plain_way_with_its_gradients(memory, directions, streams, heads, rate):
    """Outputs of both streams, and gradients for every parameter and input."""
    plain, kernels = (config(whether, heads=heads, rate=rate) for whether in (False, True))
    arrays, context = given(plain, memory, directions, streams)
    assert_equal(attend(kernels, arrays, context), attend(plain, arrays, context))


def test_transformer_xl(monkeypatch):
    """Causal, without segments, with biases that layers share and distances to the left alone."""
    called = []
    given_ = fused_relative.attend
    monkeypatch.setattr(
        fused_relative, "attend", lambda *x, **fields: called.append(1) or given_(*x, **fields)
    )
    plain, kernels = (config(whether, transformer_xl, rate=0.2) for whether in (False, True))
    arrays, context = given(plain, 128, streams=1)
    expected = attend(plain, arrays, context)
    assert not called
    assert_equal(attend(kernels, arrays, context), expected)
    assert called


def test_on_several_devices():
    """Rows and heads are divided, and each device has one direction of two."""
    plain, kernels = config(False), config(True)
    arrays, context = given(plain, 128, directions=2)
    mesh = create_mesh({"data": 2, "fsdp": 1, "tensor": 2}, jax.devices()[:4])
    assert_equal(attend(kernels, arrays, context, mesh), attend(plain, arrays, context))


@pytest.mark.slow
@pytest.mark.nightly
def test_bfloat16_is_as_close_as_the_plain_way():
    exact = config(False, rate=0.0)
    arrays, context = given(exact, 128)
    expected = attend(exact, arrays, context)[0]
    found = {}
    for kernels in (False, True):
        c = config(kernels, rate=0.0, dtype="bfloat16")
        rounded = tuple(x.astype("bfloat16") for x in arrays)
        outputs = attend(c, rounded, context)[0]
        assert all(x.dtype == jnp.bfloat16 for x in outputs)
        pairs = zip(outputs, expected, strict=True)
        found[kernels] = max(abs(x.astype(np.float32) - y).max() for x, y in pairs)
    assert found[True] < 1.5 * found[False]


@pytest.mark.slow
def test_dropout_is_another_with_each_key_and_the_same_with_one():
    """A body of one layer in training, with all other dropout off."""
    c = config(True, rate=0.5)
    arrays, context = given(c, 0)
    layer = relative.RelativeAttention(c)
    context = context._replace(distances=arrays[-1])
    params = layer.init(jax.random.key(0), *arrays[:-1], context, train=False)
    run = jit(
        lambda key: layer.apply(params, *arrays[:-1], context, train=True, rngs={"dropout": key})[
            :2
        ]
    )
    one, again, other = (run(jax.random.key(seed)) for seed in (0, 0, 1))
    for number in range(2):
        np.testing.assert_array_equal(one[number], again[number])
        assert abs(one[number] - other[number]).max() > 1e-4


def test_what_is_kept_for_the_backward_pass():
    """Of the size of the scores: what is seen, a byte, and of dropout a byte for four of them."""
    c = config(True)
    arrays, context = given(c, 128)
    layer = relative.RelativeAttention(c)
    context = context._replace(distances=arrays[-1])
    params = layer.init(jax.random.key(0), *arrays[:-1], context, train=False)

    def out(x):
        rngs = {"dropout": jax.random.key(2)}
        return layer.apply(params, x, *arrays[1:-1], context, train=True, rngs=rngs)[:2]

    _, pull = jax.eval_shape(lambda x: jax.vjp(out, x), arrays[0])
    kept = {leaf.shape: leaf.dtype.itemsize for leaf in jax.tree.leaves(pull) if leaf.ndim}
    J, bits = L + 128, {(B, 4, L, (L + 128) // 4), (B, 4, P, (L + 128) // 4)}
    for shape in {(B, L, J), (B, 64, J), *bits}:
        assert kept.pop(shape) == 1
    assert not any(shape[-1] == J for shape in kept)


@pytest.mark.parametrize(
    ("q", "k", "r", "rows", "whether"),
    [
        ((2, 512, 12, 64), (2, 896, 12, 64), (2, 1408, 12, 64), True, True),
        ((2, 85, 12, 64), (2, 896, 12, 64), (2, 1408, 12, 64), False, True),
        ((2, 1024, 12, 64), (2, 2048, 12, 64), (1, 3072, 12, 64), True, True),
        ((2, 128, 1, 128), (2, 128, 1, 128), (1, 256, 1, 128), True, True),
        ((2, 500, 12, 64), (2, 884, 12, 64), (2, 1384, 12, 64), True, False),  # no whole registers
        ((2, 512, 12, 64), (2, 900, 12, 64), (2, 1412, 12, 64), True, False),
        ((2, 85, 12, 64), (2, 900, 12, 64), (2, 1412, 12, 64), False, False),
        ((2, 1152, 12, 64), (2, 1152, 12, 64), (2, 2304, 12, 64), True, False),  # too many rows
        ((2, 512, 12, 64), (2, 2176, 12, 64), (2, 2688, 12, 64), True, False),  # and keys
        ((2, 512, 11, 64), (2, 512, 11, 64), (1, 1024, 11, 64), True, False),  # half a register
        ((2, 512, 8, 96), (2, 512, 8, 96), (1, 1024, 8, 96), True, False),  # heads across two
        ((2, 512, 32, 8), (2, 512, 32, 8), (1, 1024, 32, 8), True, False),  # too many in one
    ],
)
def test_what_the_kernels_take(q, k, r, rows, whether):
    assert fused_relative.applies(q, k, r, rows) == whether


def test_what_each_device_must_be_able_to_take():
    shapes = (2, 512, 12, 64), (2, 896, 12, 64), (1, 1408, 12, 64), True
    for sizes, whether in (((2, 1, 2), True), ((4, 1, 1), False), ((1, 1, 4), False)):
        sizes = dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))
        devices = jax.devices()[: np.prod(list(sizes.values()))]
        with jax.set_mesh(create_mesh(sizes, devices)):
            assert fused_relative.applies(*shapes) == whether


def test_a_tpu_v4_cannot_shift_so():
    pytest.importorskip("libtpu")
    shapes = (2, 512, 12, 64), (2, 896, 12, 64), (2, 1408, 12, 64), True
    sizes = {"data": 1, "fsdp": 1, "tensor": 1}
    for name, whether in (("v4:1x1x1", False), ("v5e:1x1", True), ("v5p:1x1x1", True)):
        with jax.set_mesh(create_mesh(sizes, topology.devices(topology.parse(name))[:1])):
            assert fused_relative.applies(*shapes) == whether


def test_elsewhere_attention_is_computed_the_plain_way(monkeypatch):
    monkeypatch.undo()
    shapes = (2, 512, 12, 64), (2, 896, 12, 64), (2, 1408, 12, 64), True
    assert not fused_relative.applies(*shapes) or LOOSE


@pytest.mark.slow
@pytest.mark.nightly
def test_a_run_checks_the_kernels_on_its_own_device(monkeypatch):
    check_relative()
    moved_back = fused_relative.moved_back
    monkeypatch.setattr(
        fused_relative, "moved_back", lambda x, steps, reach: moved_back(x, steps * 0, reach)
    )
    jax.clear_caches()
    with pytest.raises(FirthError, match="kernels' gradient/content is not that of plain relative"):
        check_relative()
