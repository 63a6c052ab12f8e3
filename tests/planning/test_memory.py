"""Parameters by part and bytes a device, against what published models count and arrays weigh."""

import dataclasses

import jax
import numpy as np
import pytest

from firth import recipe
from firth.errors import FirthError
from firth.planning.memory import device_bytes, laid_out, parameters
from firth.run.outline import outline
from firth.run.program import lay_out
from firth.training.partition import create_mesh


def read(name, **changes):
    config = recipe.read_recipe(name)
    for path, value in changes.items():
        section, _, field = path.rpartition("__")
        (config[section] if section else config)[field] = value
    return outline(config)


def counted(name, devices=1, **changes):
    outlined = read(name, **changes)
    return parameters(outlined, laid_out(outlined, devices).state.params)


def test_parameters_of_bert_base_by_part():
    assert {part: c["total"] for part, c in counted("bert.py:base").items()} == {
        "embeddings": (30522 + 512 + 2) * 768 + 2 * 768,
        "layers": 12 * (12 * 768**2 + 13 * 768),
        "pooler": 768**2 + 768,
        "mlm": 768**2 + 3 * 768 + 30522,
        "nsp": 2 * 768 + 2,
    }


def test_what_is_frozen_is_not_trained():
    parts = counted("distilbert.py:base", accumulate=1)
    assert sum(part["trained"] for part in parts.values()) == 66_985_530
    assert parts["teacher"]["trained"] == 0 < parts["teacher"]["total"]
    frozen = counted("bert.py:tiny", optimizer__freeze=("encoder/word",))
    assert frozen["embeddings"]["trained"] == (512 + 2 + 2) * 128


def test_the_last_norm_is_of_the_layers():
    """Of GPT-2: published as 124,439,808 in all."""
    parts = {part: count["total"] for part, count in counted("gpt2.py:base").items()}
    assert parts == {
        "embeddings": (50257 + 1024) * 768,
        "layers": 12 * (12 * 768**2 + 13 * 768) + 2 * 768,
    }
    assert sum(parts.values()) == 124_439_808


def test_what_is_frozen_has_no_gradient():
    whole, partly = (
        read("bert.py:tiny", model__vocab_size=64, optimizer__freeze=freeze)
        for freeze in ((), ("encoder/word",))
    )
    whole, partly = (device_bytes(one, laid_out(one, 1)) for one in (whole, partly))
    table = 4 * 64 * 128
    assert whole["gradients"] == whole["parameters"] == partly["parameters"]
    assert whole["gradients"] - partly["gradients"] == table
    assert whole["optimiser"] - partly["optimiser"] == 2 * table


def test_what_is_trained_in_any_case_has_a_gradient():
    """A pooler that the weights lack, although the body is frozen."""
    still = read("bert.py:tiny", model__vocab_size=64, optimizer__freeze=("^encoder/",))
    fresh = dataclasses.replace(still, fresh=("^encoder/pooler/",))
    program = laid_out(still, 1)
    pooler = 128**2 + 128
    assert parameters(still, program.state.params)["pooler"]["trained"] == 0
    assert parameters(fresh, program.state.params)["pooler"]["trained"] == pooler
    before, after = (device_bytes(one, program)["gradients"] for one in (still, fresh))
    assert after - before == 4 * pooler


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("bert.py:tiny", dict(mesh__fsdp=2, mesh__tensor=2)),
        ("bert.py:tiny", dict(model__scan=True, mesh__fsdp=8)),
        ("xlnet.py:tiny,length=64", dict(mesh__tensor=2)),
    ],
)
def test_bytes_are_those_of_the_arrays_on_a_device(name, mesh):
    """The state is laid out over eight devices in earnest."""
    outlined = read(name, batch_size=16, model__vocab_size=64, **mesh)
    config = outlined.config
    planned = device_bytes(outlined, laid_out(outlined, 8))
    real = create_mesh(config.mesh, jax.devices()[:8])
    program = lay_out(outlined.model, outlined.objective, config, outlined.steps, real)

    def weigh(tree):
        arrays = jax.tree.map(
            lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), tree
        )
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(arrays))

    assert planned["parameters"] == planned["gradients"] == weigh(program.state.params)
    assert planned["optimiser"] == weigh(program.state.opt_state)
    assert planned.get("carry", 0) == weigh(program.state.carry)


@pytest.mark.parametrize(
    ("changes", "devices", "wrong"),
    [
        (dict(mesh__tensor=3), 8, "does not cover the 8 devices"),
        (dict(batch_size=100), 8, "batch_size=100 is not a multiple"),
        (dict(batch_size=8, accumulate=2), 8, "accumulate = 16"),
    ],
)
def test_a_mesh_that_divides_neither_devices_nor_batch(changes, devices, wrong):
    with pytest.raises(FirthError, match=wrong):
        laid_out(read("bert.py:tiny", **changes), devices)
