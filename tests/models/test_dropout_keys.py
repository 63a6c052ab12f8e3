"""Each mask of dropout is drawn anew: for every step, micro-batch, layer and site."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import steps
from helpers.cases import with_each_change
from helpers.quick import jit

from firth.layers import dropout
from firth.models.model import create
from firth.training.partition import put_batch

HIDDEN, ATTENTION = 1 / 4, 1 / 2


@contextlib.contextmanager
def seen():
    """A list to which every mask is added as (rate, array) when it is drawn, also in a scan."""
    found, keep_mask = [], dropout.keep_mask

    def spy(key, rate, shape, rows=True):
        mask = keep_mask(key, rate, shape, rows)
        jax.debug.callback(lambda mask: found.append((rate, np.asarray(mask))), mask)
        return mask

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dropout, "keep_mask", spy)
        yield found


def assert_independent(masks):
    """Each mask drops its share, and any two of one shape agree as often as chance has it."""
    for rate, mask in masks:
        assert abs(mask.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / mask.size)
    for (rate, one), (other_rate, other) in itertools.combinations(masks, 2):
        if one.shape == other.shape and rate == other_rate:
            chance = rate**2 + (1 - rate) ** 2
            sigma = np.sqrt(chance * (1 - chance) / one.size)
            assert abs((one == other).mean() - chance) < 6 * sigma


def counts(masks):
    """{number of axes: how many masks}."""
    return {n: sum(mask.ndim == n for _, mask in masks) for n in {m.ndim for _, m in masks}}


def test_steps_micro_batches_layers_and_sites_of_a_run():
    """Of a compiled step with two scanned layers and two micro-batches; the same state, the same
    masks, so that a run that goes on drops what one that never stopped drops."""
    rates = {"model.dropout": HIDDEN, "model.attention_dropout": ATTENTION}
    changes = rates | {"accumulate": 2, "model.scan": True, "model.num_layers": 2}
    with seen() as found:
        program, step, mesh, shapes = steps.compiled(
            "bert", devices=jax.devices()[:1], changes=changes
        )
        batch = put_batch(steps.random_batch(shapes, np.random.default_rng(0)), mesh)
        initial, runs = jax.device_get(program.init()), []
        for _ in range(2):
            state = jax.device_put(initial, program.shardings)
            for _ in range(2):
                state, measured, _ = step(state, batch)
                assert np.isfinite(measured["loss"][0])
                jax.effects_barrier()
                runs.append(found.copy())
                found.clear()
    first, second, again, _ = runs
    assert counts(first) == {3: 2 * (1 + 2 * 2), 4: 2 * 2}
    assert_independent(first + second)
    assert sorted(m.tobytes() for _, m in first) == sorted(m.tobytes() for _, m in again)


STACKS = ("albert", "modernbert", "gpt", "transformer_xl")
OFTEN = [(name, name != "gpt") for name in STACKS]


@pytest.mark.parametrize(
    ("name", "scan"), with_each_change(OFTEN, itertools.product(STACKS, (False, True)))
)
def test_layers_and_sites(name, scan):
    """Three layers of every kind of stack; ALBERT's share their parameters but no mask."""
    spec = dict(
        family=name,
        vocab_size=30,
        num_layers=3,
        hidden_size=32,
        num_heads=4,
        intermediate_size=48,
        dropout=HIDDEN,
        attention_dropout=ATTENTION,
        scan=scan,
    )
    model = create(spec)
    tokens = np.zeros((4, 16), np.int32)

    def run(key):
        params = jax.eval_shape(model.init, key, tokens)["params"]
        params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
        apply = model.apply(
            {"params": params}, tokens, train=True, rngs={"dropout": key}, method=encode
        )
        return apply

    with seen() as found:
        jax.block_until_ready(jit(run)(jax.random.key(0)))
        jax.effects_barrier()
    layers = {"albert": 2, "gpt": 2, "transformer_xl": 3, "modernbert": 2}[name]
    rest = {"transformer_xl": 3}.get(name, 1)
    assert counts(found) == {3: rest + 3 * layers, 4: 3}
    assert_independent(found)


def encode(model, tokens_BL, train):
    return model.encoder(tokens_BL, train=train).last
