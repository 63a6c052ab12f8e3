"""GPT and GPT-2: what a token may see, the cache, the 2018 options, and their published files.

Parity with transformers stands in test_families.py.
"""

import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from helpers.cases import with_each_change
from helpers.published.families import make_model
from helpers.quick import jit

from firth.errors import FirthError
from firth.layers import causal
from firth.models import gpt, gpt2
from firth.models.model import create, parameter_count, to_layout
from firth.training.partition import create_mesh, shardings_of
from firth.weights.read import read_model
from firth.weights.write import write_firth, write_published

FAMILIES = ("gpt", "gpt2")
V, N, D, P = 23, 3, 12, 10
SPEC = dict(
    vocab_size=V, num_layers=N, hidden_size=D, num_heads=3, intermediate_size=20, max_length=P
)


@functools.cache
def made(family, **changes):
    """(model, parameters none of which is zero), unrolled."""
    model = create(dict(family=family) | SPEC | changes, ("lm",))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"]
    rng = np.random.default_rng(0)
    return model, jax.tree.map(
        lambda s: rng.normal(size=s.shape, scale=0.4).astype(np.float32), shapes
    )


def tokens(rows=2, length=7):
    return np.random.default_rng(1).integers(0, V, (rows, length)).astype(np.int32)


# ----------------------------------------------------------------------------- dimensions


@pytest.mark.parametrize(
    ("family", "size", "count"),
    [
        ("gpt", gpt.size("base"), 116_534_784),
        ("gpt2", gpt2.size("base"), 124_439_808),
        ("gpt2", gpt2.size("medium"), 354_823_168),
        ("gpt2", gpt2.size("large"), 774_030_080),
        ("gpt2", gpt2.size("xl"), 1_557_611_200),
    ],
)
def test_parameter_counts_are_the_published_ones(family, size, count):
    model = create(dict(family=family, scan=True) | size, ("lm",))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    assert parameter_count(shapes) == count
    assert size["num_heads"] * 64 == size["hidden_size"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_leaf_is_sharded_by_a_rule(family):
    for scan in (False, True):
        model = create(dict(family=family, scan=scan) | SPEC, ("lm", "classifier"))
        shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
        shardings = shardings_of(shapes["params"], create_mesh())
        assert jax.tree.structure(shardings) == jax.tree.structure(shapes["params"])


def test_unknown_sizes_and_rates_are_refused():
    with pytest.raises(FirthError, match="GPT-2 has no size 'huge'"):
        gpt2.size("huge")
    with pytest.raises(FirthError, match="GPT has no size 'xl'"):
        gpt.size("xl")
    with pytest.raises(FirthError, match=r"embedding_dropout=1.5 should lie in \[0, 1\)"):
        create(dict(family="gpt", embedding_dropout=1.5))
    with pytest.raises(FirthError, match=r"11 tokens are beyond the position table .*=10"):
        model, params = made("gpt")
        model.apply({"params": params}, tokens(length=11))


# ------------------------------------------------------------------------------- causality


def assert_causal(family, scan=False):
    """Each place depends on itself and on all before it, and on nothing after it: exactly zero."""
    model, params = made(family)
    params = to_layout(params, scan)
    model = create(dict(family=family, scan=scan) | SPEC, ("lm",))
    e_BLD = np.random.default_rng(2).normal(size=(1, 6, D)).astype(np.float32)

    def encode(model, e_BLD):
        return model.encoder.encode(e_BLD, jnp.ones((1, 6), bool), train=False)

    def last(e_BLD):
        out = model.apply({"params": params}, e_BLD, method=encode)
        return (out.last[0] * jnp.arange(1.0, D + 1)).sum(-1)  # a plain sum of a norm is constant

    gradient_LL = np.abs(np.asarray(jit(jax.jacrev(last))(e_BLD))[:, 0]).sum(-1)
    assert (np.triu(gradient_LL, 1) == 0).all()
    assert (gradient_LL[np.tril_indices(6)] > 1e-5).all()


@pytest.mark.parametrize(
    ("family", "scan"),
    with_each_change([("gpt", False), ("gpt2", True)], itertools.product(FAMILIES, (False, True))),
)
def test_no_place_depends_on_a_later_one(family, scan):
    assert_causal(family, scan)


@pytest.mark.parametrize("by", [1, -1])
def test_a_mask_off_by_one_would_be_noticed(monkeypatch, by):
    """The residual carries a token past attention, so only the probabilities show by = -1."""

    def shifted(mask_BL):
        return jnp.tri(mask_BL.shape[1], k=by, dtype=bool) & mask_BL[:, None, :]

    monkeypatch.setattr(gpt, "causal_mask", shifted)
    with pytest.raises(AssertionError):
        assert_causal("gpt2")
        assert_looks_back("gpt2")


def assert_looks_back(family):
    model, params = made(family)
    mask = np.arange(7) < [[7], [4]]
    out, _ = model.apply({"params": params}, tokens(), None, mask, attentions=True)
    visible = np.tri(7, dtype=bool) & mask[:, None, :]
    for probs_BHLL in np.asarray(out.attentions):
        for head in np.moveaxis(probs_BHLL, 1, 0):
            assert (head[~visible] == 0).all() and (head[visible] > 0).all()
    np.testing.assert_allclose(out.attentions.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_to_the_real_tokens_up_to_ones_own(family):
    assert_looks_back(family)


@pytest.mark.parametrize("family", with_each_change(["gpt"], FAMILIES))
def test_scan_and_remat_change_no_gradient(family):
    _, params = made(family)

    def gradient(**changes):
        model = create(dict(family=family) | SPEC | changes, ("lm",))
        scan = changes.get("scan", False)

        def loss(params):
            _, logits = model.apply({"params": params}, tokens())
            return jax.nn.logsumexp(logits["lm"], axis=-1).sum()

        return to_layout(jax.device_get(jit(jax.grad(loss))(to_layout(params, scan))), False)

    expected = gradient()
    for changes in (dict(remat="full"), dict(scan=True, remat="dots")):
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5),
            gradient(**changes),
            expected,
        )


# ------------------------------------------------------------------------------- the cache


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_going_on_from_a_cache_equals_reading_everything(family, scan):
    """Rows of 3 and 5 tokens in 5 slots, then 4 more tokens each, in slots 5 to 8 of 11."""
    _, params = made(family)
    params = to_layout(params, scan)
    model = create(dict(family=family, scan=scan) | SPEC, ("lm",))
    lengths, text_BL = np.array([3, 5]), tokens(length=9)

    def extend(model, *args):
        return model.encoder.extend(*args)

    apply = jit(lambda *args: model.apply({"params": params}, *args, method=extend))
    places, slots = np.arange(5), np.arange(11)
    visible = np.broadcast_to(slots <= places[:, None], (2, 5, 11))
    cache = causal.empty_cache(model.encoder.config, 2, 11)
    first, cache = apply(text_BL[:, :5], np.broadcast_to(places, (2, 5)), visible, cache, 0)
    whole, _ = jit(model.apply)({"params": params}, text_BL)
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-6)
    for row, length in enumerate(lengths):
        close(first[row, :length], whole.last[row, :length])
    for step in range(4):
        at = lengths + step
        visible = (slots < lengths[:, None]) | (slots >= 5) & (slots <= 5 + step)
        token = text_BL[np.arange(2), at][:, None]
        last, cache = apply(token, at[:, None], visible[:, None], cache, 5 + step)
        close(last[:, 0], np.asarray(whole.last)[np.arange(2), at])
    assert np.abs(whole.last).mean() > 0.1


# -------------------------------------------------------------------------- the 2018 options


def test_softmax_over_all_scores_the_positions_too():
    model, params = made("gpt", softmax_over_all=True)
    _, logits = jit(model.apply)({"params": params}, tokens())
    _, usual = made("gpt")[0].apply({"params": params}, tokens())
    assert logits["lm"].shape == (2, 7, V + P) and usual["lm"].shape == (2, 7, V)
    np.testing.assert_allclose(logits["lm"][..., :V], usual["lm"], rtol=1e-5, atol=1e-5)
    out, _ = jit(model.apply)({"params": params}, tokens())
    expected = out.last @ params["encoder"]["position"]["embedding"].T
    np.testing.assert_allclose(logits["lm"][..., V:], expected, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------- published files


def rewrite(directory, change, **config):
    """Apply a function of {name: array} to model.safetensors, and edit config.json."""
    file = directory / "model.safetensors"
    tensors = change(safetensors.numpy.load_file(file))
    safetensors.numpy.save_file(tensors, file, {"format": "pt"})
    file = directory / "config.json"
    new = json.loads(file.read_text()) | config
    file.write_text(json.dumps({k: v for k, v in new.items() if v is not None}))


def hub(dtype):
    """The names and buffers of files from before transformers had a prefix for this class."""

    def change(tensors):
        tensors = {k.removeprefix("transformer."): v for k, v in tensors.items()}
        for i in range(3):
            tensors[f"h.{i}.attn.bias"] = np.tri(26).astype(dtype)[None, None]
            tensors[f"h.{i}.attn.masked_bias"] = np.array(-1e4, np.float32)
        return tensors

    return change


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool"])
@pytest.mark.parametrize(("family", "shape"), [("gpt", "gelu"), ("gpt2", "tanh")])
def test_old_files_without_prefix_and_with_masks_come_back(tmp_path, family, shape, dtype):
    make_model(tmp_path / "m", family, shape)
    expected = read_model(tmp_path / "m").params
    rewrite(tmp_path / "m", hub(dtype))
    saved = read_model(tmp_path / "m")
    assert saved.heads == ("lm",) and saved.dtypes == ("float32",)
    jax.tree.map(np.testing.assert_array_equal, saved.params, expected)
    write_firth(tmp_path / "firth", saved)
    write_published(tmp_path / "back", read_model(tmp_path / "firth"))
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()


def with_head(tensors):
    return tensors | {"lm_head.weight": tensors["transformer.wte.weight"]}


def untied(tensors):
    return tensors | {"lm_head.weight": tensors["transformer.wte.weight"] + 1}


def other_mask(tensors):
    return tensors | {"transformer.h.0.attn.bias": np.ones((1, 1, 26, 26), np.float32)}


@pytest.mark.parametrize(
    ("change", "config", "heads"),
    [
        (dict, {}, ("lm",)),
        (dict, dict(architectures=None), ()),
        (with_head, dict(architectures=None), ("lm",)),
        (with_head, dict(architectures=["GPT2DoubleHeadsModel"]), ("lm",)),
        (dict, dict(architectures=["GPT2Model"]), ()),
    ],
)
def test_the_head_is_found_by_its_class_or_its_table(tmp_path, change, config, heads):
    make_model(tmp_path / "m", "gpt2", "tanh")
    rewrite(tmp_path / "m", change, **config)
    assert read_model(tmp_path / "m").heads == heads


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (untied, {}, "untied weights cannot be represented"),
        (other_mask, {}, "attn.bias is not the causal mask of 26 positions"),
        (dict, dict(scale_attn_weights=False), "scale_attn_weights=False is not supported"),
        (dict, dict(activation_function="silu"), "activation_function='silu' is not supported"),
        (dict, dict(n_inner=30), r"mlp.c_fc.weight is \[28, 112\], expected \[28, 30\]"),
        (dict, dict(n_positions=2**30), r"wpe.weight is \[26, 28\], expected"),
        (other_mask, dict(n_positions=2**30), "is not the causal mask of"),
        (dict, dict(model_type="gpt3"), "'gpt3' is none that Firth reads .*openai-gpt, gpt2"),
        (dict, dict(model_type="gpt"), "'gpt' is none that Firth reads"),
    ],
)
def test_what_firth_does_not_compute_is_refused(tmp_path, change, config, message):
    make_model(tmp_path / "m", "gpt2", "tanh")
    rewrite(tmp_path / "m", change, **config)
    with pytest.raises(FirthError, match=message):
        read_model(tmp_path / "m")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(activation="gelu"), "model.activation='gelu' has no name in the published layout"),
        (dict(intermediate_size=20), "no place for model.intermediate_size=20, only for 112"),
    ],
)
def test_what_transformers_does_not_compute_is_not_written(tmp_path, changes, message):
    make_model(tmp_path / "m", "gpt", "gelu")
    saved = read_model(tmp_path / "m")
    changed = dataclasses.replace(saved, spec=saved.spec | changes, published=None)
    with pytest.raises(FirthError, match=message):
        write_published(tmp_path / "new", changed)
    assert not (tmp_path / "new").exists()


def test_the_2018_options_change_no_file(tmp_path):
    make_model(tmp_path / "m", "gpt", "gelu")
    saved = read_model(tmp_path / "m")
    options = dict(matrix_dropout=True, softmax_over_all=True)
    write_firth(tmp_path / "firth", dataclasses.replace(saved, spec=saved.spec | options))
    again = read_model(tmp_path / "firth")
    assert again.spec["matrix_dropout"] is again.spec["softmax_over_all"] is True
    write_published(tmp_path / "back", again)
    back = read_model(tmp_path / "back")
    assert back.heads == ("lm",) and back.spec == saved.spec
    jax.tree.map(np.testing.assert_array_equal, back.params, saved.params)
