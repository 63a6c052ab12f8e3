"""XLNet's rows that run both ways, through micro-batches and over devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import nightly
from helpers.quick import jit
from helpers.stores import END, FIRST, IDS, store_of
from helpers.views import streams
from jax.sharding import NamedSharding, PartitionSpec

from firth.models.model import create
from firth.objectives.plm import PermutationLM
from firth.planning.compiler import hlo
from firth.recipe import read_recipe
from firth.run.program import join_rows, make_gradient, split_rows
from firth.training import partition

LENGTH, REUSE, ROWS, WORDS = 16, 8, 8, 480


@pytest.fixture(scope="module")
def batch():
    """The second batch of XLNet's rows; token FIRST + n is the n-th of the text."""
    view = streams(
        store_of([[5, 6, 4, 7] * 4] * 5), LENGTH, reuse=REUSE, bidirectional=True, shuffle=False,
        end_id=END, ends="none", **IDS,
    )  # fmt: skip
    return view.batch(1, ROWS)


def forward_rows(tokens_BL):
    """Whether the reused text of each row is read from left to right, bool [B]."""
    steps = np.diff(np.asarray(tokens_BL)[:, :REUSE], axis=1)
    assert (np.abs(steps) == 1).all() and (steps == steps[:, :1]).all()
    return steps[:, 0] == 1


@pytest.mark.parametrize("n", [1, 2, 4])
def test_every_micro_batch_runs_forward_and_then_backward(batch, n):
    assert batch["tokens"].min() < FIRST < batch["tokens"].max() < WORDS
    assert forward_rows(batch["tokens"]).tolist() == [True] * (ROWS // 2) + [False] * (ROWS // 2)
    parts = split_rows(batch["tokens"], n)
    assert parts.shape == (n, ROWS // n, LENGTH)
    half = ROWS // n // 2
    for part in parts:
        assert forward_rows(part).tolist() == [True] * half + [False] * half
    np.testing.assert_array_equal(join_rows(parts), batch["tokens"])


def test_splitting_moves_no_row_to_another_device(batch):
    """Each of four devices keeps its two rows, one in each of two micro-batches."""
    mesh = partition.create_mesh(dict(data=4, fsdp=1, tensor=1), jax.devices()[:4])
    rows = jax.device_put(batch["tokens"], NamedSharding(mesh, partition.BATCH))
    parts = NamedSharding(mesh, PartitionSpec(None, *partition.BATCH))
    step = jit(functools.partial(split_rows, n=2), out_shardings=parts).lower(rows).compile()
    assert not hlo.collectives(step.as_text(), mesh.shape)
    found = np.asarray(step(rows))
    assert [forward_rows(part).tolist() for part in found] == [[True, True, False, False]] * 2


@functools.cache
def made():
    spec = dict(
        family="xlnet", vocab_size=WORDS, num_layers=1, hidden_size=16, num_heads=2,
        intermediate_size=24, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    objective = PermutationLM(
        special_ids=tuple(IDS.values()), word_starts=(True,) * WORDS, max_predictions=4,
        memory=4, reuse=REUSE, backwards=True, selection="token",
    )  # fmt: skip
    model = create(spec, objective.heads)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 8), np.int32))["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.3).astype(np.float32), shapes)
    return objective, model, params


def gradient_of(batch, accumulate, mesh=None):
    """((loss, metrics, gradient), carry) of one batch with a memory of other text."""
    objective, model, params = made()
    config = read_recipe("xlnet.py:tiny,length=16")
    config.accumulate = accumulate
    gradient = make_gradient(model, objective, lambda p: jax.tree.map(lambda _: False, p), config)
    rng = np.random.default_rng(1)
    carry = jax.tree.map(
        lambda x: rng.normal(size=x.shape).astype(np.float32) if x.dtype == jnp.float32
        else np.ones(x.shape, x.dtype),
        objective.carry(model, ROWS),
    )  # fmt: skip
    batch = objective.corrupt(jax.tree.map(jnp.asarray, batch), jax.random.key(2))
    batch = jax.tree.map(np.asarray, batch | {"carry": carry})
    if mesh:
        batch = jax.device_put(batch, NamedSharding(mesh, partition.BATCH))
    weights = objective.weights(batch)
    return jax.device_get(jit(gradient)(params, batch, weights, jax.random.key(0)))


@pytest.fixture(scope="module")
def whole(batch):
    return gradient_of(batch, 1)


@pytest.mark.parametrize(("accumulate", "devices"), [nightly(2, 1), (4, 1), (2, 2)])
def test_micro_batches_add_up_to_the_batch_and_keep_its_memory(batch, whole, accumulate, devices):
    """So the halves of every micro-batch are read in the directions that their rows have."""
    mesh = partition.create_mesh(dict(data=devices, fsdp=1, tensor=1), jax.devices()[:devices])
    parted = gradient_of(batch, accumulate, mesh)
    leaves = zip(jax.tree.leaves(whole), jax.tree.leaves(parted), strict=True)
    for one, other in leaves:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
