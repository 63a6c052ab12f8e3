"""Learning rates that decay with depth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from firth.errors import FirthError
from firth.training import optim
from firth.training.unfreezing.depth import scale_by_depth


def _depths(decay, legacy, params):
    scale = scale_by_depth(decay, legacy)
    ones = jax.tree.map(jnp.ones_like, params)
    scaled, _ = scale.update(ones, scale.init(params))
    return scaled


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("first_alone", [False, True])
def test_rates_decay_with_depth(legacy, first_alone):
    leaf = jnp.zeros((2, 3))
    rest = {"word": {"embedding": leaf}, "project": {"kernel": leaf}, "pooler": {"kernel": leaf}}
    rest["final_norm"] = {"scale": leaf}
    unrolled = {f"layer_{i}": {"mlp_in": {"kernel": leaf}} for i in range(3)}
    stacked = {"layers": {"mlp_in": {"kernel": jnp.zeros((3 - first_alone, 2, 3))}}}
    if first_alone:
        stacked["layer_0"] = unrolled["layer_0"]
    head = {"classifier": {"dense": {"kernel": leaf}}}
    # Of three layers: d, d^2, d^3 from the top, d^4 below them; the released code has one d more.
    d = 0.5
    expected = [d**3, d**2, d] if not legacy else [d**4, d**3, d**2]
    below = d**4 if not legacy else d**5
    for stack in (unrolled, stacked):
        found = _depths(d, legacy, {"encoder": rest | {"stack": stack}, **head})
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
    ("fields", "top"), [(dict(), 1), (dict(layer_decay=0.5), 0.5), (SPARED, 1)]
)
@pytest.mark.parametrize("legacy", [False, True])
def test_the_recipe_decides_the_decay(fields, top, legacy):
    """Of what is applied, so behind Adam, which undoes every factor on the gradient."""
    leaf = jnp.ones((2, 3))
    layers = {"layer_0": {"scale": leaf}, "layer_1": {"scale": leaf}}
    params = {"encoder": {"stack": layers}, "mlm": leaf}
    spec = dict(name="adamw", b1=0.9, b2=0.999, eps=0.0, bias_correction=True, weight_decay=0.0)
    spec |= dict(decay_exclude=(), clip_norm=0.0, multipliers=(), freeze=()) | fields
    spec |= dict(legacy_layer_decay=legacy) if fields else {}
    optimizer = optim.create_optimizer(ConfigDict(spec))
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    layers = updates["encoder"]["stack"]
    found = [updates["mlm"], layers["layer_1"]["scale"], layers["layer_0"]["scale"]]
    expected = [1, top * (top if legacy else 1), top**2 * (top if legacy else 1)]
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
        _depths(0.8, False, shared)
