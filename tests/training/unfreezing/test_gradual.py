"""Gradual unfreezing: what may move when, from what state, at which rate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from firth.errors import FirthError
from firth.training import optim
from firth.training.unfreezing import gradual

BEGINS = (0, 3, 5, 9)  # of two layers: heads, layer 1, layer 0, embeddings
SPEC = dict(name="adamw", b1=0.8, b2=0.99, eps=1e-8, bias_correction=True, weight_decay=0.1)
SPEC |= dict(decay_exclude=(), clip_norm=1.0, multipliers=(), freeze=())
LEVELS = {"classifier": 0, "pooler": 0, "layer_1": 1, "layer_0": 2, "word": 3}


def tree(rng):
    leaf = {name: rng.normal(size=(2, 3)) for name in LEVELS}
    stack = {name: {"kernel": leaf[name]} for name in ("layer_0", "layer_1")}
    encoder = {"stack": stack, "word": {"embedding": leaf["word"]}}
    encoder["pooler"] = {"kernel": leaf["pooler"]}
    nested = {"encoder": encoder, "classifier": {"kernel": leaf["classifier"]}}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), nested)


def named(nested):
    stack = nested["encoder"]["stack"]
    return {
        "classifier": nested["classifier"]["kernel"],
        "pooler": nested["encoder"]["pooler"]["kernel"],
        "layer_1": stack["layer_1"]["kernel"],
        "layer_0": stack["layer_0"]["kernel"],
        "word": nested["encoder"]["word"]["embedding"],
    }


class Adam:
    """One stage of clipped Adam with decay, in numpy, over the parameters that it is given."""

    def __init__(self):
        self.moments, self.steps = {}, 0

    def direction(self, grads, params):
        self.steps += 1
        norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
        found = {}
        for name, g in grads.items():
            g = g / max(norm, 1.0)
            m, v = self.moments.get(name, (0, 0))
            m, v = 0.8 * m + 0.2 * g, 0.99 * v + 0.01 * g**2
            self.moments[name] = m, v
            corrected = m / (1 - 0.8**self.steps), v / (1 - 0.99**self.steps)
            found[name] = corrected[0] / (np.sqrt(corrected[1]) + 1e-8) + 0.1 * params[name]
        return found


def test_a_stage_is_a_run_of_its_own_over_what_it_trains():
    """Clipping, moments and their correction know nothing of what is still frozen or was before."""
    rng = np.random.default_rng(0)
    params = tree(rng)
    optimizer = gradual.by_stages(optim.create_optimizer(ConfigDict(SPEC)), BEGINS)
    state, expected = optimizer.init(params), None
    update = jax.jit(
        lambda g, s, p, n, counts=True: optimizer.update(g, s, p, step=n, counts=counts)
    )
    for step in range(12):
        if step in BEGINS:
            expected = Adam()
        stage = BEGINS.index(max(b for b in BEGINS if b <= step))
        grads = tree(rng)
        skipped = update(grads, state, params, step, jnp.array(False))[1]
        assert jax.tree.all(jax.tree.map(np.array_equal, skipped, state)), step
        updates, state = update(grads, state, params, step)
        moving = [name for name, level in LEVELS.items() if level <= stage]
        directions = expected.direction(
            *({name: np.float64(named(x)[name]) for name in moving} for x in (grads, params))
        )
        for name, found in named(updates).items():
            if name in moving:
                np.testing.assert_allclose(found, directions[name], rtol=1e-4, atol=1e-6)
            else:
                assert not np.any(found), (step, name)
        moments = [named(x) for x in (state.inner[1].mu, state.inner[1].nu)]
        still = [name for name in LEVELS if name not in moving]
        assert not any(np.any(moment[name]) for moment in moments for name in still)
        params = jax.tree.map(lambda p, u: p - 0.01 * u, params, updates)


def test_layers_of_a_scan_begin_one_after_the_other():
    params = {
        "encoder": {"stack": {"layers": {"kernel": jnp.ones((2, 3))}}, "word": jnp.ones(3)},
        "classifier": jnp.ones(3),
    }
    optimizer = gradual.by_stages(optim.create_optimizer(ConfigDict(SPEC)), BEGINS)
    moved = []
    for step in BEGINS:
        updates, _ = optimizer.update(params, optimizer.init(params), params, step=step)
        layers = np.asarray(updates["encoder"]["stack"]["layers"]["kernel"]).any(1).tolist()
        moved.append([bool(updates["encoder"]["word"].any()), *layers])
    assert moved == [
        [False, False, False],
        [False, False, True],
        [False, True, True],
        [True, True, True],
    ]


def triangle(t, T, peak):
    """Howard and Ruder 2018, equation 3."""
    cut = max(int(T * 0.1), 1)
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / 0.1 - 1))
    return peak * (1 + max(p, 0) * 31) / 32


def test_every_stage_has_a_triangle_of_its_own():
    begins, total = (0, 30, 60, 90), 250
    spec = dict(name="stlr", lr=0.01, cut_fraction=0.1, ratio=32.0)
    rate = gradual.create_staged_schedule(spec, total, begins)
    found = jax.vmap(rate)(jnp.arange(total))
    expected = []
    for begin, end in zip(begins, (*begins[1:], total), strict=True):
        expected += [triangle(t, end - begin, 0.01) for t in range(end - begin)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    whole = gradual.create_staged_schedule(spec, total)
    np.testing.assert_allclose(whole(100), triangle(100, total, 0.01), rtol=1e-5)


def test_stages_have_so_many_epochs():
    assert gradual.stage_begins(0.0, 10, 3, 100) == ()
    assert gradual.stage_begins(1.0, 10, 3, 41) == (0, 10, 20, 30, 40)
    assert gradual.stage_begins(0.5, 3, 1, 100) == (0, 2, 3)
    found = [int(gradual.stage_of((0, 10, 20), step)) for step in (0, 9, 10, 19, 20, 99)]
    assert found == [0, 0, 1, 1, 2, 2]


def test_a_run_too_short_for_its_stages_is_refused():
    with pytest.raises(FirthError, match="all trained after step 40, but this run ends"):
        gradual.stage_begins(1.0, 10, 3, 40)
    for epochs in (0.01, -1.0):
        with pytest.raises(FirthError, match="expected 0, or enough for a step"):
            gradual.stage_begins(epochs, 10, 3, 100)


def test_a_body_of_shared_layers_is_refused():
    shared = {"encoder": {"stack": {"group_0": {"bias": jnp.zeros(2)}}}}
    optimizer = gradual.by_stages(optim.create_optimizer(ConfigDict(SPEC)), BEGINS)
    with pytest.raises(FirthError, match="no layers of its own"):
        optimizer.update(shared, optimizer.init(shared), shared, step=0)
