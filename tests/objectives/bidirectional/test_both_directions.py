"""ELMo's objective against its LSTMs run by hand: both directions, states, sampled words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.elmo import SMALL, made
from helpers.quick import jit

from firth import recipe
from firth.errors import FirthError
from firth.models.model import bound
from firth.objectives.bidirectional.bilm import BidirectionalLM
from firth.tokenizers.spelling import spell

B, L, V, W = 3, 4, SMALL["vocab_size"], SMALL["max_characters"]


def batch(seed=0):
    rng = np.random.default_rng(seed)
    words = [chr(97 + n) * (n % 4 + 1) for n in rng.integers(0, 26, B * 2 * L)]
    mask = np.arange(L) < np.array([[L], [2], [L]])
    return dict(
        tokens=rng.integers(0, V, (B, L)),
        mask=mask,
        targets=rng.integers(0, V, (B, 2, L)),
        characters=spell(words, W)[0].reshape(B, 2, L, W).astype(np.uint16),
        reset=np.array([False, False, True]),
    )


def run(objective, model, params, given, carry, train=False):
    call = bound(model, lambda *a: objective.losses(*a, train=train))
    rngs = {"dropout": jax.random.key(0)} if train else None
    return jit(lambda params, given: call(params, given, rngs=rngs))(
        params, given | {"carry": carry}
    )


def test_losses_and_states_are_those_of_both_lstms():
    model, params = made(("bilm",), dropout=0.0)
    rng = np.random.default_rng(4)
    empty = model.encoder.empty_memory(B)
    carry = {k: rng.normal(0, 0.2, v.shape).astype(np.float32) for k, v in empty.items()}
    given = batch()
    objective = BidirectionalLM(words=V, max_characters=W)
    sums, metrics, after = run(objective, model, params, given, carry)
    start = {k: np.where(np.array([1, 1, 0])[:, None, None], v, 0) for k, v in carry.items()}

    def layers(model, i, direction):
        e = model.encoder.embed(given["characters"][:, i].astype(np.int32))
        return model.encoder.read(direction, e, given["mask"], start, train=False)

    for i, direction in enumerate(("forward", "backward")):
        outputs, state = model.apply({"params": params}, i, direction, method=layers)
        scores = np.float64(outputs[-1]) @ params["bilm"]["table"].T + params["bilm"]["bias"]
        log_probs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        own = np.take_along_axis(log_probs, given["targets"][:, i, :, None], 2)[..., 0]
        assert float(sums[direction]) == pytest.approx(-own[given["mask"]].sum(), rel=1e-5)
        assert float(metrics[f"{direction}_loss"][1]) == given["mask"].sum() == 10
        for name, value in state.items():
            np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-6)
    both = float(sums["forward"] + sums["backward"])
    assert [float(x) for x in metrics["lm_loss"]] == pytest.approx([both, 20])
    weights = {k: float(v) for k, v in objective.weights(given).items()}
    assert weights == {"forward": 10, "backward": 10}
    assert objective.coefficients == {"forward": 0.5, "backward": 0.5}


def test_sampled_words_stand_for_all_in_training_alone():
    model, params = made(("bilm",), dropout=0.0)
    carry, given = model.encoder.empty_memory(B), batch()
    few, whole = (BidirectionalLM(samples=n, words=V, max_characters=W) for n in (5, 0))
    found = run(few, model, params, given, carry, train=True)[0]
    expected = run(whole, model, params, given, carry, train=True)[0]
    assert all(abs(float(found[d] - expected[d])) > 1e-3 for d in found)
    every = BidirectionalLM(samples=V, words=V, max_characters=W)
    for objective, train in ((few, False), (every, True)):
        again = run(objective, model, params, given, carry, train=train)[0]
        for direction in again:
            assert float(again[direction]) == pytest.approx(float(expected[direction]), rel=1e-5)


def test_a_state_passes_no_gradient_to_the_batch_before():
    model, params = made(("bilm",), dropout=0.0)
    given, objective = batch(), BidirectionalLM(words=V, max_characters=W)

    def loss(params):
        call = bound(model, lambda *a: objective.losses(*a, train=False))
        _, _, after = call(params, given | {"carry": model.encoder.empty_memory(B)})
        return sum(jnp.sum(x) for x in jax.tree.leaves(after))

    assert not any(np.any(leaf) for leaf in jax.tree.leaves(jit(jax.grad(loss))(params)))


def test_dropout_falls_on_layers_and_the_softmax():
    model, params = made(("bilm",), dropout=0.5)
    objective = BidirectionalLM(words=V, max_characters=W)
    carry, given = model.encoder.empty_memory(B), batch()
    still = run(objective, model, params, given, carry)[0]
    dropped = run(objective, model, params, given, carry, train=True)[0]
    assert all(float(still[d]) != float(dropped[d]) for d in still)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"data.max_characters": 30}, "data.max_characters=30, but model.max_characters=50"),
        ({"objective.samples": -1}, "objective.samples=-1: expected"),
    ],
)
def test_sections_must_fit(fields, message):
    from firth.run.outline import outline

    config = recipe.with_fields(recipe.read_recipe("elmo.py:tiny"), fields)
    with pytest.raises(FirthError, match=message):
        outline(config)


def test_other_views_are_refused():
    data = recipe.read_recipe("lstm.py:tiny").data
    with pytest.raises(FirthError, match=r"needs data.view='both_ways', not 'streams'"):
        BidirectionalLM(words=V, max_characters=W).check(data)
