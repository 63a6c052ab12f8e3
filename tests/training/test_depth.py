"""Learning rates that decay with depth."""

import jax
import jax.numpy as jnp
import pytest

from firth.errors import FirthError
from firth.training import optim


def _depths(decay, legacy, params):
    scale = optim.scale_by_depth(decay, legacy)
    ones = jax.tree.map(jnp.ones_like, params)
    scaled, _ = scale.update(ones, scale.init(params))
    return scaled


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("first_alone", [False, True])
def test_rates_decay_with_depth(legacy, first_alone):
    leaf = jnp.zeros((2, 3))
    rest = {"word": {"embedding": leaf}, "project": {"kernel": leaf}, "pooler": {"kernel": leaf}}
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


def test_shared_layers_have_no_depth():
    shared = {"encoder": {"stack": {"group_0": {"inner_0": {"bias": jnp.zeros(2)}}}}}
    with pytest.raises(FirthError, match="no layers of its own"):
        _depths(0.8, False, shared)
