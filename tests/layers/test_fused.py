"""Attention's TPU kernels against the plain way and float64, in JAX's interpreter of kernels.

On a TPU the kernels themselves run, with `JAX_PLATFORMS=tpu pytest tests/layers/test_fused.py`.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import with_each_change
from helpers.quick import initial, jit

from firth.errors import FirthError
from firth.layers import fused
from firth.layers.attention import MultiHeadAttention, check_fused, mask_to_bias, reach_bias
from firth.layers.dropout import Dropout
from firth.models import bert, modernbert
from firth.training.partition import create_mesh

B, L, M, RATE = 2, 512, 1024, 0.1
LOOSE = 2e-2 if jax.default_backend() == "tpu" else 0  # products round to bfloat16 there


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    monkeypatch.setattr(fused, "on_tpu", lambda: True)


def normal(shape, seed, dtype="float32"):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def dropped(rate, function):
    """`function` of a Dropout that draws the same every time."""
    rngs = {"dropout": jax.random.key(7)}
    return Dropout(rate).apply({}, rngs=rngs, method=lambda dropout: function(dropout))


def reference(q, k, v, bias, keep, dout):
    """Output and gradients for q, k, v [B, L, H, K] in numpy float64; `keep` holds the scale."""
    q, k, v, dout = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (q, k, v, dout))
    scores = q @ k.swapaxes(2, 3) + np.asarray(bias, np.float64)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    dprobs = keep * (dout @ v.swapaxes(2, 3))
    dscores = probs * (dprobs - (dprobs * probs).sum(-1, keepdims=True))
    out, dv = (keep * probs) @ v, (keep * probs).swapaxes(2, 3) @ dout
    return [x.swapaxes(1, 2) for x in (out, dscores @ k, dscores.swapaxes(2, 3) @ q, dv)]


@pytest.mark.parametrize(
    ("size", "rate"),
    with_each_change(
        [((4, 32), RATE), ((4, 64), 0.0), ((1, 128), RATE)],
        itertools.product([(4, 32), (4, 64), (1, 128)], (0.0, RATE)),
    ),
)
def test_equals_float64_with_its_gradients(size, rate):
    """More keys than queries; one row is full, one padded. `size` is heads and their width."""
    heads, width = size
    q, dout = (normal((B, L, heads, width), seed) for seed in (0, 3))
    k, v = (normal((B, M, heads, width), seed) for seed in (1, 2))
    bias = mask_to_bias(jnp.arange(M) < jnp.array([[M], [700]]))
    q *= width**-0.5

    @jit
    def run(q, k, v):
        def attend(q, k, v):
            return dropped(rate, lambda drop: fused.attend(q, k, v, bias, drop, train=True))

        out, pull = jax.vjp(attend, q, k, v)
        return out, *pull(dout)

    keep = np.ones((B, heads, L, M))
    if rate:
        keep = np.asarray(dropped(rate, lambda drop: drop.mask(keep.shape))) * Dropout(rate).scale
        assert abs((keep == 0).mean() - rate) < 0.01
    for got, expected in zip(run(q, k, v), reference(q, k, v, bias, keep, dout), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5 + LOOSE, rtol=1e-4 + LOOSE)


@pytest.mark.parametrize(
    ("reach", "rate"),
    with_each_change(
        [((L, 0), RATE), ((64, 64), RATE), ((100, 30), 0.0)],
        itertools.product([(L, 0), (64, 64), (100, 30)], (0.0, RATE)),
    ),
)
def test_equals_float64_where_queries_see_what_is_near(reach, rate):
    """The rows of one text are padded, and no gradient comes from there."""
    q, k, v, dout = (normal((B, L, 2, 64), seed) for seed in range(4))
    mask = np.arange(L) < np.array([[L], [300]])
    dout *= mask[..., None, None]
    q *= 64**-0.5

    @jit
    def run(q, k, v):
        def attend(q, k, v):
            hides = mask_to_bias(jnp.asarray(mask))
            return dropped(
                rate, lambda drop: fused.attend(q, k, v, hides, drop, train=True, reach=reach)
            )

        out, pull = jax.vjp(attend, q, k, v)
        return out * mask[..., None, None], *pull(dout)

    keep = np.ones((B, 2, L, L))
    if rate:
        keep = np.asarray(dropped(rate, lambda drop: drop.mask(keep.shape))) * Dropout(rate).scale
    expected = reference(q, k, v, reach_bias(jnp.asarray(mask), reach), keep, dout)
    expected[0] *= mask[..., None, None]
    for got, one in zip(run(q, k, v), expected, strict=True):
        np.testing.assert_allclose(got, one, atol=2e-5 + LOOSE, rtol=1e-4 + LOOSE)


def test_blocks_that_no_query_reaches_are_left_out():
    """Of 512 x 512 scores: 10 of 16 blocks for causal rows, 10 for 64 tokens on either side."""
    assert fused.blocks(512, 512, None) == [(0, 0, 512), (256, 0, 512)]
    assert fused.blocks(512, 512, (512, 0)) == [(i, 0, i + 128) for i in (0, 128, 256, 384)]
    assert fused.blocks(512, 512, (64, 64)) == [
        (0, 0, 256), (128, 0, 384), (256, 128, 512), (384, 256, 512),
    ]  # fmt: skip


def test_bfloat16_is_as_close_as_the_plain_way():
    q, k, v = (normal((B, L, 2, 64), seed, "bfloat16") for seed in range(3))
    bias = mask_to_bias(jnp.arange(L) < jnp.array([[L], [400]]))
    out = fused.attend(q, k, v, bias, Dropout(0.0), train=False)
    assert out.dtype == jnp.bfloat16
    expected = reference(q, k, v, bias, 1.0, v)[0]
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, atol=0.02)


def test_a_row_without_any_key_attends_to_all_alike():
    q, k, v = (normal((1, L, 2, 64), seed) for seed in range(3))
    bias = mask_to_bias(jnp.zeros((1, L), bool))
    out = jit(functools.partial(fused.attend, train=False), static_argnums=4)
    found = out(q, k, v, bias, Dropout(0.0))
    np.testing.assert_allclose(found, reference(q, k, v, bias, 1.0, v)[0], atol=2e-3 + LOOSE)


def step(fused_attention: bool, remat: str = "none", mesh=None):
    """(gradients, output) of a small encoder with dropout, on the devices of a mesh if any."""
    config = bert.Config(
        vocab_size=32, num_layers=1, hidden_size=256, num_heads=4, intermediate_size=32,
        scan=True, remat=remat, fused_attention=fused_attention,
    )  # fmt: skip
    encoder = bert.Body(config)
    tokens = jax.random.randint(jax.random.key(0), (B, L), 0, 32)
    mask = jnp.arange(L) < jnp.array([[L], [300]])
    params = initial(encoder, tokens[:, :8])

    def loss(params):
        rngs = {"dropout": jax.random.key(2)}
        out = encoder.apply({"params": params}, tokens, None, mask, train=True, rngs=rngs).last
        return (out * normal(out.shape, 3)).sum(), out

    run = jit(jax.grad(loss, has_aux=True))
    if mesh is None:
        return run(params)
    with jax.set_mesh(mesh):
        return run(params)


@pytest.fixture(scope="module")
def plain():
    return step(False)


def equal(one, other):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            a, b, atol=(1e-5 + LOOSE) * max(1, abs(np.asarray(b)).max())
        ),
        one,
        other,
    )


def test_an_encoder_drops_and_learns_the_same(plain):
    equal(step(True, remat="all_dots"), plain)


def test_on_several_devices(plain):
    mesh = create_mesh({"data": 2, "fsdp": 1, "tensor": 2}, jax.devices()[:4])
    equal(step(True, mesh=mesh), plain)


def test_what_is_kept_for_the_backward_pass():
    """Nothing of the size of the scores but the mask, in a byte for every four of them."""
    x = normal((B, L, 256), 0)
    layer = MultiHeadAttention(4, RATE, fused=True)
    params = {"params": initial(layer, x, 0.0, train=False)}

    def out(x):
        rngs = {"dropout": jax.random.key(2)}
        return layer.apply(params, x, jnp.zeros((B, 1, 1, L)), train=True, rngs=rngs)[0]

    _, pull = jax.eval_shape(lambda x: jax.vjp(out, x), x)
    sizes = {leaf.shape: leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull)}
    assert sizes[(B, 4, L, L // 4)] == B * 4 * L * L // 4
    assert max(sizes.values()) == 4 * x.size


@pytest.mark.parametrize(
    ("q", "k", "bias", "whether"),
    [
        ((2, 512, 12, 64), (2, 1024, 12, 64), (2, 1, 1, 1024), True),
        ((2, 512, 12, 64), (2, 512, 12, 64), (1, 1, 1, 512), True),
        ((2, 512, 8, 16), (2, 512, 8, 16), (2, 1, 1, 512), True),
        ((2, 128, 12, 64), (2, 128, 12, 64), (2, 1, 1, 128), False),  # too short
        ((1, 2048, 12, 64), (1, 2048, 12, 64), (1, 1, 1, 2048), False),  # too long
        ((2, 512, 32, 8), (2, 512, 32, 8), (2, 1, 1, 512), False),  # too many heads a register
        ((2, 512, 11, 64), (2, 512, 11, 64), (2, 1, 1, 512), False),  # half a register
        ((2, 512, 8, 96), (2, 512, 8, 96), (2, 1, 1, 512), False),  # heads across registers
        ((2, 512, 12, 64), (2, 512, 12, 64), (2, 1, 512, 512), False),  # a bias of its own
        ((2, 512, 12, 64), (2, 512, 12, 64), (), False),
    ],
)
def test_what_the_kernels_take(q, k, bias, whether):
    assert fused.applies(q, k, bias) == whether


def test_what_each_device_must_be_able_to_take():
    shape, bias = (2, 512, 12, 64), (2, 1, 1, 512)
    for sizes, whether in (((2, 1, 2), True), ((4, 1, 1), False), ((1, 1, 4), False)):
        sizes = dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))
        devices = jax.devices()[: np.prod(list(sizes.values()))]
        with jax.set_mesh(create_mesh(sizes, devices)):
            assert fused.applies(shape, shape, bias) == whether


def test_elsewhere_attention_is_computed_the_plain_way(monkeypatch):
    monkeypatch.undo()
    assert not fused.applies((2, 512, 12, 64), (2, 512, 12, 64), (2, 1, 1, 512)) or LOOSE


@pytest.mark.slow
@pytest.mark.nightly
def test_a_run_checks_the_kernels_on_its_own_device(monkeypatch):
    check_fused()
    keep_mask = fused._keep_mask
    monkeypatch.setattr(fused, "_keep_mask", lambda bits, axis: ~keep_mask(bits, axis))
    jax.clear_caches()
    with pytest.raises(FirthError, match="the kernels' output is not that of plain attention; set"):
        check_fused()


def test_scanned_layers_of_modernbert_are_refused():
    assert modernbert.Config(fused_attention=True).fused_attention
    with pytest.raises(FirthError, match=r"model\.scan=False in ModernBERT"):
        modernbert.Config(fused_attention=True, scan=True)
