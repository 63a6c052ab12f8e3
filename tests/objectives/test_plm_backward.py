"""XLNet's rows that run backward: their targets in the order of the text, and micro-batches."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import initial, jit
from helpers.rows import CLS, SEP, SPECIAL, Hashable, corrupt, make_batch
from ml_collections import ConfigDict

from firth.models.model import create
from firth.objectives import plm
from firth.run.program import join_rows, make_gradient, split_rows
from firth.training import optim

WORDY = (np.arange(60) % 4 == 0).view(Hashable)
LONG = plm.PermutationLM(SPECIAL, 20, WORDY, reuse=64, backwards=True)


def both_directions(rows=64, length=128):
    """Rows of words of 1 to 4 tokens in XLNet's layout: read forward, and again from the end."""
    rng = np.random.default_rng(5)
    forward = np.zeros((rows, length), np.int32)
    for row in forward:
        sizes = rng.integers(1, 5, length)
        text = [4 * rng.integers(2, 14) + n for size in sizes for n in range(size)]
        row[:] = text[:length]
    backward = forward[:, ::-1].copy()
    at = rng.integers(length // 2 + 2, length - 4, rows)
    for tokens in (forward, backward):
        tokens[np.arange(rows), at] = SEP
        tokens[:, -2:] = SEP, CLS
    tokens = np.concatenate([forward, backward])
    return make_batch(tokens, np.ones_like(tokens, bool))


def runs_in_order_of_the_text(batch, parts=((0, 64), (64, 128))):
    """(row, first, stop) of every run of targets within a part, and the tokens as they are read."""
    rows = len(batch["tokens"])
    for row, (begin, stop) in itertools.product(range(rows), parts):
        chosen = np.zeros(stop, bool)
        chosen[[p for p in batch["positions"][row] if begin <= p < stop]] = True
        turn = slice(None, None, -1 if row >= rows // 2 else 1)
        tokens, chosen = batch["tokens"][row, begin:stop][turn], chosen[begin:][turn]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen, [0]]).astype(int)))
        for first, end in edges.reshape(-1, 2):
            yield row, tokens, first, end


@pytest.mark.parametrize("unit", ["word", "piece"])
def test_spans_begin_where_words_begin_in_both_directions(unit):
    objective = dataclasses.replace(LONG, unit=unit)
    batch = jax.device_get(corrupt(objective)(both_directions(), jax.random.key(0)))
    assert (batch["target_weights"] == 1).all() and not np.isin(batch["targets"], SPECIAL).any()
    begins, ends, held = ([[], []] for _ in range(3))
    for row, tokens, first, end in runs_in_order_of_the_text(batch):
        if end - first > 1:
            backward = int(row >= 64)
            begins[backward].append(WORDY[tokens[first]])
            ends[backward].append(end == 64 or WORDY[tokens[end]])
            held[backward].append(end - first)
    # The single tokens that fill the slots begin anywhere, and sometimes lie before a span.
    assert min(map(len, begins)) > 150 and np.mean(begins[0]) > 0.85
    for found in (begins, ends, held):
        of_chance = np.sqrt(sum(np.var(some) / len(some) for some in found))
        assert abs(np.mean(found[0]) - np.mean(found[1])) < 4 * of_chance


@pytest.mark.parametrize("changes", [{}, {"unit": "word"}, {"selection": "token"}], ids=str)
def test_a_row_turned_part_by_part_has_the_same_targets_turned(changes):
    """With the same random numbers: a backward row is a forward one, turned within each part."""
    objective = dataclasses.replace(LONG, **changes)
    batch = jax.device_get(both_directions())
    forward = batch["tokens"][:64]
    turned = np.concatenate([forward[:, 63::-1], forward[:, :63:-1]], axis=1)
    batch["tokens"] = np.concatenate([forward, turned])
    batch["example"] = np.tile(np.arange(64, dtype=np.uint32), 2)
    positions = np.asarray(corrupt(objective)(batch, jax.random.key(0))["positions"])
    for ours, theirs in zip(positions[:64], positions[64:], strict=True):
        mirrored = np.where(theirs < 64, 63 - theirs, 191 - theirs)
        assert sorted(ours) == sorted(mirrored)


def test_only_the_second_half_is_turned_and_only_on_request():
    batch = both_directions()
    of = {
        flag: np.asarray(
            corrupt(dataclasses.replace(LONG, backwards=flag))(batch, jax.random.key(0))[
                "positions"
            ]
        )
        for flag in (False, True)
    }
    same = (of[False] == of[True]).all(1)
    assert same[:64].all() and not same[64:].any()


def test_micro_batches_keep_the_directions():
    """What rows cost does not hang on how many micro-batches a batch is cut into."""
    objective = dataclasses.replace(LONG, max_predictions=6, reuse=16)
    body = dict(family="xlnet", vocab_size=60, num_layers=1, hidden_size=16, num_heads=2)
    body |= dict(intermediate_size=24, init_stddev=0.5, dropout=0.0, attention_dropout=0.0)
    m = create(body, ("lm",))
    params = initial(m, jnp.zeros((1, 4), jnp.int32), scale=0.5)
    batch = both_directions(4, 32) | {"segments": jnp.zeros((8, 32), jnp.int32)}
    batch = corrupt(objective)(batch, jax.random.key(0))

    def total(objective, parts):
        config = ConfigDict(dict(accumulate=parts))
        gradient = make_gradient(m, objective, optim.path_mask(()), config)
        run = jit(lambda p, b: gradient(p, b, objective.weights(b), jax.random.key(0))[0][0])
        return float(run(params, batch))

    whole = total(objective, 1)
    np.testing.assert_allclose(total(objective, 4), whole, rtol=1e-5)
    assert abs(total(dataclasses.replace(objective, backwards=False), 1) - whole) > 1e-3
    backward = np.arange(24) >= 12
    for parts in (1, 2, 3, 4, 6, 12):
        micro = np.asarray(split_rows(backward, parts))
        assert not micro[:, : 12 // parts].any() and micro[:, 12 // parts :].all()
        np.testing.assert_array_equal(join_rows(micro), backward)
