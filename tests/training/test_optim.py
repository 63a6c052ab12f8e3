"""Optimisers against plain numpy in float64 and torch; schedules against their formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.quick import jit
from ml_collections import ConfigDict

from firth.errors import FirthError
from firth.training import optim
from firth.training.state import TrainState

# ------------------------------------------------------------------------------------ optimisers

SHAPES = {
    "encoder/word/embedding": (7, 4),
    "encoder/norm/scale": (4,),
    "encoder/stack/layer_0/attention/query/kernel": (4, 4),
    "encoder/stack/layer_0/attention/query/bias": (4,),
    "encoder/stack/layer_0/mlp_norm/scale": (4,),
    "encoder/stack/layer_0/mlp_norm/bias": (4,),
    "encoder/stack/layer_1/attention/query/kernel": (4, 4),
    "encoder/stack/layer_1/attention/query/bias": (4,),
    "encoder/stack/layer_1/mlp_norm/scale": (4,),
    "encoder/stack/layer_1/mlp_norm/bias": (4,),
    "mlm/dense/kernel": (4, 4),
    "mlm/bias": (7,),
    "classifier/dense/kernel": (4, 2),
}
DECAYED = {name for name in SHAPES if name.endswith(("kernel", "embedding"))}
STEPS, RATE = 6, 0.03
BASE = dict(
    name="adamw",
    b1=0.9,
    b2=0.999,
    eps=1e-6,
    bias_correction=False,
    weight_decay=0.01,
    decay_exclude=("norm/", "bias$"),
    clip_norm=1.0,
    multipliers=(),
    freeze=(),
)


def nested(flat):
    tree = {}
    for name, value in flat.items():
        *parents, leaf = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


def flattened(tree):
    return dict(zip(optim.named_leaves(tree), jax.tree.leaves(tree), strict=True))


@pytest.fixture(scope="module")
def problem():
    """Parameters, with one all zero, and a gradient of very uneven size for each step."""
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    params["classifier/dense/kernel"][:] = 0
    sizes = [0.01, 3.0, 0.2, 40.0, 1.0, 0.05]
    grads = [
        {name: size * rng.normal(size=shape) for name, shape in SHAPES.items()} for size in sizes
    ]
    grads[2]["mlm/bias"][:] = 0
    single = lambda tree: {k: v.astype(np.float32) for k, v in tree.items()}  # noqa: E731
    return single(params), [single(g) for g in grads]


def run(spec, params, grads, rate=RATE):
    """Parameters after each step of the optimiser, as the training step applies it."""
    optimizer = optim.create_optimizer(ConfigDict(BASE | spec))
    params, states = nested(params), []

    @jit
    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, jax.tree.map(lambda u: -rate * u, updates)), state

    state = optimizer.init(params)
    for g in grads:
        params, state = step(params, state, nested(g))
        states.append(flattened(params))
    return states, state


def reference(spec, params, grads, rate=RATE):
    """The same in float64: clip, moments, decay, (trust ratio), multipliers, parameter by name."""
    s = BASE | spec
    w = {k: v.astype(np.float64) for k, v in params.items()}
    m, v = ({k: np.zeros_like(x) for k, x in w.items()} for _ in range(2))
    states = []
    frozen = {k for k in w if any(k.startswith(p.strip("^")) for p in s["freeze"])}
    for t, g in enumerate(grads, 1):
        g = {k: x.astype(np.float64) for k, x in g.items() if k not in frozen}
        if s["clip_norm"]:
            norm = math.sqrt(sum((x**2).sum() for x in g.values()))
            g = {k: x * min(1, s["clip_norm"] / norm) for k, x in g.items()}
        w = dict(w)
        for k, x in g.items():
            m[k] = s["b1"] * m[k] + (1 - s["b1"]) * x
            v[k] = s["b2"] * v[k] + (1 - s["b2"]) * x**2
            correct = s["bias_correction"]
            mean = m[k] / (1 - s["b1"] ** t) if correct else m[k]
            square = v[k] / (1 - s["b2"] ** t) if correct else v[k]
            update = x if s["name"] == "sgd" else mean / (np.sqrt(square) + s["eps"])
            if decays := k in DECAYED if s["decay_exclude"] else True:
                update = update + s["weight_decay"] * w[k]
            if s["name"] == "lamb" and decays:
                norms = np.linalg.norm(w[k]), np.linalg.norm(update)
                update = update * (norms[0] / norms[1] if all(norms) else 1)
            factors = [f for part, f in s["multipliers"] if part in k]
            w[k] = w[k] - rate * (factors[0] if factors else 1) * update
        states.append(dict(w))
    return states


SPECS = {
    "bert": {},
    "corrected": dict(bias_correction=True),
    "large epsilon": dict(eps=1e-2, b1=0.8, b2=0.98),
    "no memory of the mean": dict(b1=0.0, bias_correction=True),
    "everything decays, as in RoBERTa": dict(decay_exclude=(), weight_decay=0.3),
    "no decay, no clip": dict(weight_decay=0.0, clip_norm=0.0),
    "tight clip": dict(clip_norm=0.01),
    "multipliers": dict(
        multipliers=(("layer_0/", 0.25), ("encoder/", 0.5), ("classifier/", 4.0)),
    ),
    "frozen body": dict(freeze=("^encoder/",)),
    "lamb": dict(name="lamb"),
    "lamb, corrected, strong decay": dict(name="lamb", bias_correction=True, weight_decay=0.5),
    "lamb with multipliers and a frozen table": dict(
        name="lamb", multipliers=(("mlm/", 0.5),), freeze=("^encoder/word",)
    ),
    "sgd, tight clip": dict(name="sgd", clip_norm=0.1, weight_decay=0.2),
}


@pytest.mark.parametrize("name", SPECS)
def test_optimizer_equals_float64(problem, name):
    found, _ = run(SPECS[name], *problem)
    for ours, expected in zip(found, reference(SPECS[name], *problem), strict=True):
        for path in SHAPES:
            np.testing.assert_allclose(
                ours[path], expected[path], rtol=1e-5, atol=3e-6, err_msg=path
            )


def test_adamw_equals_torch(problem):
    import torch

    params, grads = problem
    spec = dict(bias_correction=True, eps=1e-8, clip_norm=0.0, weight_decay=0.1, decay_exclude=())
    theirs = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in params.items()}
    adamw = torch.optim.AdamW(theirs.values(), lr=RATE, eps=1e-8, weight_decay=0.1)
    found, _ = run(spec, params, grads)
    for ours, step in zip(found, grads, strict=True):
        for name, parameter in theirs.items():
            parameter.grad = torch.tensor(step[name])
        adamw.step()
        for name, parameter in theirs.items():
            np.testing.assert_allclose(
                ours[name], parameter.detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=name
            )


def test_frozen_parameters_stay_and_have_no_moments(problem):
    params, grads = problem
    found, state = run(dict(freeze=("^encoder/",)), params, grads)
    for name in SHAPES:
        same = (found[-1][name] == params[name]).all()
        assert same == name.startswith("encoder/"), name
    moments = [name for name in optim.named_leaves(state) if "/mu/" in name or "/nu/" in name]
    assert len(moments) == 2 * 3 and not any("encoder" in name for name in moments)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_stacked_layers_are_treated_as_unrolled_ones(problem, name):
    """Scanned parameters: one trust ratio a layer, the same decay mask, the same clipping."""

    def stacked(flat):
        inner = [k.split("layer_0/")[1] for k in flat if "layer_0/" in k]
        rest = {k: v for k, v in flat.items() if "/layer_" not in k}
        return rest | {
            f"encoder/stack/layers/{k}": np.stack(
                [flat[f"encoder/stack/layer_{i}/{k}"] for i in range(2)]
            )
            for k in inner
        }

    params, grads = problem
    spec = dict(name=name, weight_decay=0.2)
    loop, _ = run(spec, params, grads)
    scan, _ = run(spec, stacked(params), [stacked(g) for g in grads])
    expected = stacked(loop[-1])
    assert expected.keys() == scan[-1].keys()
    for path, value in expected.items():
        np.testing.assert_allclose(scan[-1][path], value, rtol=1e-5, atol=1e-6, err_msg=path)


def test_an_unknown_optimizer_or_expression_is_refused():
    with pytest.raises(FirthError, match=r"optimizer\.name='adam' is unknown"):
        optim.create_optimizer(ConfigDict(BASE | dict(name="adam")))
    for field in ("freeze", "decay_exclude"):
        with pytest.raises(FirthError, match=r"\^encoder\(.*is not a regular expression"):
            optim.create_optimizer(ConfigDict(BASE | {field: ("^encoder(",)}))
    with pytest.raises(FirthError, match="is not a regular expression"):
        optim.create_optimizer(ConfigDict(BASE | dict(multipliers=(("a[", 0.5),))))
    with pytest.raises(FirthError, match="pairs of an expression and a factor"):
        optim.create_optimizer(ConfigDict(BASE | dict(multipliers=("layer_0/",))))


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_what_the_objective_freezes_is_frozen_too(problem, name):
    """Beside what the recipe freezes; the rest does not notice."""
    params, grads = problem
    fields = BASE | dict(name=name, clip_norm=0.0, freeze=("^mlm/",))
    optimizer = optim.create_optimizer(ConfigDict(fields), ("^classifier/", "word/"))
    state = optimizer.init(nested(params))
    updates, _ = optimizer.update(nested(grads[0]), state, nested(params))
    free = optim.create_optimizer(ConfigDict(fields | dict(freeze=())))
    expected, _ = free.update(nested(grads[0]), free.init(nested(params)), nested(params))
    for path, update in flattened(updates).items():
        frozen = path.startswith(("mlm/", "classifier/")) or "word/" in path
        np.testing.assert_array_equal(update, 0 if frozen else flattened(expected)[path], path)
    paths = optim.named_leaves(state)
    assert not [path for path in paths if "mlm/" in path or "classifier/" in path]


@pytest.mark.parametrize(
    ("field", "value"), [("freeze", ("^encodr/",)), ("multipliers", (("^encodr/", 0.5),))]
)
def test_an_expression_that_matches_nothing_is_refused(problem, field, value):
    optimizer = optim.create_optimizer(ConfigDict(BASE | {field: value}))
    with pytest.raises(FirthError, match=rf"optimizer\.{field}.*\^encodr/.*matches no parameter"):
        optimizer.init(nested(problem[0]))


def test_moments_are_float32_and_separate_buffers(problem):
    """The state is donated: no buffer may be in it twice."""
    optimizer = optim.create_optimizer(ConfigDict(BASE))
    state = TrainState.create(jax.tree.map(jnp.asarray, nested(problem[0])), optimizer)
    leaves = jax.tree.leaves(state)
    pointers = [leaf.unsafe_buffer_pointer() for leaf in leaves if leaf.size > 1]
    assert len(set(pointers)) == len(pointers) == 3 * len(SHAPES)
    assert {leaf.dtype.name for leaf in leaves} == {"int32", "float32"}
    assert int(state.step) == int(state.skipped) == 0


# ------------------------------------------------------------------------------------- schedules

LR = 3e-4


def bert_linear(t, T, W):
    return LR * t / W if t < W else LR * (1 - min(t, T) / T)


def albert_poly(t, T, W, power=2.0, start=5):
    if W and t - start < W:
        return LR * max(t - start, 0) / W
    return LR * (1 - min(t, T) / T) ** power


def electra_linear(t, T, W, power=1.5):
    return LR * (1 - t / T) ** power * (min(1, t / W) if W else 1)


def xlnet_poly(t, T, W, min_ratio=0.1):
    if t < W:
        return LR * t / W
    left = (1 - (t - W) / (T - W)) if T > W else 1
    return (LR - LR * min_ratio) * left + LR * min_ratio


def fairseq_polynomial(t, T, W, end_lr=1e-6, power=2.0):
    if t < W:
        return LR * t / W
    left = (1 - (t - W) / (T - W)) if T > W else 1
    return (LR - end_lr) * left**power + end_lr


def gpt_warmup_linear(t, T, W):
    x, w = t / T, W / T
    return LR * (x / w if W and x <= w else 1) * (1 - x)


def gpt_warmup_cosine(t, T, W):
    if t < W:
        return LR * t / W
    return LR * (1 + math.cos(math.pi * (t - W) / (T - W))) / 2 if T > W else LR


def stlr(t, T, W, cut_fraction=0.125, ratio=8.0):
    cut = math.floor(T * cut_fraction)
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_fraction - 1))
    p = max(p, 0)  # the last step of a length that the cut does not divide
    return LR * (1 + p * (ratio - 1)) / ratio


def step_decay(t, T, W, decay=0.5, hold=4, steps_per_epoch=9):
    return LR * decay ** max(t // steps_per_epoch + 1 - hold, 0)


def inverse_epoch(t, T, W, decay=1.02, hold=3, steps_per_epoch=9):
    return LR / decay ** max(t // steps_per_epoch - hold, 0)


def constant(t, T, W):
    return LR * min(1, t / W) if W else LR


FORMULAS = {
    bert_linear: {},
    albert_poly: dict(power=2.0, start=5),
    electra_linear: dict(power=1.5),
    xlnet_poly: dict(min_ratio=0.1),
    fairseq_polynomial: dict(end_lr=1e-6, power=2.0),
    gpt_warmup_linear: {},
    gpt_warmup_cosine: {},
    stlr: dict(cut_fraction=0.125, ratio=8.0),
    step_decay: dict(decay=0.5, hold=4, steps_per_epoch=9),
    inverse_epoch: dict(decay=1.02, hold=3, steps_per_epoch=9),
    constant: {},
}


@pytest.mark.parametrize(
    "T, W", [(80, 12), (80, 1), (80, 0), (80, 80), (93, 12), (100_000, 10_000)]
)
@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.__name__)
def test_schedule_is_its_formula(formula, T, W):
    name = formula.__name__
    schedule = optim.create_schedule(dict(name=name, lr=LR, warmup=W) | FORMULAS[formula], T)
    times = (0, 1, 4, 5, 6, W - 1, W, W + 1, W + 5, T // 2, T - 1, T)
    times = [min(max(t, 0), T) for t in times]
    found = np.asarray(schedule(jnp.asarray(times)))
    assert found.dtype == np.float32
    expected = [formula(t, T, W) for t in times]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=LR * 1e-6)


def test_the_shapes_that_users_trip_over():
    def rates(name, **fields):
        schedule = optim.create_schedule(dict(name=name, lr=1.0, warmup=10) | fields, 100)
        return [float(schedule(t)) for t in range(101)]

    bert, electra, xlnet = rates("bert_linear"), rates("electra_linear"), rates("xlnet_poly")
    assert bert[0] == 0 and bert[9] == pytest.approx(0.9)
    assert bert[10] == pytest.approx(0.9), "the switch drops from what would be 1 to 1 - W/T"
    assert max(bert) == pytest.approx(0.9)
    assert electra[5] == pytest.approx(0.95 * 0.5) and electra[10] == pytest.approx(0.9)
    assert xlnet[10] == max(xlnet) == 1 and xlnet[11] == pytest.approx(1 - 1 / 90)
    for series in (bert, electra, xlnet, rates("gpt_warmup_cosine")):
        assert series[100] == pytest.approx(0, abs=1e-7)


def test_a_warmup_below_one_is_a_fraction_rounded_down():
    for warmup, total, W in ((0.1, 95, 9), (0.01, 1_000_000, 10_000), (1, 50, 1), (0.002, 100, 0)):
        schedule = optim.create_schedule(dict(name="xlnet_poly", lr=1.0, warmup=warmup), total)
        expected = 1 / W if W else 1 - 1 / total
        assert float(schedule(1)) == pytest.approx(expected), (warmup, total)


@pytest.mark.parametrize("name", list(optim.SCHEDULES))
@pytest.mark.parametrize("total", [1, 2, 3, 15, 17])
def test_no_schedule_is_ever_negative_or_infinite(name, total):
    """In very short runs neither, where roundings weigh most."""
    epochs = dict(decay=0.5, hold=1, steps_per_epoch=2)
    fields = epochs if name in ("step_decay", "inverse_epoch") else {}
    fields |= dict(start=3) if name == "albert_poly" else {}
    schedule = optim.create_schedule(dict(name=name, lr=1.0, warmup=0.1) | fields, total)
    rates = np.asarray(schedule(jnp.arange(22)))  # some steps beyond the last, too
    assert np.isfinite(rates).all() and (rates >= 0).all()
    assert (rates[:total] > 0).any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(name="cosine"), r"schedule\.name='cosine' is unknown"),
        (dict(warmup=101), r"schedule\.warmup=101 is not within the 100 steps"),
        (dict(warmup=-1), r"schedule\.warmup=-1 is not within"),
        (dict(cycles=3), "cycles"),
        (dict(name="step_decay"), "decay"),
    ],
)
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(FirthError, match=message):
        optim.create_schedule(dict(name="bert_linear", lr=1e-4, warmup=10) | fields, 100)
