"""The sharding table: every leaf of every model is decided, and sharding changes no number."""

import functools
import math
import re
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import nightly
from helpers.quick import jit
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from firth import recipe
from firth.errors import FirthError
from firth.models.bert import SIZES, size
from firth.models.model import create, family
from firth.objectives.mlm import MaskedLM
from firth.training import partition
from firth.training.optim import create_optimizer, named_leaves
from firth.training.partition import (
    create_mesh,
    divided,
    leaf_path,
    put_batch,
    shardings_of,
    spec_of,
)
from firth.training.state import TrainState

HEADS = ("mlm", "nsp", "classifier")


@functools.cache
def state_shapes(published, scan=False, **optimizer):
    """The shapes of the whole train state of a published size with every head."""
    config = recipe.read_recipe("bert.py:tiny")
    spec = dict(config.model) | size(published) | dict(vocab_size=30522, scan=scan)
    fields = ConfigDict(config.optimizer.to_dict() | optimizer)
    model = create(spec, HEADS)

    def init(key):
        params = model.init(key, jnp.zeros((1, 8), jnp.int32))["params"]
        return TrainState.create(params, create_optimizer(fields))

    return jax.eval_shape(init, jax.random.key(0))


@functools.cache
def mesh(data=2, fsdp=2, tensor=2):
    return create_mesh(dict(data=data, fsdp=fsdp, tensor=tensor))


def by_path(tree):
    is_leaf = lambda x: isinstance(x, NamedSharding)  # noqa: E731
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return {leaf_path(path): leaf for path, leaf in leaves}


# --------------------------------------------------------------------------------- the mesh


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (None, (8, 1, 1)),
        (dict(data=-1, fsdp=1, tensor=1), (8, 1, 1)),
        (dict(data=-1, fsdp=2, tensor=2), (2, 2, 2)),
        (dict(data=1, fsdp=-1, tensor=4), (1, 2, 4)),
        (dict(data=4, fsdp=2, tensor=1), (4, 2, 1)),
        (dict(data=-1, fsdp=8, tensor=1), (1, 8, 1)),
    ],
)
def test_mesh_sizes(spec, shape):
    found = create_mesh(spec)
    assert found.axis_names == ("data", "fsdp", "tensor") == partition.AXES
    assert tuple(found.shape.values()) == shape


@pytest.mark.parametrize(
    "spec",
    [
        dict(data=3, fsdp=1, tensor=1),
        dict(data=-1, fsdp=3, tensor=1),
        dict(data=4, fsdp=4, tensor=1),
        dict(data=-1, fsdp=16, tensor=1),
        dict(data=-1, fsdp=0, tensor=1),
        dict(data=-1, fsdp=-1, tensor=1),
        dict(data=-2, fsdp=-4, tensor=1),
    ],
)
def test_a_mesh_that_does_not_cover_the_devices_is_refused(spec):
    with pytest.raises(FirthError, match=r"mesh .* 8 devices"):
        create_mesh(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (dict(data=8, slices=3), r"mesh.slices=3 does not divide mesh.data=8"),
        (dict(data=2, fsdp=4, slices=4), r"mesh.slices=4 does not divide mesh.data=2"),
        (dict(data=8, slices=0), r"mesh.slices=0 does not divide"),
    ],
)
def test_slices_that_do_not_divide_are_refused(spec, message):
    with pytest.raises(FirthError, match=message):
        create_mesh(dict(fsdp=1, tensor=1) | spec)


def described(count, slices, platform="tpu"):
    """Stand-ins for the devices of a pod, interleaved so that their order says nothing."""
    return [
        SimpleNamespace(id=i, slice_index=i % slices, platform=platform, device_kind="")
        for i in range(count)
    ]


@pytest.mark.parametrize("sizes", [(8, 1, 1), (4, 2, 1), (2, 2, 2)])
def test_only_data_crosses_slices(sizes):
    """The devices of a slice are one block of `data`, named by the devices or simulated."""
    spec = dict(zip(partition.AXES, sizes, strict=True)) | dict(slices=2)
    simulated = np.vectorize(lambda device: device.id // 4)(create_mesh(spec).devices)
    named = partition.arranged(list(sizes), 2, described(8, 2, "cpu"))
    for slices in (simulated, np.vectorize(lambda device: device.slice_index)(named)):
        assert slices.shape == sizes
        assert (slices == np.repeat([0, 1], sizes[0] // 2)[:, None, None]).all()


@pytest.mark.parametrize(("asked", "there"), [(1, 2), (2, 1), (4, 2)])
def test_slices_other_than_those_of_the_devices_are_refused(asked, there):
    with pytest.raises(FirthError, match=rf"mesh.slices={asked}, but the devices .* {there}; set"):
        partition.arranged([8, 1, 1], asked, described(8, there))


def test_a_mesh_over_some_devices():
    assert create_mesh(devices=jax.devices()[:2]).size == 2


# -------------------------------------------------------------------------------- the table

STATES = [  # sizes differ in numbers of layers, which have the same names
    *(nightly(published, {}) for published in SIZES),
    *(("mini", dict(scan=True)), ("mini", dict(name="lamb"))),
    ("mini", dict(freeze=("^encoder/",), multipliers=(("classifier/", 2.0),))),
]


@pytest.mark.parametrize(("published", "changes"), STATES)
def test_every_leaf_is_matched_or_listed_and_no_matrix_is_replicated(published, changes):
    """On every kind of mesh; what the table leaves whole is a vector or a counter."""
    shapes = state_shapes(published, **changes)
    for sizes in ((8, 1, 1), (2, 2, 2), (1, 8, 1), (1, 1, 8)):
        assert list(by_path(shardings_of(shapes, mesh(*sizes)))) == list(by_path(shapes))
    rules = [pattern for pattern, _ in partition.RULES]
    for path, leaf in by_path(shapes).items():
        ruled = [pattern for pattern in rules if re.search(pattern, path)]
        listed = [pattern for pattern in partition.REPLICATED if re.search(pattern, path)]
        assert ruled or listed, path
        if not ruled:
            stacked = leaf.shape[1:] if "/layers/" in path else leaf.shape
            assert len(stacked) <= 1, f"{path} {leaf.shape} is replicated"


OWN_RULES = {"xlnet": (), "lstm": ("lm",), "elmo": ("bilm",), "tagger": ("crf",)}  # -> heads


def body_shapes(name, words):
    """The shapes of the smallest body of a family, whose rules are its own."""
    module, heads = family(name), OWN_RULES[name]
    mixed = dict(feature_size=8, feature_mix=3)
    sizes = mixed if name == "tagger" else module.size("tiny")
    spec = dict(family=name, vocab_size=words, **sizes)
    init = functools.partial(create(spec, heads).init, jax.random.key(0), jnp.zeros((1, 8), int))
    return jax.eval_shape(init)


def test_every_rule_is_used():
    others = [path for name in OWN_RULES for path in by_path(body_shapes(name, 99))]
    paths = [*by_path(state_shapes("tiny")), *others, "carry/filled", "plateau/factor"]
    paths += ["params/lora/encoder/stack/layer_0/attention/query/kernel/a"]
    for pattern in [p for p, _ in partition.RULES] + list(partition.REPLICATED):
        assert any(re.search(pattern, path) for path in paths), pattern


@pytest.mark.parametrize("scan", [False, True])
def test_moments_lie_where_their_parameter_lies(scan):
    shardings = by_path(shardings_of(state_shapes("base", scan), mesh()))
    params = {k.removeprefix("params/"): v for k, v in shardings.items() if k.startswith("params/")}
    for moment in ("mu", "nu"):
        found = {k.split(f"/{moment}/")[1]: v for k, v in shardings.items() if f"/{moment}/" in k}
        assert found == params


def test_scanned_layers_are_cut_as_unrolled_ones_and_never_along_the_layers():
    loop = by_path(shardings_of(state_shapes("base").params, mesh()))
    scan = by_path(shardings_of(state_shapes("base", scan=True).params, mesh()))
    stacked = {path: s.spec for path, s in scan.items() if "/layers/" in path}
    assert len(stacked) == 16
    for path, spec in stacked.items():
        assert not spec or spec[0] is None
        assert P(*spec[1:]) == loop[path.replace("/layers/", "/layer_7/")].spec, path


def test_the_table_says_what_megatron_does():
    """Heads and the MLP's hidden axis over `tensor`; the other side of each matrix over `fsdp`."""
    found = by_path(shardings_of(state_shapes("base").params, mesh()))
    layer = "encoder/stack/layer_0/"
    for name in ("attention/query", "attention/key", "attention/value", "mlp_in"):
        assert found[f"{layer}{name}/kernel"].spec == P("fsdp", "tensor")
        assert found[f"{layer}{name}/bias"].spec == P("tensor")
    for name in ("attention/output", "mlp_out"):
        assert found[f"{layer}{name}/kernel"].spec == P("tensor", "fsdp")
        assert found[f"{layer}{name}/bias"].spec == P()
    assert found["encoder/word/embedding"].spec == P("tensor", "fsdp")


def test_an_axis_that_does_not_divide_is_left_out():
    wide = mesh(1, 2, 4)
    assert spec_of("encoder/word/embedding", (30522, 768), wide) == P(None, "fsdp")
    assert spec_of("encoder/word/embedding", (30528, 768), wide) == P("tensor", "fsdp")
    assert spec_of("encoder/word/embedding", (30528, 5), wide) == P("tensor", None)
    assert spec_of("x/layers/query/kernel", (4, 6, 6), wide) == P(None, "fsdp", None)


def expected(shapes, rules):
    """PartitionSpecs of every leaf on a 2 x 2 x 2 mesh, or None where no rule names one."""
    found = {}
    for path, leaf in by_path(shapes).items():
        try:
            found[path] = spec_of(path, leaf.shape, mesh(), rules)
        except FirthError:
            found[path] = None
    return found


@pytest.mark.parametrize("dropped", range(len(partition.RULES)))
def test_no_rule_can_be_dropped(dropped, every_leaf):
    """Without it some leaf is unmatched, or lies otherwise than it should."""
    rest = partition.RULES[:dropped] + partition.RULES[dropped + 1 :]
    whole = expected(every_leaf, partition.RULES)
    assert None not in whole.values()
    without = expected(every_leaf, rest)
    changed = [path for path in whole if without[path] != whole[path]]
    assert changed, partition.RULES[dropped]


@pytest.fixture(scope="module")
def every_leaf():
    """The state of a BERT, bodies with rules of their own, and what a memory leaves."""
    memory = {"carry": {"hidden": jax.ShapeDtypeStruct((8, 2, 4, 16), np.float32)}}
    gpt = {"qkv": {"kernel": jax.ShapeDtypeStruct((16, 48), np.float32)}}
    others = {name: body_shapes(name, 96) for name in OWN_RULES}
    return {"bert": state_shapes("tiny"), "gpt": gpt} | others | memory


# ------------------------------------------------------------------------------------- ZeRO-1


@pytest.mark.parametrize("scan", [False, True])
def test_zero1_divides_the_moments_and_nothing_else(scan):
    shapes = state_shapes("base", scan)
    plain = by_path(shardings_of(shapes, mesh(8, 1, 1)))
    found = by_path(shardings_of(shapes, mesh(8, 1, 1), zero1=True))
    leaves, whole = by_path(shapes), []
    for path, leaf in leaves.items():
        moment = re.search("/(mu|nu)/", path)
        if not moment:
            assert found[path] == plain[path], path
        elif "data" not in found[path].spec:
            whole.append(path)
            assert all(size % 8 for size in leaf.shape[scan and "/layers/" in path :]), path
        else:
            assert found[path].num_devices == 8
            assert math.prod(found[path].shard_shape(leaf.shape)) * 8 == leaf.size, path
            assert "/layers/" not in path or found[path].spec[0] is None, path
    assert {path.split("/mu/")[-1].split("/nu/")[-1] for path in whole} == {
        "classifier/dense/bias",
        "mlm/bias",
        "nsp/dense/bias",
    }


def test_zero1_comes_on_top_of_the_rules():
    wide = mesh(2, 2, 2)
    path, shape = "opt_state/0/mu/encoder/stack/layer_0/mlp_in/kernel", (768, 3072)
    plain = spec_of(path, shape, wide)
    assert plain == divided(plain, path, shape, wide) == P("fsdp", "tensor")  # no dimension is left
    assert divided(P("fsdp", "tensor"), path, shape, mesh(4, 2, 1)) == P("fsdp", "data")
    assert divided(P(None, "fsdp"), "position/embedding", (512, 768), wide) == P("data", "fsdp")
    assert divided(P(), "norm/scale", (768,), wide) == P("data")
    assert divided(P(), "mlm/bias", (30521,), wide) == P()
    assert divided(P(None), "x/layers/norm/scale", (2, 7), wide) == P(None)


def test_zero1_keeps_state_of_an_eighth_of_the_moments():
    shapes = state_shapes("base").opt_state
    over = by_path(shardings_of({"opt_state": shapes}, mesh(8, 1, 1), zero1=True))
    leaves = by_path({"opt_state": shapes})
    share = sum(math.prod(over[path].shard_shape(leaf.shape)) for path, leaf in leaves.items())
    assert share < sum(leaf.size for leaf in leaves.values()) / 8 * 1.01


def test_frozen_parameters_have_no_moments_to_follow():
    params = {"a": {"scale": np.zeros(16)}, "b": {"scale": np.zeros(16)}}
    frozen = {"a": {"scale": True}, "b": {"scale": False}}
    found = partition.moment_specs(params, frozen, mesh())
    assert found == {"a": {"scale": P()}, "b": {"scale": P("data")}}


def test_an_unknown_leaf_is_refused_where_parameters_are_cut():
    with pytest.raises(FirthError, match=r"no sharding rule matches encoder/gate/weight \(3, 4\)"):
        shardings_of({"encoder": {"gate": {"weight": np.zeros((3, 4))}}}, mesh())
    whole = shardings_of({"gate": np.zeros((3, 4))}, mesh(8, 1, 1))  # no axis cuts parameters
    assert whole["gate"].spec == P()


def test_fully_sharded_state_takes_an_eighth_of_the_memory():
    shapes = state_shapes("base")
    shardings = shardings_of(shapes, mesh(1, 8, 1))
    whole = sum(math.prod(s.shape) for s in jax.tree.leaves(shapes))
    share = jax.tree.map(lambda s, cut: math.prod(cut.shard_shape(s.shape)), shapes, shardings)
    assert sum(jax.tree.leaves(share)) < whole / 8 * 1.02


# --------------------------------------------------------------------------------- in use


def test_put_batch_cuts_rows_over_data_and_fsdp():
    batch = {"tokens": np.arange(48).reshape(16, 3), "weight": np.arange(16.0)}
    found = put_batch(batch, mesh())
    for name, rows in batch.items():
        np.testing.assert_array_equal(found[name], rows)
        assert found[name].sharding.shard_shape(rows.shape)[0] == 4
        assert len(found[name].sharding.device_set) == 8


@pytest.fixture(scope="module")
def small():
    """A small scanned model, its parameters, a corrupted batch and its loss and gradient."""
    spec = dict(
        family="bert",
        vocab_size=40,
        num_layers=2,
        hidden_size=16,
        num_heads=4,
        intermediate_size=32,
        max_length=12,
        scan=True,
    )
    objective = MaskedLM(4, 40, (0, 2, 3), max_predictions=3, pairs="nsp")
    model = create(spec, objective.heads)
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 12), int))["params"]
    params = jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.3).astype(np.float32), shapes)
    batch = {
        "tokens": rng.integers(5, 40, (16, 12)).astype(np.int32),
        "segments": rng.integers(0, 2, (16, 12)).astype(np.int32),
        "mask": np.arange(12) < rng.integers(4, 13, (16, 1)),
        "next": rng.integers(0, 2, 16).astype(np.int32),
        "example": np.arange(16, dtype=np.uint32),
        "copy": np.zeros(16, np.uint32),
    }

    def loss(params, batch):
        batch = objective.corrupt(batch, jax.random.key(1))
        losses = functools.partial(objective.losses, train=True)
        sums, metrics = nn.apply(lambda m, b: losses(m, b), model)(
            {"params": params}, batch, rngs={"dropout": jax.random.key(2)}
        )
        return sum(sums.values()), (metrics, batch["tokens"])

    run = jax.value_and_grad(loss, has_aux=True)
    return params, batch, run, jax.device_get(jit(run)(params, batch))


@pytest.mark.parametrize("sizes", [nightly((8, 1, 1)), (2, 2, 2)])
def test_eight_devices_compute_what_one_computes(small, sizes):
    """Corruption and dropout on: masks equal bit for bit, loss and gradients but for rounding."""
    params, batch, run, ((loss, (metrics, tokens)), gradient) = small
    over = mesh(*sizes)
    shardings = shardings_of(params, over)
    sharded = jax.tree.map(jax.device_put, params, shardings)
    kernel = sharded["encoder"]["stack"]["layers"]["mlp_in"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (2, 16 // sizes[1], 32 // sizes[2])
    with jax.set_mesh(over):
        step = jit(run, in_shardings=(shardings, None), out_shardings=(None, shardings))
        found, new = step(sharded, put_batch(batch, over))
    np.testing.assert_array_equal(found[1][1], tokens)
    np.testing.assert_allclose(found[0], loss, rtol=1e-5)
    for name, pair in metrics.items():
        np.testing.assert_allclose(found[1][0][name], pair, rtol=1e-5, err_msg=name)
    for name, a, b in zip(
        named_leaves(gradient), jax.tree.leaves(gradient), jax.tree.leaves(new), strict=True
    ):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4, err_msg=name)
