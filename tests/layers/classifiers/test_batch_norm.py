"""Batch normalisation against torch's, and in a step of training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from helpers.quick import jit
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from firth import recipe
from firth.layers import dropout
from firth.layers.classifiers.batch_norm import STATISTICS, BatchNorm, follow
from firth.models.model import bound, concat_pooled, create
from firth.objectives.finetune import Finetune
from firth.run.program import make_step
from firth.training import optim, partition
from firth.training.state import TrainState

B, D = 16, 6
ALL = np.ones(B, bool)
NORM = BatchNorm(1e-5)  # as torch's
RUNNING = ("running_mean", "running_variance")


def drawn(seed: int):
    """Features that differ little from row to row."""
    return (3 + 0.1 * np.random.default_rng(seed).normal(size=(B, D))).astype(np.float32)


def parameters():
    rng = np.random.default_rng(9)
    scale, bias = rng.normal(size=(2, D)).astype(np.float32)
    zeros, ones = np.zeros(D, np.float32), np.ones(D, np.float32)
    return {"scale": scale, "bias": bias, "running_mean": zeros, "running_variance": ones}


def trained(params, x, real=ALL):
    """(outputs, what the running statistics should follow) of a batch in training."""
    made = NORM.apply({"params": params}, x, real, train=True, mutable=STATISTICS)
    return made[0], made[1][STATISTICS]


def test_outputs_gradients_and_running_statistics_are_torchs():
    params, torchs = parameters(), torch.nn.BatchNorm1d(D)
    with torch.no_grad():
        torchs.weight.copy_(torch.from_numpy(params["scale"]))
        torchs.bias.copy_(torch.from_numpy(params["bias"]))
    weight = np.random.default_rng(5).normal(size=(B, D)).astype(np.float32)
    for batch in range(3):
        x = drawn(batch)
        given = torch.from_numpy(x).requires_grad_()
        expected = torchs(given)
        expected.backward(torch.from_numpy(weight))
        (found, collected), pull = jax.vjp(lambda x, params=params: trained(params, x), x)
        (by_x,) = pull((weight, jax.tree.map(jnp.ones_like, collected)))
        np.testing.assert_allclose(found, expected.detach(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(by_x, given.grad, rtol=1e-3, atol=1e-3)
        params = follow(params, params, collected)
    np.testing.assert_allclose(params["running_mean"], torchs.running_mean, rtol=1e-5)
    np.testing.assert_allclose(params["running_variance"], torchs.running_var, rtol=1e-5)
    found = NORM.apply({"params": params}, drawn(7), ALL, train=False)
    expected = torchs.eval()(torch.from_numpy(drawn(7))).detach()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_padding_rows_do_not_count():
    x = drawn(0)
    found, collected = trained(parameters(), x[:9], np.ones(9, bool))
    padded = np.where(np.arange(B)[:, None] < 9, x, 0)
    same, alike = trained(parameters(), padded, np.arange(B) < 9)
    np.testing.assert_allclose(same[:9], found, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), collected, alike)


def test_devices_with_rows_of_their_own_see_the_whole_batch():
    params, x, real = parameters(), drawn(0), np.arange(B) % 5 > 0
    mesh = partition.create_mesh()

    def local(x, real):
        with dropout.rows_over("data"):
            out, collected = trained(params, x, real)
        return out, jax.lax.psum(collected, "data")

    rows = P("data")
    run = jax.shard_map(local, mesh=mesh, in_specs=(rows, rows), out_specs=(rows, P()))
    assert mesh.size == 8
    found, expected = jit(run)(x, real), trained(params, x, real)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)
    moved = [follow(params, params, collected) for _, collected in (found, expected)]
    for name in RUNNING:
        np.testing.assert_allclose(moved[0][name], moved[1][name], rtol=1e-5)


def test_a_batch_without_real_rows_is_finite():
    out, collected = trained(parameters(), np.zeros((B, D), np.float32), ~ALL)
    assert np.isfinite(out).all() and all(np.isfinite(x).all() for x in jax.tree.leaves(collected))


# ------------------------------------------------------------------------------- in a step


def stepped(weight=1.0, **changes):
    """The classifier of ULMFiT (before, after) a step, and the states that it pools."""
    spec = dict(family="awd_lstm", vocab_size=30, hidden_size=16, embedding_size=8, num_layers=1)
    dropouts = ("dropout", "embedding_dropout", "output_dropout", "word_dropout", "weight_dropout")
    spec |= dict.fromkeys((*dropouts, "classifier_dropout"), 0.0)
    model = create(spec, ("classifier",))
    config = recipe.read_recipe("ulmfit.py:classifier,init=none")
    config = recipe.with_fields(config, {"optimizer.l2": 0.5} | changes)
    rng = np.random.default_rng(1)
    tokens = rng.integers(4, 30, (8, 10)).astype(np.int32)
    batch = {
        "tokens": tokens,
        "segments": np.zeros_like(tokens),
        "mask": np.ones(tokens.shape, bool),
        "labels": rng.integers(0, 2, 8).astype(np.int32),
        "weight": np.full(8, weight, np.float32),
        "example": np.arange(8, dtype=np.uint32),
        "copy": np.zeros(8, np.uint32),
    }
    optimizer = optim.create_optimizer(config.optimizer)
    schedule = optim.create_schedule(ConfigDict({"name": "constant", "lr": 1e-2}), 10)
    params = jit(model.init)(jax.random.key(0), tokens)["params"]
    before = TrainState.create(params, optimizer)
    step = make_step(model, Finetune(), optimizer, schedule, config)
    after, measured, _ = jit(step)(before, batch)
    assert STATISTICS not in measured
    pooled = bound(model, lambda model: concat_pooled(model.encoder(tokens).last))(params)
    return params["classifier"], after.params["classifier"], np.asarray(pooled, np.float64)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_moves_running_statistics_a_tenth_of_the_way_to_the_batch(accumulate):
    """With micro-batches, to the mean of theirs; no decay and no rate has a part in it."""
    before, after, pooled = stepped(accumulate=accumulate)
    parts = pooled.reshape(4, 2, -1).swapaxes(0, 1) if accumulate == 2 else pooled[None]
    mean, variance = parts.mean(1).mean(0), parts.var(1, ddof=1).mean(0)
    for name, batch in zip(RUNNING, (mean, variance), strict=True):
        old, new = (np.asarray(tree["norm"][name], np.float64) for tree in (before, after))
        np.testing.assert_allclose(new, old + 0.1 * (batch - old), rtol=1e-4, atol=1e-7)
        assert not np.array_equal(before["hidden_norm"][name], after["hidden_norm"][name])


def test_a_skipped_step_leaves_them():
    before, after, _ = stepped(weight=np.nan)
    jax.tree.map(np.testing.assert_array_equal, before, after)
