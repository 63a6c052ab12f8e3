"""What a run does about its held-out loss, against the released programs written out in numpy."""

import functools
import itertools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
from helpers.cases import nightly

from firth.errors import FirthError
from firth.training import plateau
from firth.training.plateau import Averaging, Drop, Halving, Patience, Policy, create_policy

LOSSES = np.random.default_rng(0).gamma(20, 0.05, (8, 30)).cumsum(1)[:, ::-1] ** 0.1


DECAYS = dict(plateau=dict(name="perplexity"), eval=dict(every=5))


def follow(policy, losses, steps=0):
    """(params, own) after each evaluation; step t adds t to the parameters that are trained."""
    params = {"w": jnp.zeros(2)}
    own, seen, t = policy.init(params), [], 0
    heed = jax.jit(policy.after_evaluation)
    for loss in losses:
        for _ in range(steps):
            t += 1
            trained = jax.tree.map(lambda x, t=t: x + t, policy.trained(own, params))
            params, own = policy.after_step(own, params, trained)
        params, own = heed(own, params, jnp.float32(loss))
        seen.append((params, own))
        if own.get("stopped"):
            break
    return seen


def rnnlm(losses, improvement):
    """[(rate, epoch of the weights)] after each epoch: trainNet of rnnlm 0.3e, words of its own."""
    alpha, alpha_divide, llogp, kept, seen = 1.0, False, -100000000.0, None, []
    for epoch, loss in enumerate(losses, 1):
        logp = -loss
        if logp < llogp:
            weights = kept  # restoreWeights
        else:
            weights = kept = epoch  # saveWeights
        if logp * improvement < llogp:
            if not alpha_divide:
                alpha_divide = True
            else:
                seen.append((alpha, weights))
                break
        if alpha_divide:
            alpha /= 2
        llogp = logp
        seen.append((alpha, weights))
    return seen


def test_halving_is_that_of_rnnlm():
    ends = set()
    for losses, improvement in itertools.product(LOSSES.astype(np.float32), (1.001, 1.003, 1.01)):
        expected = rnnlm(losses.tolist(), np.float32(improvement))
        policy = Halving(improvement=improvement)
        seen, own = [], policy.init({"w": jnp.zeros(())})
        for epoch, loss in enumerate(losses, 1):
            params, own = policy.after_evaluation(own, {"w": jnp.float32(epoch)}, loss)
            seen.append((float(policy.factor(own)), int(params["w"])))
            if own["stopped"]:
                break
        assert seen == expected
        ends.add(len(seen))
    assert len(ends) > 4


def test_the_rate_is_halved_where_perplexity_falls_by_little():
    """Kim et al. 2016, section 4.1, written out: it never ends, and a bad epoch may be the best."""
    perplexities = 100 + np.random.default_rng(0).normal(0, 1.5, 30).cumsum()
    rates = [1.0]
    for before, now in itertools.pairwise(perplexities):
        rates.append(rates[-1] * (1.0 if before - now > 1 else 0.5))
    policy = create_policy(ml_collections.ConfigDict(DECAYS))
    own = policy.init({})
    for rate, perplexity in zip(rates, perplexities, strict=True):
        _, own = policy.after_evaluation(own, {}, jnp.float32(np.log(perplexity)))
        assert policy.factor(own) == rate and not own["stopped"]
    assert 3 < -np.log2(rates[-1]) < 27
    _, own = policy.after_evaluation(own, {}, jnp.float32(np.nan))
    assert policy.factor(own) == rates[-1] / 2


def test_a_loss_that_is_not_finite_has_risen():
    policy, params = Halving(), {"w": jnp.ones(())}
    own = policy.init(params)
    params, own = policy.after_evaluation(own, {"w": jnp.float32(2)}, jnp.float32(np.nan))
    assert params["w"] == 1 and policy.factor(own) == 0.5


def lamb(losses, patience, latest, last):
    """(evaluation of the drop, of the end), counted from 1: by the loss that is the lowest."""
    best, since, drop = np.inf, 0, None
    for turn, loss in enumerate(losses, 1):
        best, since = (loss, 0) if loss < best else (best, since + 1)
        if drop is None and (since >= patience or turn >= latest):
            drop, since = turn, 0
        elif drop is not None and since >= last:
            return drop, turn
    return drop, None


@pytest.mark.parametrize(("patience", "latest", "last"), [(3, 900, 2), (50, 5, 3), (2, 9, 4)])
def test_the_rate_drops_once_and_then_the_run_ends(patience, latest, last):
    policy = Drop(patience=patience, latest=latest, last_patience=last)
    for losses in np.random.default_rng(1).normal(size=(10, 30)):
        seen = follow(policy, losses)
        factors = np.array([float(policy.factor(own)) for _, own in seen])
        drop, end = lamb(losses, patience, latest, last)
        np.testing.assert_allclose(factors[: drop - 1], 1)
        np.testing.assert_allclose(factors[drop - 1 :], 0.1)
        assert len(seen) == (end or len(losses))


def merity(losses, nonmono):
    """The evaluation, from 1, at which main.py of awd-lstm-lm switches to ASGD; None: never."""
    best_val_loss = []
    for epoch, val_loss in enumerate(losses, 1):
        if len(best_val_loss) > nonmono and val_loss > min(best_val_loss[:-nonmono]):
            return epoch
        best_val_loss.append(val_loss)
    return None


@pytest.mark.parametrize("patience", [nightly(1), 2, nightly(5)])
def test_the_trigger_is_that_of_awd_lstm(patience):
    found = set()
    for losses in np.random.default_rng(2).normal(size=(20, 25)) - np.arange(25) / 8:
        seen = follow(Averaging(patience=patience), losses)
        averages = [bool(own["averages"]) for _, own in seen]
        expected = merity(losses.astype(np.float32), patience)
        assert (averages.index(True) + 1 if any(averages) else None) == expected
        found.add(expected)
        seen = follow(Averaging(patience=patience, from_start=True), losses)
        assert len(seen) == (expected or 25)
    assert len(found) > 2


@pytest.mark.parametrize("from_start", [False, True])
def test_the_average_is_that_of_torchs_asgd(torch, from_start):
    """torch.optim.ASGD with t0=0 and lambd=0, as awd-lstm-lm calls it, from the trigger on."""
    rng = np.random.default_rng(3)
    start, target = rng.normal(size=(2, 5))
    losses = [3.0, 4.0, 5.0, 6.0]
    policy = Averaging(patience=1, from_start=from_start)
    switch = 0 if from_start else merity(losses, 1)
    theirs = torch.nn.Parameter(torch.tensor(start, dtype=torch.float32))
    optimizer = torch.optim.SGD([theirs], lr=0.3)
    params = {"w": jnp.float32(start)}
    own = policy.init(params)
    step = jax.jit(
        lambda own, params: policy.after_step(
            own,
            params,
            jax.tree.map(
                lambda w: w - 0.3 * (w - jnp.float32(target)), policy.trained(own, params)
            ),
        )
    )
    for turn, loss in enumerate(losses):
        if turn == switch:
            optimizer = torch.optim.ASGD([theirs], lr=0.3, t0=0, lambd=0.0)
        for _ in range(7):
            optimizer.zero_grad()
            (((theirs - torch.tensor(target)) ** 2) / 2).sum().backward()
            optimizer.step()
            params, own = step(own, params)
            now = optimizer.state[theirs].get("ax", theirs.detach())
            np.testing.assert_allclose(params["w"], now, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(own["trained"]["w"], theirs.detach(), rtol=1e-5, atol=1e-6)
        params, own = policy.after_evaluation(own, params, jnp.float32(loss))
    assert own["averages"] and not np.allclose(params["w"], own["trained"]["w"], atol=1e-4)


def test_a_run_without_a_policy_heeds_nothing():
    policy = create_policy(ml_collections.ConfigDict())
    assert policy == Policy(metric="") and policy.init({"w": 1}) == {}
    assert policy.factor({}) == 1.0 and policy.trained({}, 2) == 2
    assert policy.after_step({}, 1, 2) == (2, {}) and policy.after_evaluation({}, 1, 0.5) == (1, {})
    assert not plateau.has_stopped(SimpleNamespace(plateau={}))


def test_what_cannot_be():
    build = functools.partial(dict, eval=dict(every=5))
    for section, message in (
        (dict(name="halve"), "name='halve' is unknown; choose one of perplexity, halving, drop"),
        (dict(name="drop", improvement=2.0), "'drop' has no field 'improvement'; it has metric"),
        (dict(name="nt_asgd", patience=0), "patience=0: expected more than 0"),
    ):
        with pytest.raises(FirthError, match=message):
            create_policy(ml_collections.ConfigDict(build(plateau=section)))
    never = ml_collections.ConfigDict(dict(plateau=dict(name="drop"), eval=dict(every=0)))
    with pytest.raises(FirthError, match=r"eval.every=0, but config.plateau heeds"):
        create_policy(never)


@pytest.mark.parametrize(("values", "lower", "expected"), [
    ([0.5, 0.6, 0.6, 0.55], False, [False, False, False, True]),  # as good is not better
    ([0.5, 0.4, 0.6, 0.6, 0.6], False, [False, False, False, False, True]),
    ([0.5, 0.6, 0.4, 0.4, 0.5], True, [False, False, False, False, True]),
    ([math.nan, 0.1, math.inf, 0.1], False, [False, False, False, True]),
])  # fmt: skip
def test_patience_ends_after_so_many_evaluations_without_a_better_one(values, lower, expected):
    policy = Patience(patience=2, lower=lower)
    own, found = policy.init({}), []
    for value in values:
        params, own = policy.after_evaluation(own, {"w": 1}, jnp.float32(value))
        found.append(bool(own["stopped"]))
        assert params == {"w": 1} and policy.factor(own) == 1.0
    assert found == expected
    assert policy.heeded("dev/f1") == "dev/f1"
    verb = "fallen" if lower else "risen"
    assert policy.reason("dev/f1") == f"dev/f1 has not {verb} in the last 2 evaluations"


def test_patience_is_that_of_the_config():
    section = dict(patience=4, checkpoint=dict(best="task", best_mode="min"))
    assert create_policy(ml_collections.ConfigDict(section)) == Patience(patience=4, lower=True)
    section["checkpoint"]["best_mode"] = "max"
    assert create_policy(ml_collections.ConfigDict(section)) == Patience(patience=4)
    for more, message in (
        (dict(patience=-1), "patience=-1: expected a number of evaluations"),
        (dict(plateau=dict(name="drop")), "patience=4 and plateau.name both end the run"),
        (dict(checkpoint=dict(best="")), "patience=4 heeds .* set checkpoint.best"),
    ):
        with pytest.raises(FirthError, match=message):
            create_policy(ml_collections.ConfigDict(section | more))
