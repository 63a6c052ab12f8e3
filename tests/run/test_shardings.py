"""Every family on every kind of mesh: after ten steps, the numbers of one device."""

import functools

import jax
import numpy as np
import pytest
from helpers.cases import nightly
from helpers.steps import FAMILIES, trained

from firth.training.partition import leaf_path

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
        "lstm": "tensor",
        "rnn": "data x tensor",
        "awd_lstm": "fsdp",
        "rhn": "fsdp",
        "char_cnn_lstm": "fsdp",
        "elmo": "fsdp",
        "feedforward": "tensor",
    }.items()
    for layout in (*FEW, third)
]
# BERT over every axis alone and over all, all axes for two that are built otherwise, and two more
# whose gradients ZeRO-1 scatters: one with micro-batches and one that is no Transformer.
OTHERS = ("electra", "lstm")
OF_BERT = ("data", "fsdp", "tensor", "zero1", "slices", FEW[0])
IN_CI = [("bert", layout) for layout in OF_BERT] + [(family, FEW[0]) for family in OTHERS]
IN_CI += [("roberta", "zero1"), ("feedforward", "zero1")]


def marked(family, layout):
    """The case, nightly if CI does not run it."""
    return (family, layout) if (family, layout) in IN_CI else nightly(family, layout)


def test_every_family_is_here():
    from firth.models import FAMILIES as KNOWN

    assert {family for family, _ in CASES} == KNOWN.keys() - {"tagger"} == FAMILIES.keys()


@functools.cache
def alone(family):
    """A family on one device; compiled once for all its layouts."""
    return trained(family, devices=jax.devices()[:1])


@functools.cache
def spread(family, layout):
    """A family on eight devices, from the same values."""
    return trained(family, LAYOUTS[layout], initial=alone(family).initial)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "layout"), [marked(*case) for case in CASES])
def test_ten_steps_equal_those_of_one_device(family, layout):
    one, eight = alone(family), spread(family, layout)
    assert len(one.losses) == 10 == len(set(one.losses))
    np.testing.assert_allclose(eight.losses, one.losses, rtol=1e-5)
    assert eight.params.keys() == one.params.keys()
    for name in one.params:  # every element has moved by up to ten times the rate, that is 1e-2
        np.testing.assert_allclose(
            eight.params[name], one.params[name], atol=2e-5, rtol=0, err_msg=name
        )


def bytes_by(sent, kind) -> int:
    """Bytes of all collectives of a kind."""
    return sum(one.bytes * one.times for one in sent if one.kind == kind)


def learned(program):
    """{path: (parameter, whether ZeRO-1 divides its moments)} of what gets a gradient."""
    moments = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(program.state.opt_state)[0]:
        if "/mu/" in (path := leaf_path(path)):
            moments[path.split("/mu/")[1]] = leaf, "data" in leaf.sharding.spec
    return moments


# Metrics, weights, finiteness and the norms: a number each, fewer than this many bytes in all.
NUMBERS = 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layout"), [marked(family, "zero1") for family in FAMILIES if family != "xlnet"]
)
def test_zero1_scatters_every_gradient_and_gathers_every_parameter_once(family, layout):
    """XLNet's rows run in two directions, which leaves its sums to the partitioner.

    AWD-LSTM has its averages, too.
    """
    run, copies = spread(family, layout), 1 + (family == "awd_lstm")
    moments = learned(run.program)
    scattered = sum(4 * leaf.size for leaf, divided in moments.values() if divided)
    whole = sum(4 * leaf.size for leaf, divided in moments.values() if not divided)
    assert scattered > 50 * whole
    assert {one.kind for one in run.sent} == {"all-reduce", "reduce-scatter", "all-gather"}
    assert bytes_by(run.sent, "reduce-scatter") == scattered
    assert bytes_by(run.sent, "all-gather") == copies * scattered
    assert whole <= bytes_by(run.sent, "all-reduce") < whole + NUMBERS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layout"),
    [marked(*case) for case in (("bert", "data"), ("bert", "slices"), ("roberta", "data"))],
)
def test_data_parallelism_sums_every_gradient_once_and_nothing_else(family, layout):
    """BERT's word table is used twice, and RoBERTa's batch has two micro-batches here."""
    run = spread(family, layout)
    total = sum(4 * leaf.size for leaf, _ in learned(run.program).values())
    assert {one.kind for one in run.sent} == {"all-reduce"}
    assert total <= bytes_by(run.sent, "all-reduce") < total + NUMBERS
