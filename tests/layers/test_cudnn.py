"""cuDNN's attention without a GPU: what it is given, and that the programs of a GPU call it.

`jax.nn.dot_product_attention` has a second implementation, of plain products, that reads the same
arguments. Here it stands in for cuDNN. On a GPU the last test compares the kernels themselves.
"""

import itertools
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import nightly, with_each_change
from helpers.quick import initial, jit

from firth.errors import FirthError
from firth.layers import cudnn, transformer
from firth.layers.attention import MASKED, MultiHeadAttention, check_cudnn, mask_to_bias
from firth.layers.transformer import choose_attention
from firth.models import bert, gpt, gpt2, modernbert, xlnet

B, L, H, K = 3, 12, 2, 16
CALLS = {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}


@pytest.fixture
def gpu(monkeypatch):
    """Let JAX think that it has a GPU with cuDNN, until it comes to compiling."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(cudnn, "on_cuda", lambda: True)
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)


@pytest.fixture
def stand_in(monkeypatch):
    """The implementation of plain products in the place of cuDNN's."""
    attention = jax.nn.dot_product_attention

    def plain(*args, implementation, **options):
        assert implementation == "cudnn"
        return attention(*args, implementation="xla", **options)

    monkeypatch.setattr(cudnn, "on_cuda", lambda: True)
    monkeypatch.setattr(jax.nn, "dot_product_attention", plain)


def reference(q, k, v, seen_BLM, dout):
    """Output and gradients in numpy float64; keys that are not seen are left out."""
    q, k, v, dout = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (q, k, v, dout))
    scores = np.where(seen_BLM[:, None], q @ k.swapaxes(2, 3), -np.inf)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    dprobs = dout @ v.swapaxes(2, 3)
    dscores = probs * (dprobs - (dprobs * probs).sum(-1, keepdims=True))
    found = probs @ v, dscores @ k, dscores.swapaxes(2, 3) @ q, probs.swapaxes(2, 3) @ dout
    return [x.swapaxes(1, 2) for x in found]


def arrays(shape=(B, L, H, K), dtype="float32"):
    return [jax.random.normal(key, shape, dtype) for key in jax.random.split(jax.random.key(0), 4)]


PADDING = np.arange(L) < np.array([[L], [5], [8]])
BLOCK_BL = np.array([[0] * 5 + [1] * 7, [0] * 12, [0] * 3 + [1] * 3 + [2] * 6])
BLOCKS = BLOCK_BL[:, :, None] == BLOCK_BL[:, None]
EARLIER = np.tri(L, dtype=bool)


@pytest.mark.parametrize("mask", ["padding", "blocks", "shared blocks", "causal"])
def test_equals_float64_with_its_gradients(stand_in, mask):
    q, k, v, dout = arrays()
    causal = mask == "causal"
    if causal:
        seen = PADDING[:, None] & EARLIER
        bias = jnp.where(seen, 0.0, MASKED)[:, None]
    elif mask == "padding":
        seen, bias = np.repeat(PADDING[:, None], L, 1), mask_to_bias(PADDING)
    else:
        seen = BLOCKS if mask == "blocks" else np.repeat(BLOCKS[:1], B, 0)
        bias = jnp.where(seen if mask == "blocks" else seen[:1], 0.0, MASKED)[:, None]
    out, pull = jax.vjp(lambda q, k, v: cudnn.attend(q, k, v, bias, causal=causal), q, k, v)
    for got, expected in zip((out, *pull(dout)), reference(q, k, v, seen, dout), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5)


def test_a_row_without_a_key_is_finite_and_one_with_holes_is_not(stand_in):
    q, k, v, _ = arrays()
    mask = np.ones((B, L), bool)
    mask[1], mask[2, 3] = False, False
    out = np.asarray(cudnn.attend(q, k, v, mask_to_bias(mask)))
    assert np.isfinite(out[:2]).all() and np.isnan(out[2]).all()


def test_a_layer_computes_the_same_either_way(stand_in):
    x = jax.random.normal(jax.random.key(1), (B, L, H * K), jnp.bfloat16)
    plain = MultiHeadAttention(H, dtype="bfloat16")
    params = {"params": initial(plain, x, 0.0, train=False)}
    other = MultiHeadAttention(H, dtype="bfloat16", kernels="cudnn")
    bias = mask_to_bias(PADDING)
    for one, two in zip(
        plain.apply(params, x, bias, train=True), other.apply(params, x, bias, train=True),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(one.astype("float32"), two.astype("float32"), atol=0.02)


def test_causal_attention_reads_no_array_of_the_size_of_the_scores(stand_in, monkeypatch):
    given, attention = [], jax.nn.dot_product_attention
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", lambda *a, **o: given.append(o) or attention(*a, **o)
    )
    q, k, v, _ = arrays()
    bias = jnp.where(PADDING[:, None] & EARLIER, 0.0, MASKED)[:, None]
    cudnn.attend(q, k, v, bias, causal=True)
    assert given[0]["is_causal"] and "bias" not in given[0]
    assert list(given[0]["key_value_seq_lengths"]) == [12, 5, 8]


FAMILIES = {"gpt": gpt, "gpt2": gpt2, "modernbert": modernbert}


def family_config(family, **fields):
    sizes = dict(vocab_size=64, num_layers=4, hidden_size=32, num_heads=2, intermediate_size=48)
    sizes |= {"window": 4} if family == "modernbert" else {}
    still = dict(attention="cudnn", attention_dropout=0.0, dropout=0.0)
    still |= {} if family == "modernbert" else {"embedding_dropout": 0.0}
    return FAMILIES[family].Config(**sizes | still | fields)


OFTEN = [("gpt2", False), ("modernbert", True)]


@pytest.mark.parametrize(
    ("family", "scan"), with_each_change(OFTEN, itertools.product(FAMILIES, (False, True)))
)
def test_a_family_computes_the_same_either_way(stand_in, monkeypatch, family, scan):
    monkeypatch.setattr(cudnn, "unfit", lambda *_: "")  # the stand-in computes in 32 bits
    taken, attend = [], cudnn.attend
    monkeypatch.setattr(cudnn, "attend", lambda *a, **o: taken.append(o) or attend(*a, **o))
    tokens = jax.random.randint(jax.random.key(1), (B, L), 0, 64)
    bodies = [
        FAMILIES[family].Body(family_config(family, attention=way, scan=scan))
        for way in ("plain", "cudnn")
    ]
    params = {"params": initial(bodies[0], tokens)}
    dout = jax.random.normal(jax.random.key(3), (B, L, 32))

    def gradient(body):
        def loss(params):
            last = body.apply(params, tokens, None, PADDING, train=True).last
            return (last * dout).sum(), last

        return jit(jax.value_and_grad(loss, has_aux=True))(params)

    results = [gradient(body) for body in bodies]
    assert taken and all(o.get("causal", False) == ("gpt" in family) for o in taken)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4), *results
    )


def bert_config(**fields):
    sizes = dict(vocab_size=64, num_layers=2, hidden_size=128, num_heads=2, intermediate_size=64)
    running = dict(attention="cudnn", dtype="bfloat16", attention_dropout=0.0)
    return bert.Config(**sizes | running | fields)


def calls(config) -> set[str]:
    """The calls of cuDNN in the program of an encoder's gradient, for a GPU."""
    body = next(f.Body for f in (bert, *FAMILIES.values()) if isinstance(config, f.Config))
    encoder, tokens = body(config), jnp.ones((2, 16), jnp.int32)
    params = jax.eval_shape(encoder.init, jax.random.key(0), tokens)

    def loss(params):
        rngs = {"dropout": jax.random.key(1)}
        return encoder.apply(params, tokens, train=True, rngs=rngs).last.astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss)).trace(params)
    return set(re.findall(r"__cudnn\$\w+", traced.lower(lowering_platforms=("cuda",)).as_text()))


@pytest.mark.parametrize("fields", [{}, {"scan": True}, {"scan": True, "remat": "all_dots"}])
def test_the_program_of_a_gpu_calls_cudnn(gpu, fields):
    assert calls(bert_config(**fields)) == CALLS


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_programs_of_other_families_do(gpu, family, scan):
    local = {"__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"}
    expected = CALLS | local if family == "modernbert" else CALLS
    assert calls(family_config(family, dtype="bfloat16", scan=scan)) == expected


def test_steps_with_a_cache_are_plain(gpu):
    config = family_config("gpt2", dtype="bfloat16")
    encoder, tokens = gpt2.Body(config), jnp.ones((2, 4), jnp.int32)
    params = jax.eval_shape(encoder.init, jax.random.key(0), tokens)

    def step(params):
        cache, visible = gpt.empty_cache(config, 2, 16), jnp.ones((2, 4, 16), bool)
        return encoder.apply(params, tokens, tokens, visible, cache, 0, method="extend")[0]

    text = jax.jit(step).trace(params).lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn" not in text


def test_no_other_program_does(gpu, monkeypatch):
    assert calls(bert_config(attention="plain")) == calls(bert_config(attention="auto")) == set()
    monkeypatch.setattr(cudnn, "on_cuda", lambda: False)
    assert calls(bert_config()) == set()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (dict(dtype="float32"), "16 bits, and model.dtype=float32; set bfloat16"),
        (dict(attention_dropout=0.1), "set model.attention_dropout=0 to train without"),
        (dict(hidden_size=24), "a multiple of 8 wide, at most 128, and not 12"),
        (dict(hidden_size=272), "a multiple of 8 wide, at most 128, and not 136"),
    ],
)
def test_what_it_cannot_compute_is_said(gpu, caplog, fields, says):
    config = bert_config(**fields)
    with pytest.raises(FirthError, match=says):
        calls(config)
    section = vars(config)
    with pytest.raises(FirthError, match=f"{says}.*or set model.attention=plain"):
        choose_attention(section)
    caplog.set_level(logging.INFO, "firth")
    assert choose_attention(section | {"attention": "auto"}) == "plain"
    assert re.search(f"takes the plain way: .*{says}", caplog.text)


def test_a_family_without_the_field_and_a_recipe_that_asks_for_nothing_are_plain():
    assert choose_attention({}) == choose_attention({"attention": "plain"}) == "plain"


def test_another_device_is_named(caplog, monkeypatch):
    section = vars(bert_config())
    monkeypatch.setattr(cudnn, "on_cuda", lambda: False)
    with pytest.raises(FirthError, match=r"is no NVIDIA GPU; or set model.attention=plain"):
        choose_attention(section)
    caplog.set_level(logging.INFO, "firth")
    assert choose_attention(section | {"attention": "auto"}) == "plain"
    assert "takes the plain way: this" in caplog.text


def test_a_run_takes_what_agrees_with_the_plain_way(stand_in, caplog):
    caplog.set_level(logging.INFO, "firth")
    for wanted in ("auto", "cudnn"):
        assert choose_attention(vars(bert_config(attention=wanted))) == "cudnn"
        assert f"model.attention={wanted} takes cudnn, right on this" in caplog.text


@pytest.mark.parametrize("family", ["xlnet", "transformer_xl"])
def test_families_with_relative_positions_are_refused_with_the_reason(stand_in, caplog, family):
    section = dict(vars(xlnet.Config(attention="cudnn", dtype="bfloat16")), family=family)
    said = "cudnn: it adds no term for relative positions .*; set model.attention=plain$"
    with pytest.raises(FirthError, match=said):
        choose_attention(section)
    caplog.set_level(logging.INFO, "firth")
    assert choose_attention(section | {"attention": "auto"}) == "plain"
    assert "takes the plain way: it adds no term for relative positions" in caplog.text


@pytest.mark.parametrize(
    ("family", "masks"),
    [
        ("bert", ["padding"]),
        ("gpt", ["causal"]),
        ("gpt2", ["causal"]),
        ("modernbert", ["padding", "window"]),
    ],
)
def test_a_run_checks_the_masks_of_its_family(stand_in, monkeypatch, family, masks):
    checked = []
    monkeypatch.setattr(transformer, "check_cudnn", lambda *a: checked.extend(a[2]) or "")
    assert choose_attention(dict(vars(bert_config()), family=family)) == "cudnn"
    assert checked == masks


@pytest.mark.parametrize("mask", ["padding", "causal", nightly("blocks"), nightly("window")])
def test_a_wrong_kernel_is_seen(stand_in, monkeypatch, mask):
    assert check_cudnn("bfloat16", 64, (mask,)) == ""
    attend = cudnn.attend
    wrong_ways = {
        "output": lambda q, k, v, bias, causal: attend(q, k, v, jnp.zeros_like(bias)),
        "dk": lambda q, k, *rest, **o: attend(q, jax.lax.stop_gradient(k), *rest, **o),
        "dq": lambda q, *rest, **o: attend(jax.lax.stop_gradient(q), *rest, **o),
    }
    for name, way in wrong_ways.items():
        monkeypatch.setattr(cudnn, "attend", way)
        said = f"with {mask} its {name} is not that of plain attention"
        assert check_cudnn("bfloat16", 64, (mask,)) == said


def test_a_kernel_that_fails_is_no_reason_to_stop(stand_in, monkeypatch):
    def failing(*_, **__):
        raise RuntimeError("cuDNN\nis not detected.")

    monkeypatch.setattr(cudnn, "attend", failing)
    said = "with padding it fails: cuDNN is not detected."
    assert check_cudnn("bfloat16", 64) == said
    with pytest.raises(FirthError, match=f"^model.attention=cudnn: {said}; or set"):
        choose_attention(vars(bert_config()))


def test_an_unknown_way_is_refused():
    with pytest.raises(FirthError, match=r"model.attention='flash' is unknown; one of"):
        bert_config(attention="flash")


def test_the_kernels_of_this_device():
    for mask in ("padding", "blocks", "causal", "window"):
        fails = check_cudnn("bfloat16", 64, (mask,))
        assert not fails if cudnn.on_cuda() else fails.startswith(f"with {mask} it fails: ")
