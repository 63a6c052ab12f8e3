"""Every family on every kind of mesh: after ten steps, the numbers of one device."""

import functools

import jax
import numpy as np
import pytest
from made_steps import FAMILIES, trained

LAYOUTS = {
    "data": dict(data=8),
    "fsdp": dict(data=1, fsdp=8),
    "tensor": dict(data=1, tensor=8),
    "data x fsdp": dict(data=4, fsdp=2),
    "data x fsdp x tensor": dict(data=2, fsdp=2, tensor=2),
    "data x tensor": dict(data=2, tensor=4),
    "zero1": dict(data=8, zero1=True),
    "zero1 x fsdp": dict(data=4, fsdp=2, zero1=True),
    "slices": dict(data=8, slices=2),
}
# All of BERT's, and of the others the product, one in which devices differentiate rows of their
# own, and one more: that which asks most of the family's own parts.
FEW = ("data x fsdp x tensor", "zero1")
CASES = [("bert", layout) for layout in LAYOUTS] + [
    (family, layout)
    for family, third in {
        "roberta": "data",
        "albert": "tensor",
        "distilbert": "fsdp",
        "electra": "data x tensor",
        "modernbert": "tensor",
        "xlnet": "data x tensor",
        "transformer_xl": "tensor",
        "gpt": "zero1 x fsdp",
        "gpt2": "fsdp",
    }.items()
    for layout in (*FEW, third)
]


def test_every_family_is_here():
    from firth.models import FAMILIES as KNOWN

    assert {family for family, _ in CASES} == KNOWN.keys() == FAMILIES.keys()


@functools.cache
def alone(family):
    """Losses and parameters of a family on one device; compiled once for all its layouts."""
    return trained(family, devices=jax.devices()[:1])


@pytest.mark.slow
@pytest.mark.parametrize(("family", "layout"), CASES)
def test_ten_steps_equal_those_of_one_device(family, layout):
    losses, params = alone(family)
    found, others = trained(family, LAYOUTS[layout])
    assert len(losses) == 10 and len(set(losses)) == 10
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    assert others.keys() == params.keys()
    for name in params:  # every element has moved by up to ten times the rate, that is 1e-2
        np.testing.assert_allclose(others[name], params[name], atol=2e-5, err_msg=name)
