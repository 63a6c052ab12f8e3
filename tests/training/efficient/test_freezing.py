"""What `freeze` means: names, layers and expressions; no moments, no decay, no change."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.quick import initial
from ml_collections import ConfigDict

from firth.configs import common
from firth.errors import FirthError
from firth.models.model import create, family, to_layout
from firth.training import optim
from firth.training.efficient.freezing import read_freezing
from firth.training.efficient.lora import read_lora
from firth.training.unfreezing.depth import depths

SIZES = dict(vocab_size=50, hidden_size=16, num_layers=3, num_heads=2, intermediate_size=32)
SPEC = dict(name="adamw", b1=0.9, b2=0.999, eps=1e-6, bias_correction=True, weight_decay=0.1)
SPEC |= dict(decay_exclude=(), clip_norm=1.0, multipliers=(), freeze=())


def make(name="bert", **fields):
    known = {field.name for field in dataclasses.fields(family(name).Config)}
    spec = {k: v for k, v in (SIZES | {"max_length": 16} | fields).items() if k in known}
    model = create({"family": name} | spec, ("classifier",), 2)
    return initial(model, jnp.zeros((1, 8), jnp.int32))


def frozen_paths(freeze, params, **more) -> set[str]:
    config = ConfigDict({"freeze": freeze, "optimizer": SPEC} | more)
    freezing = read_freezing(config)
    freezing.check(params)
    mask = jax.tree.leaves(freezing.mask(params))
    return {path for path, still in zip(optim.named_leaves(params), mask, strict=True) if still}


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "modernbert", "xlnet", "gpt2"])
def test_embeddings_are_what_lies_below_the_layers(name):
    """As the layer-wise rates have it."""
    params = make(name)
    if name == "albert":  # whose layers are one
        expected = {"word", "position", "type", "norm", "project"}
        assert {path.split("/")[1] for path in frozen_paths("embeddings", params)} == expected - (
            {"project"} if "project" not in params["encoder"] else set()
        )
        return
    levels = zip(optim.named_leaves(params), jax.tree.leaves(depths(params)), strict=True)
    assert frozen_paths("embeddings", params) == {path for path, level in levels if level == 4}


def test_layers_are_numbered_from_the_bottom():
    params = make()
    paths = optim.named_leaves(params)
    assert frozen_paths("0-1", params) == {p for p in paths if "layer_0/" in p or "layer_1/" in p}
    both = frozen_paths("embeddings, 2", params)
    assert both == {p for p in paths if "layer_2/" in p} | frozen_paths("embeddings", params)
    assert len(frozen_paths("0-2", params)) == 3 * 16
    many = make(num_layers=11)  # 1 is not 10
    assert {path.split("/")[2] for path in frozen_paths("1", many)} == {"layer_1"}


def test_an_exclamation_mark_is_an_exception():
    """BitFit: the body's biases and the head."""
    params = make()
    expected = {p for p in optim.named_leaves(params) if p.startswith("encoder/")}
    assert frozen_paths("encoder", params) == expected
    assert frozen_paths("encoder,!bias$", params) == {p for p in expected if "bias" not in p}
    assert frozen_paths("encoder,!2", params) == {p for p in expected if "layer_2/" not in p}
    assert frozen_paths("word/embedding$", params) == {"encoder/word/embedding"}
    assert frozen_paths("", params) == set()


def test_with_lora_the_body_is_frozen_and_factors_go_with_their_layers():
    lora = {"lora": common.lora() | {"rank": 2}}
    params = read_lora(ConfigDict(lora)).attach(make(), jax.random.key(0))
    own = {p for p in optim.named_leaves(params) if p.startswith("encoder/")}
    assert frozen_paths("", params, **lora) == own | {"lora/scale"}
    factors = {p for p in optim.named_leaves(params) if "lora/" in p and "layer_0/" in p}
    assert len(factors) == 4
    assert frozen_paths("0", params, **lora) == own | factors | {"lora/scale"}
    with_biases = frozen_paths("!bias$", params, **lora)
    assert with_biases == {p for p in own if "bias" not in p} | {"lora/scale"}


def test_frozen_parameters_have_no_moments_and_stay():
    params = make()
    freezing = read_freezing(ConfigDict({"freeze": "encoder,!bias$", "optimizer": SPEC}))
    optimizer = optim.create_optimizer(ConfigDict(SPEC), freezing.patterns, freezing.but)
    state = optimizer.init(params)
    still = freezing.mask(params)
    trained = sum(not leaf for leaf in jax.tree.leaves(still))
    moments = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
    assert len(moments) == 2 * trained < 2 * len(jax.tree.leaves(params))
    grads = jax.tree.map(jnp.ones_like, params)
    updates, _ = optimizer.update(grads, state, params)
    after = optax.apply_updates(params, updates)
    for stays, x, y in zip(*map(jax.tree.leaves, (still, params, after)), strict=True):
        assert np.array_equal(x, y) == stays


@pytest.mark.parametrize(
    ("freeze", "said"),
    [
        ("0-9", "layer 3 is not there: this body has layers 0 to 2"),
        ("embedings", "'embedings' matches no parameter; near it are encoder/"),
        ("encoder,!biass$", "'!biass$' matches no parameter"),
        ("encoder,classifier", "every parameter is frozen"),
        ("3-1", "freeze='3-1': a range of layers goes up"),
        ("a(", "freeze='a(' is not a regular expression"),
    ],
)
def test_what_freezes_nothing_or_all_is_refused(freeze, said):
    with pytest.raises(FirthError) as caught:
        frozen_paths(freeze, make())
    assert said in str(caught.value)


def test_layers_that_share_an_array_have_no_number():
    with pytest.raises(FirthError, match=r"layer 0 has no parameters of its own; set model.scan="):
        frozen_paths("0", to_layout(make(), scan=True))
    with pytest.raises(FirthError, match=r"layer 0 is not there: this body has no layers of its"):
        frozen_paths("0", make("albert"))
