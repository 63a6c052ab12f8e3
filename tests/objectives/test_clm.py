"""Causal language modelling: what is predicted where, memory, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import initial, jit
from helpers.rows import make_batch
from ml_collections import ConfigDict

from firth.errors import FirthError
from firth.models.model import bound, create
from firth.objectives.clm import CausalLM
from firth.run.experiment import create_objective

TINY = dict(
    family="transformer_xl",
    vocab_size=31,
    num_layers=2,
    hidden_size=16,
    num_heads=2,
    intermediate_size=24,
    init_stddev=0.3,
)


def batch_of(tokens, present=None, **more):
    tokens = np.asarray(tokens, np.int32)
    present = np.ones_like(tokens, bool) if present is None else np.asarray(present, bool)
    return make_batch(tokens, present) | {"segments": np.zeros_like(tokens)} | more


def test_every_token_is_predicted_from_those_before_it():
    batch = CausalLM().corrupt(batch_of([[5, 6, 7, 8]]), None)
    assert batch["targets"][0, :3].tolist() == [6, 7, 8]
    assert batch["target_weights"].tolist() == [[1, 1, 1, 0]]  # nothing is known to follow 8


def test_the_last_place_predicts_what_follows():
    following = np.array([9, 4])
    present = [[1, 1, 1, 1], [1, 1, 0, 0]]
    given = batch_of([[5, 6, 7, 8], [2, 3, 0, 0]], present, following=following)
    batch = CausalLM().corrupt(given, None)
    assert batch["targets"][0].tolist() == [6, 7, 8, 9]
    assert batch["targets"][1, :2].tolist() == [3, 4]
    assert batch["target_weights"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["target_weights"].dtype == jnp.float32


def test_loss_over_segments_is_that_of_the_whole_text():
    """With memory and `following`, two halves cost what the whole does; a reset costs more."""
    model, objective = create(TINY, ("lm",)), CausalLM(memory=12)
    params = initial(model, jnp.zeros((1, 4), jnp.int32))
    text = np.random.default_rng(0).integers(0, 31, (2, 13)).astype(np.int32)

    run = jit(
        bound(model, lambda m, b: objective.losses(m, objective.corrupt(b, None), train=False))
    )

    def loss(begin, end, carry, **more):
        given = batch_of(text[:, begin:end], following=text[:, end], carry=carry, **more)
        sums, _, carry = run(params, given)
        return float(sums["lm"]), carry

    empty = objective.carry(model, 2)
    whole, _ = loss(0, 12, empty)
    first, carry = loss(0, 6, empty)
    second, _ = loss(6, 12, carry)
    np.testing.assert_allclose(first + second, whole, rtol=1e-5)
    forgotten, _ = loss(6, 12, carry, reset=np.array([True, True]))
    assert abs(forgotten - second) > 1e-3
    fresh, _ = loss(6, 12, empty)
    np.testing.assert_allclose(forgotten, fresh, rtol=1e-6)


def test_memory_of_another_length_at_evaluation():
    model, objective = create(TINY, ("lm",)), CausalLM(memory=4)
    assert objective.carry(model, 3)["hidden"].shape == (3, 2, 4, 16)
    assert objective.carry(model, 3, memory=9)["hidden"].shape == (3, 2, 9, 16)
    assert CausalLM().carry(model, 3) == {}


class Tokenizer:
    vocab_size, pad_id, cls_id, sep_id, mask_id = 31, 0, 1, 2, 3
    special_ids, word_starts = frozenset(range(4)), np.ones(31, bool)


MLM = dict(
    name="mlm", masking="token", rate=0.15, max_predictions=4, mask_rate=0.8, random_rate=0.1
)


@pytest.mark.parametrize(
    ("fields", "body", "reason"),
    [
        (
            MLM,
            "transformer_xl",
            "'mlm' cannot train model.family='transformer_xl', which sees only",
        ),
        (dict(name="clm"), "bert", "'clm' cannot train model.family='bert', which sees both sides"),
        (dict(name="clm", memory=3), "gpt2", "'gpt2' has no memory"),
        (dict(name="clm", memory=-3), "transformer_xl", "expected 0"),
        (dict(name="clm", memory=3), "lstm", "the memory of model.family='lstm' is its state"),
    ],
)
def test_bodies_that_do_not_fit(fields, body, reason):
    with pytest.raises(FirthError, match=reason):
        create_objective(fields, Tokenizer(), body=dict(family=body))


def test_a_recurrent_body_always_carries_its_state():
    """Windows of an LSTM cost what the whole does; a row that is reset forgets, the other not."""
    spec = dict(family="lstm", vocab_size=31, num_layers=2, hidden_size=16)
    model = create(spec, ("lm",))
    objective = create_objective(dict(name="clm"), Tokenizer(), body=spec)
    params = initial(model, jnp.zeros((1, 4), jnp.int32), scale=0.6)
    text = np.random.default_rng(0).integers(0, 31, (2, 13)).astype(np.int32)
    run = jit(
        bound(model, lambda m, b: objective.losses(m, objective.corrupt(b, None), train=False))
    )

    def loss(begin, end, carry, **more):
        given = batch_of(text[:, begin:end], following=text[:, end], carry=carry, **more)
        sums, _, carry = run(params, given)
        return float(sums["lm"]), carry

    empty = objective.carry(model, 2)
    assert {name: x.shape for name, x in empty.items()} == {"h": (2, 2, 16), "c": (2, 2, 16)}
    whole, last = loss(0, 12, empty)
    first, carry = loss(0, 6, empty)
    second, after = loss(6, 12, carry)
    np.testing.assert_allclose(first + second, whole, rtol=1e-5)
    for name in last:
        np.testing.assert_allclose(after[name], last[name], atol=1e-6)
    forgotten, state = loss(6, 12, carry, reset=np.array([True, False]))
    fresh, other = loss(6, 12, empty)
    np.testing.assert_array_equal(state["c"][0], other["c"][0])
    np.testing.assert_array_equal(state["c"][1], after["c"][1])
    assert len({forgotten, fresh, second}) == 3
    objective.check(ConfigDict(dict(view="streams")))
    with pytest.raises(FirthError, match=r"the state of a recurrent network needs data.view='stre"):
        objective.check(ConfigDict(dict(view="packed")))


@pytest.mark.parametrize(
    ("memory", "data", "reason"),
    [
        (3, dict(view="packed"), "needs data.view='streams', not 'packed'"),
        (3, dict(view="streams", reuse=16), "not in the order of the text"),
    ],
)
def test_views_that_do_not_fit(memory, data, reason):
    with pytest.raises(FirthError, match=reason):
        CausalLM(memory=memory).check(ConfigDict(data))
