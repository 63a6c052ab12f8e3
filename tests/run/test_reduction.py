"""What is summed over `data`, in which dtype, and where that is the partitioner's."""

import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import jit
from helpers.steps import compiled, small
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from firth.errors import FirthError
from firth.planning.compiler import hlo, topology
from firth.recipe import completed
from firth.run.reduction import compiler_options, over_data
from firth.training.partition import create_mesh

WEIGHT = np.float32(0.1)

ALIKE = SimpleNamespace(by_halves=False)  # an objective whose rows are all alike


def gradient(params, batch, weights, key):
    """A stand-in for the model's: each row is its own gradient, times its weight."""
    del key
    grads = jax.tree.map(lambda p: (batch["x"].sum(0) * weights).reshape(p.shape), params)
    measured = {"rows": (batch["x"].sum(), jnp.float32(len(batch["x"])))}
    return (batch["x"].sum(), measured, grads), [{"seen": batch["x"] + 1}]


def config(dtype="float32", **mesh):
    return ConfigDict({"reduce_dtype": dtype, "mesh": mesh})


def setting(**axes):
    """(parameters, batch, mesh); one parameter's first dimension is divided by eight, one's not."""
    params = {"a": {"scale": np.zeros(16, np.float32)}, "b": {"bias": np.zeros((2, 8), np.float32)}}
    rows = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
    return params, {"x": rows}, create_mesh(dict(data=-1, fsdp=1, tensor=1) | axes)


def trained(tree):
    return jax.tree.map(lambda _: False, tree)


@pytest.mark.parametrize("zero1", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_sum_over_devices(zero1, dtype):
    """Equal to that of the whole batch; in bfloat16 each device's share is rounded first."""
    params, batch, mesh = setting()
    run = over_data(gradient, ALIKE, trained, config(dtype, zero1=zero1), mesh)
    with jax.set_mesh(mesh):
        (loss, measured, grads), (carry,) = jit(run)(params, batch, WEIGHT, jax.random.key(0))
    x = batch["x"]
    np.testing.assert_allclose(loss, x.sum(), rtol=1e-5)
    np.testing.assert_allclose(measured["rows"], (x.sum(), 32), rtol=1e-5)
    np.testing.assert_array_equal(carry["seen"], x + 1)
    shares = x.reshape(8, 4, 16).sum(1) * WEIGHT
    whole, rounded = shares.sum(0), shares.astype(jnp.bfloat16).astype(np.float64).sum(0)
    for leaf in jax.tree.leaves(grads):
        assert leaf.dtype == np.float32
        if dtype == "float32":
            np.testing.assert_allclose(leaf.ravel(), whole, rtol=1e-5, atol=1e-6)
        else:  # within the rounding of the partial sums; not the float32 sum
            np.testing.assert_allclose(leaf.ravel(), rounded, atol=0.02)
            assert abs(np.asarray(leaf).ravel() - whole).max() > 1e-4
    for leaf, spec in zip(jax.tree.leaves(grads), (P("data"), P(None, "data")), strict=True):
        assert leaf.sharding.spec == (spec if zero1 else P())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("zero1", [False, True])
def test_what_is_sent(zero1, dtype):
    """One sum a parameter, in the dtype; metrics in theirs; nothing for what is frozen."""
    params, batch, mesh = setting()
    frozen = lambda tree: {"a": {"scale": False}, "b": {"bias": True}}  # noqa: E731
    run = over_data(gradient, ALIKE, frozen, config(dtype, zero1=zero1), mesh)
    text = jax.jit(run).lower(params, batch, WEIGHT, jax.random.key(0)).as_text()
    sent = re.findall(r'"stablehlo\.(\w+)".*?\}\) : \(tensor<(\S+?)>\)', text, re.DOTALL)
    sent = [(kind, array) for kind, array in sent if kind in ("all_reduce", "reduce_scatter")]
    name = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    kind = "reduce_scatter" if zero1 else "all_reduce"
    assert sorted(sent) == sorted([("all_reduce", "f32")] * 3 + [(kind, f"16x{name}")])


def test_what_stays_the_partitioners():
    _, _, whole = setting()
    _, _, cut = setting(fsdp=2)
    both_ways = SimpleNamespace(by_halves=True)
    alone = create_mesh(devices=jax.devices()[:1])
    same = functools.partial(over_data, gradient)
    assert same(ALIKE, trained, config(), whole) is not gradient
    assert same(ALIKE, trained, config(), cut) is gradient
    assert same(both_ways, trained, config(), whole) is gradient
    assert same(ALIKE, trained, config("bfloat16"), alone) is gradient
    assert same(ALIKE, trained, config("bfloat16"), None) is gradient


def test_a_dtype_that_cannot_be_had_is_refused():
    _, _, whole = setting()
    _, _, cut = setting(tensor=2)
    with pytest.raises(FirthError, match=r"reduce_dtype='fp16' is unknown; one of float32, bf"):
        over_data(gradient, ALIKE, trained, config("fp16"), whole)
    with pytest.raises(FirthError, match=r"'bfloat16' needs .* mesh.tensor cuts"):
        over_data(gradient, ALIKE, trained, config("bfloat16"), cut)
    with pytest.raises(FirthError, match=r"'bfloat16' needs .* two directions"):
        over_data(gradient, SimpleNamespace(by_halves=True), trained, config("bfloat16"), whole)


def test_recipes_without_the_new_fields_still_build():
    made = small("bert").to_dict()
    del made["reduce_dtype"], made["mesh"]["zero1"], made["mesh"]["slices"]
    old = completed(ConfigDict(made))
    assert create_mesh(old.mesh).size == 8
    assert over_data(gradient, ALIKE, trained, old, create_mesh()) is not gradient


def test_other_devices_than_tpus_sum_as_ever():
    for value in (True, False):
        assert compiler_options(ConfigDict({"reduce_async": value}), create_mesh()) == {}


@pytest.fixture
def pod(libtpu):
    """Eight TPUs that are only described."""
    return topology.devices(topology.parse("v5e:2x4"))


@pytest.mark.slow
@pytest.mark.nightly
def test_the_tpu_compiler_sums_beside_the_backward_pass(pod):
    """All but the first layer's sums and the word table's, whose gradients come last."""
    fields = dict(hidden_size=512, intermediate_size=2048, num_layers=3, dtype="bfloat16")
    changes = {f"model.{name}": value for name, value in fields.items()}
    changes |= {"batch_size": 256, "reduce_async": True}
    _, step, mesh, _ = compiled("bert", {}, pod, changes, options=None)
    sent = hlo.collectives(step.as_text(), mesh.shape)
    beside = sum(one.bytes for one in sent if one.asynchronous)
    assert beside > 0.5 * sum(one.bytes for one in sent)


@pytest.mark.slow
def test_options_that_a_compiler_does_not_know_are_an_error(pod, monkeypatch):
    monkeypatch.setattr("firth.run.reduction.ASYNC", {"xla_no_such_thing": "true"})
    with pytest.raises(FirthError, match=r"refuses .*xla_no_such_thing.*set reduce_async=False"):
        compiler_options(ConfigDict({"reduce_async": True}), create_mesh(devices=pod))


@pytest.mark.slow
@pytest.mark.nightly
def test_the_tpu_compiler_scatters_in_bfloat16(pod):
    """The CPU's widens what it sums, so that only a TPU's program shows the dtype that is sent."""
    # Of a width of one tile; what is smaller it sums whole, as it does vectors.
    wide = dict(hidden_size=128, intermediate_size=512, vocab_size=2048)
    changes = {"reduce_dtype": "bfloat16"} | {f"model.{k}": v for k, v in wide.items()}
    program, step, mesh, _ = compiled("bert", dict(zero1=True), pod, changes, options=None)
    total = sum(leaf.size for leaf in jax.tree.leaves(program.state.params))
    sent = hlo.collectives(step.as_text(), mesh.shape)
    summed = [one for one in sent if one.dtype == "bf16"]
    assert {one.kind for one in summed} <= {"reduce-scatter", "all-reduce"}
    assert sum(one.bytes for one in summed) >= 2 * total
    scattered = sum(one.bytes for one in summed if one.kind == "reduce-scatter")
    assert scattered > 0.9 * 2 * total
    gathered = sum(one.bytes for one in sent if one.kind == "all-gather")
    assert gathered > 0.9 * 4 * total
