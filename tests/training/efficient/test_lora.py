"""LoRA's factors: their gradients against torch, which kernels have them, and what is merged."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax.traverse_util import flatten_dict, unflatten_dict
from helpers.quick import initial, jit
from ml_collections import ConfigDict

from firth.configs import common
from firth.errors import FirthError
from firth.models.model import create, family, merge_params, to_layout
from firth.training.efficient.lora import Lora, merge, nearest, read_lora
from firth.training.unfreezing.depth import depths

TARGETS = common.lora()["targets"]
QUERY = "encoder/stack/layer_0/attention/query/kernel"
SIZES = dict(vocab_size=50, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32)


def make(name, **fields):
    """A small model of a family with a classifier, and its parameters."""
    known = {field.name for field in dataclasses.fields(family(name).Config)}
    spec = {k: v for k, v in (SIZES | {"max_length": 16} | fields).items() if k in known}
    model = create({"family": name, "init_stddev": 0.3} | spec, ("classifier",), 3)
    return model, initial(model, jnp.zeros((1, 8), jnp.int32), scale=0.3)


def with_factors(lora, params, seed=0):
    """The parameters with factors none of which is zero."""
    flat = flatten_dict(lora.attach(params, jax.random.key(seed)), sep="/")
    rng = np.random.default_rng(seed)
    for path in flat:
        if path.endswith("/b"):
            flat[path] = jnp.asarray(rng.normal(size=flat[path].shape), jnp.float32)
    return unflatten_dict(flat, sep="/")


def test_gradients_of_the_factors_are_torchs():
    """Of x W + alpha / r (x A) B, never merged, in float64; the scale and the sides count."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, 7)), rng.normal(size=(7, 4))
    lora = Lora(rank=3, alpha=12.0, targets="query")
    params = with_factors(lora, unflatten_dict({QUERY: jnp.asarray(w, jnp.float32)}, sep="/"))

    def loss(params):
        kernel = flatten_dict(merge(params), sep="/")[QUERY]
        return (jnp.tanh(jnp.asarray(x, jnp.float32) @ kernel) ** 2).sum()

    grads = flatten_dict(jax.grad(loss)(params), sep="/")
    flat = flatten_dict(params, sep="/")
    a, b = (
        torch.tensor(np.asarray(flat[f"lora/{QUERY}/{name}"], np.float64), requires_grad=True)
        for name in "ab"
    )
    assert a.shape == (7, 3) and b.shape == (3, 4)
    x, w = torch.tensor(x), torch.tensor(w)
    (torch.tanh(x @ w + 12.0 / 3 * (x @ a) @ b) ** 2).sum().backward()
    for name, factor in (("a", a), ("b", b)):
        found = np.asarray(grads[f"lora/{QUERY}/{name}"])
        np.testing.assert_allclose(found, factor.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_a_kernel_of_three_axes_is_a_matrix_from_its_first():
    """XLNet's [D, H, K]: h A B has the heads beside each other."""
    rng = np.random.default_rng(1)
    path = "encoder/stack/layer_0/attention/query"
    w, x = rng.normal(size=(6, 2, 3)).astype(np.float32), rng.normal(size=(4, 6))
    params = with_factors(Lora(2, 2.0, TARGETS), unflatten_dict({path: jnp.asarray(w)}, sep="/"))
    flat = flatten_dict(params, sep="/")
    a, b = (np.asarray(flat[f"lora/{path}/{name}"], np.float64) for name in "ab")
    found = np.einsum("BD,DHK->BHK", x, flatten_dict(merge(params), sep="/")[path])
    expected = np.einsum("BD,DHK->BHK", x, w) + (x @ a @ b).reshape(4, 2, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        *((name, 4) for name in ("bert", "roberta", "distilbert", "electra", "xlnet")),
        *((name, 2) for name in ("albert", "gpt", "gpt2", "modernbert")),
        ("transformer_xl", 4),
    ],
)
def test_at_first_a_model_with_factors_is_the_one_without(name, kernels):
    """Of every family: query and value, or query, key and value in one; not one bit of it."""
    model, params = make(name)
    lora = Lora(4, 16.0, TARGETS)
    attached = lora.attach(params, jax.random.key(0))
    assert len(lora.chosen(flatten_dict(params, sep="/"))) == kernels
    own = {key: value for key, value in attached.items() if key != "lora"}
    assert jax.tree.structure(own) == jax.tree.structure(params)
    tokens = jnp.arange(16).reshape(2, 8)
    apply = jit(lambda params: model.apply({"params": params}, tokens)[1]["classifier"])
    plain = apply(params)
    np.testing.assert_array_equal(apply(merge(attached)), plain)
    moved = merge(with_factors(lora, params))
    assert jax.tree.structure(moved) == jax.tree.structure(params)
    assert np.abs(apply(moved) - plain).max() > 1e-3


def test_first_factors_are_those_of_the_released_code():
    """A as of kaiming_uniform_(a=sqrt(5)), within 1 / sqrt(inputs); another in each kernel."""
    params = {"encoder": {name: {"query": {"kernel": jnp.zeros((64, 48))}} for name in "xy"}}
    flat = flatten_dict(Lora(32, 8.0, "query").attach(params, jax.random.key(3)), sep="/")
    one, other = (np.asarray(flat[f"lora/encoder/{name}/query/kernel/a"]) for name in "xy")
    drawn = torch.Generator().manual_seed(0)
    reference = torch.nn.init.kaiming_uniform_(torch.empty(3200, 64), a=5**0.5, generator=drawn)
    assert abs(one).max() <= 1 / 8 and abs(one).max() > 0.99 / 8
    np.testing.assert_allclose(one.std(), reference.std(), rtol=0.03)
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.1
    assert not flat["lora/encoder/x/query/kernel/b"].any() and flat["lora/scale"] == 0.25


def test_stacked_layers_have_factors_of_their_own():
    """Merged and then unrolled, or unrolled and then merged: the same; so are their depths."""
    _, params = make("bert")
    stacked = with_factors(Lora(2, 4.0, TARGETS), to_layout(params, scan=True))
    assert stacked["lora"]["encoder"]["stack"]["layers"]["attention"]["query"]["kernel"][
        "a"
    ].shape == (2, 16, 2)
    late = to_layout(merge(stacked), scan=False)
    early = merge(to_layout(stacked, scan=False))
    assert jax.tree.structure(late) == jax.tree.structure(early)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), late, early)
    levels = flatten_dict(depths(to_layout(stacked, scan=False)), sep="/")
    assert [levels[f"lora/encoder/stack/layer_{i}/attention/query/kernel/a"] for i in (0, 1)] == [
        2,
        1,
    ]


def test_weights_leave_the_factors_as_they_are():
    _, params = make("bert")
    attached = with_factors(Lora(2, 4.0, TARGETS), params)
    other = jax.tree.map(lambda x: x + 1, params)
    merged, fresh = merge_params(jax.device_get(attached), jax.device_get(other), "there")
    assert not fresh
    jax.tree.map(np.testing.assert_array_equal, merged["lora"], jax.device_get(attached["lora"]))


def test_a_target_that_is_no_kernel_is_refused_with_those_near_it():
    _, params = make("bert")
    shapes = flatten_dict(params, sep="/")
    with pytest.raises(FirthError) as caught:
        Lora(2, 4.0, "attention/querry/kernel$").chosen(shapes)
    said = str(caught.value)
    assert "lora.targets='attention/querry/kernel$' matches no kernel" in said
    assert said.partition("near it are ")[2].split(", ")[0] == QUERY
    for vectors in ("query/bias", "classifier"):  # neither a bias nor a head
        with pytest.raises(FirthError, match="matches no kernel"):
            Lora(2, 4.0, vectors).chosen(shapes)
    with pytest.raises(FirthError, match=r"rank=17 is above the rank of .*query/kernel.* 16 x 16"):
        Lora(17, 4.0, "query").chosen(shapes)
    assert nearest("mlp_inn", shapes)[0].endswith(("mlp_in/kernel", "mlp_in/bias"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(rank=-1), "lora.rank=-1: expected 1 or more, or 0"),
        (dict(rank=2, alpha=0.0), "lora.alpha=0.0: expected a number above 0"),
        (dict(rank=2, alpha=float("nan")), "lora.alpha=nan"),
        (dict(rank=2, targets="a("), "lora.targets='a(' is not a regular expression"),
    ],
)
def test_a_section_that_makes_no_sense_is_refused(fields, said):
    with pytest.raises(FirthError) as caught:
        read_lora(ConfigDict({"lora": common.lora() | fields}))
    assert said in str(caught.value)


def test_without_a_rank_there_is_no_lora():
    assert read_lora(ConfigDict({"lora": common.lora()})) is None
    assert read_lora(ConfigDict()) is None
    assert read_lora(ConfigDict({"lora": common.lora() | {"rank": 8}})) == Lora(8, 16.0, TARGETS)
