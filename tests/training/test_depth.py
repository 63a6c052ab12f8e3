"""Learning rates that decay with depth."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from firth import recipe
from firth.errors import FirthError
from firth.models.model import create
from firth.training import optim
from firth.training.unfreezing.depth import scale_by_depth


def _depths(decay, top, params):
    scale = scale_by_depth(decay, top)
    ones = jax.tree.map(jnp.ones_like, params)
    scaled, _ = scale.update(ones, scale.init(params))
    return scaled


@pytest.mark.parametrize("top", [0, 1, 2])
@pytest.mark.parametrize("first_alone", [False, True])
def test_rates_decay_with_depth(top, first_alone):
    leaf = jnp.zeros((2, 3))
    rest = {"word": {"embedding": leaf}, "project": {"kernel": leaf}, "pooler": {"kernel": leaf}}
    rest["final_norm"] = {"scale": leaf}
    unrolled = {f"layer_{i}": {"mlp_in": {"kernel": leaf}} for i in range(3)}
    stacked = {"layers": {"mlp_in": {"kernel": jnp.zeros((3 - first_alone, 2, 3))}}}
    if first_alone:
        stacked["layer_0"] = unrolled["layer_0"]
    head = {"classifier": {"dense": {"kernel": leaf}}}
    # Of three layers from the top, and below them: d, d^2, d^3, d^4; ELECTRA's code has one d more,
    # XLNet's paper one less.
    d = 0.5
    below, *expected = {
        0: [d**3, d**2, d, 1],
        1: [d**4, d**3, d**2, d],
        2: [d**5, d**4, d**3, d**2],
    }[top]
    for stack in (unrolled, stacked):
        found = _depths(d, top, {"encoder": rest | {"stack": stack}, **head})
        assert float(found["classifier"]["dense"]["kernel"][0, 0]) == 1
        encoder = found["encoder"]
        assert float(encoder["pooler"]["kernel"][0, 0]) == 1
        assert float(encoder["final_norm"]["scale"][0, 0]) == 1
        assert float(encoder["word"]["embedding"][0, 0]) == below
        assert float(encoder["project"]["kernel"][0, 0]) == below
        layers = [
            encoder["stack"][f"layer_{i}"]["mlp_in"]["kernel"]
            for i in range(3)
            if f"layer_{i}" in encoder["stack"]
        ]
        if "layers" in stack:
            layers += list(encoder["stack"]["layers"]["mlp_in"]["kernel"])
        assert [float(layer[0, 0]) for layer in layers] == expected


SPARED = dict(layer_decay=0.5, layer_decay_exclude=("stack/",))


@pytest.mark.parametrize(
    ("fields", "decay"), [(dict(), 1), (dict(layer_decay=0.5), 0.5), (SPARED, 1)]
)
@pytest.mark.parametrize("top", [0, 1, 2])
def test_the_recipe_decides_the_decay(fields, decay, top):
    """Of what is applied, so behind Adam, which undoes every factor on the gradient."""
    leaf = jnp.ones((2, 3))
    layers = {"layer_0": {"scale": leaf}, "layer_1": {"scale": leaf}}
    params = {"encoder": {"stack": layers}, "mlm": leaf}
    spec = dict(name="adamw", b1=0.9, b2=0.999, eps=0.0, bias_correction=True, weight_decay=0.0)
    spec |= dict(decay_exclude=(), clip_norm=0.0, multipliers=(), freeze=()) | fields
    spec |= dict(layer_decay_top=top) if fields else {}
    optimizer = optim.create_optimizer(ConfigDict(spec))
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    layers = updates["encoder"]["stack"]
    found = [updates["mlm"], layers["layer_1"]["scale"], layers["layer_0"]["scale"]]
    expected = [1, decay**top, decay ** (top + 1)]
    np.testing.assert_allclose([float(u[0, 0]) for u in found], expected, rtol=1e-5)


def test_what_is_excluded_keeps_its_rate():
    """ULMFiT's language model: its embeddings are its softmax, the top of the model."""
    leaf = jnp.ones((2, 3))
    encoder = {"word": {"embedding": leaf}, "stack": {"layer_0": leaf, "layer_1": {"bias": leaf}}}
    encoder["stack"]["layer_0"] = {"bias": leaf}
    scale = scale_by_depth(0.5, exclude=("word/embedding$",))
    found, _ = scale.update({"encoder": encoder}, scale.init(encoder))
    assert float(found["encoder"]["word"]["embedding"][0, 0]) == 1
    layers = found["encoder"]["stack"]
    assert [float(layers[f"layer_{i}"]["bias"][0, 0]) for i in (0, 1)] == [0.25, 0.5]


def test_shared_layers_have_no_depth():
    shared = {"encoder": {"stack": {"group_0": {"inner_0": {"bias": jnp.zeros(2)}}}}}
    with pytest.raises(FirthError, match="no layers of its own"):
        _depths(0.8, 1, shared)


def test_xlnet_spares_its_top_layer_and_its_embeddings():
    """On SQuAD: layer m of M has .75 ** (M - m) of the rate (Yang et al. 2019)."""
    spec = recipe.read_recipe("squad.py:v1,family=xlnet").optimizer
    body = dict(family="xlnet", vocab_size=9, num_layers=3, hidden_size=8, num_heads=2)
    model = create(body | dict(intermediate_size=8), ("answer",))
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 4), int))["params"]
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape), shapes)
    scale = scale_by_depth(spec.layer_decay, spec.layer_decay_top, spec.layer_decay_exclude)
    scaled, _ = scale.update(ones, scale.init(ones))
    leaves = [float(leaf.ravel()[0]) for leaf in jax.tree.leaves(scaled)]
    factors = dict(zip(optim.named_leaves(scaled), leaves, strict=True))
    for name, factor in factors.items():
        number = re.search(r"layer_(\d)", name)
        assert factor == (0.75 ** (2 - int(number[1])) if number else 1), name
    assert {1, 0.75, 0.75**2} == set(factors.values())
