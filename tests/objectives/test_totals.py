"""What the loss of a train step is made of: every objective's total against numpy in float64.

The totals come from the function that the train step differentiates, in training mode. The
references take nothing but logits and hidden states from the model, and which tokens were chosen.
"""

import collections
import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import nightly
from helpers.quick import jit
from helpers.rows import MASK, SPECIAL, make_batch, random_rows
from ml_collections import ConfigDict

from firth.models.model import bound, create
from firth.objectives.clm import CausalLM
from firth.objectives.distill import Distill
from firth.objectives.finetune import Finetune
from firth.objectives.mlm import MaskedLM
from firth.objectives.plm import PermutationLM
from firth.objectives.rtd import ReplacedTokens
from firth.run.experiment import create_model
from firth.run.program import make_gradient
from firth.training import optim
from firth.weights.read import Saved

B, L, V, C = 6, 16, 60, 3
BODY = dict(family="bert", vocab_size=V, num_layers=1, hidden_size=8, num_heads=2,
            intermediate_size=12, max_length=L, dropout=0.0, attention_dropout=0.0)  # fmt: skip
RELATIVE = {name: BODY[name] for name in BODY if name != "max_length"}
MASKED = MaskedLM(MASK, V, SPECIAL, max_predictions=4, rate=0.3)


@pytest.fixture(scope="module")
def clean():
    """Two segments a row, of several lengths; the last row completes the batch, all padding."""
    tokens, mask, _ = random_rows(B, L, seed=7)
    mask[-1], tokens[-1] = False, 0
    at = np.arange(L)
    second = at > (tokens == 3).argmax(1)[:, None]
    extra = {"segments": (second & mask).astype(np.int32), "next": np.array([0, 1, 1, 0, 1, 0])}
    return jax.tree.map(jnp.asarray, make_batch(tokens, mask) | extra)


def parameters(model, seed=0, spread=0.5):
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, L), jnp.int32))["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: rng.normal(size=s.shape, scale=spread).astype(np.float32), shapes)


def gradient_of(objective, model):
    frozen = optim.path_mask(objective.frozen)
    return make_gradient(model, objective, frozen, ConfigDict(dict(accumulate=1)))


def totals(objective, model, params, batch, keys=(0,)):
    """The losses that a train step takes the gradient of, with these keys of dropout."""
    gradient = gradient_of(objective, model)
    run = jit(lambda p, b, k: gradient(p, b, objective.weights(b), k)[0][0])
    return [float(run(params, batch, jax.random.key(key))) for key in keys]


def read(model, function, params, batch):
    """What `function(model, batch)` gives, as float64."""
    found = jit(bound(model, function))(params, batch)
    return jax.tree.map(lambda x: np.asarray(x, np.float64), found)


def hidden(model, batch):
    return model.encoder(batch["tokens"], batch["segments"], batch["mask"])


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def nll(logits, classes):
    return -np.take_along_axis(log_softmax(logits), np.asarray(classes)[..., None], -1)[..., 0]


def is_chosen(batch):
    """Bool [B, L]: what is predicted, from the positions whose slots are used."""
    chosen = np.zeros((B, L), bool)
    row, slot = np.nonzero(np.asarray(batch["target_weights"]))
    chosen[row, np.asarray(batch["positions"])[row, slot]] = True
    assert chosen.sum() == len(row) > 6
    return chosen


# -------------------------------------------------------------------------------------- dropout


def told(objective, model, batch, train):
    """{encoder or head: what it and all within it were told about `train`}."""
    found = collections.defaultdict(set)

    def listen(call, args, kwargs, context):
        if "train" in kwargs and (path := context.module.path):
            found["/".join(path[: 1 + (path[0] in ("generator", "teacher"))])].add(kwargs["train"])
        return call(*args, **kwargs)

    params = jax.eval_shape(model.init, jax.random.key(0), batch["tokens"])["params"]
    run = bound(model, functools.partial(objective.losses, train=train))
    with nn.intercept_methods(listen):
        jax.eval_shape(lambda p, b: run(p, b, rngs={"dropout": jax.random.key(0)}), params, batch)
    return found


def kinds():
    """Every objective with the modules that it trains and, last, those that it does not."""
    encoder = dict.fromkeys(["encoder"])
    yield MASKED, BODY, encoder, ()
    tokens = ReplacedTokens(MASKED, sharing="none")
    yield tokens, BODY | dict(family="electra"), ["encoder", "generator/encoder"], ()
    yield Distill(MASKED, teacher(), width=8), BODY, encoder, ["teacher/encoder"]
    yield CausalLM(), RELATIVE | dict(family="transformer_xl"), encoder, ()
    starts = np.ones(V, bool)
    yield PermutationLM(SPECIAL, 4, starts), RELATIVE | dict(family="xlnet"), encoder, ()
    gpt = BODY | dict(family="gpt")
    yield Finetune(both_orders=True, lm_weight=1.0), gpt, ["encoder", "classifier"], ()


def test_training_drops_out_everywhere_but_in_the_teacher(clean):
    extra = {"following": clean["next"], "labels": clean["next"], "weight": jnp.ones(B)}
    for objective, body, trained, constant in kinds():
        model = create_model(body, objective)
        batch = jax.eval_shape(objective.corrupt, clean | extra, jax.random.key(0))
        for train in (False, True):
            flags = told(objective, model, batch, train)
            assert flags == {name: {train} for name in trained} | {n: {False} for n in constant}


# ------------------------------------------------------------------------------ masks and pairs


@pytest.mark.parametrize("pairs", ["none", "nsp", "sop"])
def test_masked_lm_is_one_mean_and_a_pair_loss_another(clean, pairs):
    objective = dataclasses.replace(MASKED, pairs=pairs)
    model = create(BODY, objective.heads)
    params = parameters(model)
    batch = jit(objective.corrupt)(clean, jax.random.key(1))

    def logits(m, b):
        out = hidden(m, b)
        return m.mlm(out.last), None if pairs == "none" else m.head(pairs)(out.pooled)

    words, related = read(model, logits, params, batch)
    expected = nll(words, clean["tokens"])[is_chosen(batch)].mean()
    if pairs != "none":
        expected += nll(related, clean["next"])[:-1].mean()  # the last row is none
    np.testing.assert_allclose(totals(objective, model, params, batch), expected, rtol=1e-5)


def test_a_batch_in_which_nothing_is_predicted_costs_nothing(clean):
    model = create(BODY, ("mlm",))
    batch = jit(MASKED.corrupt)(clean | {"mask": jnp.zeros((B, L), bool)}, jax.random.key(1))
    assert totals(MASKED, model, parameters(model), batch) == [0]


# ------------------------------------------------------------------------------ replaced tokens


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(weight=7.0, generator_weight=3.0, temperature=2.0),
        nightly(dict(variant="electra_15", weight=2.0, sharing="none")),
        dict(variant="replace_mlm", weight=0.5, correct=False),
        nightly(dict(variant="all_tokens", weight=4.0, generator_weight=0.0)),
        dict(legacy_with_replacement=True, weight=2.0),
        dict(sharing="all", width=1.0, generator_weight=2.0),
    ],
    ids=str,
)
def test_replaced_tokens_weigh_the_generator_and_what_learns_from_it(clean, changes):
    objective = ReplacedTokens(MASKED, **dict(width=0.5) | changes)
    model = create_model(BODY | dict(family="electra", embedding_size=6), objective)
    params = parameters(model)
    batch = jit(objective.corrupt)(clean, jax.random.key(1))
    variant = changes.get("variant", "electra")

    def logits(m, b):
        everywhere = jnp.indices(b["tokens"].shape)[1]
        texts = b["tokens"], b["segments"], b["mask"]
        seen = m.generator_hidden(everywhere, *texts, train=False)
        words = m.generate(seen)
        at_slots = jnp.take_along_axis(words, b["positions"][..., None], 1)
        filled = objective.fill(at_slots, b)
        last = m.encoder(filled, b["segments"], b["mask"]).last
        found = m.head("rtd")(last) if "electra" in variant else m.mlm(last)
        return words, filled, found, m.copies(last) if variant == "all_tokens" else None

    words, filled, found, copies = read(model, logits, params, batch)
    original, mask = np.asarray(clean["tokens"]), np.asarray(clean["mask"])
    row, slot = np.nonzero(np.asarray(batch["target_weights"]))
    at = np.asarray(batch["positions"])[row, slot]
    costs = nll(words, original)[row, at]  # a position drawn twice counts twice
    generator = costs.mean()
    where = np.zeros_like(mask)
    where[row, at] = True
    assert (len(set(zip(row, at, strict=True))) < len(row)) == objective.legacy_with_replacement
    if variant == "replace_mlm":
        learnt = nll(found, original)[where].mean()
    elif variant == "all_tokens":
        gate = 1 / (1 + np.exp(-copies))
        likelihood = gate * (filled == original) + (1 - gate) * np.exp(-nll(found, original))
        learnt = -np.log(likelihood)[mask].mean()
    else:
        says = 1 / (1 + np.exp(-found))
        costs = -np.log(np.where(filled != original, says, 1 - says))
        learnt = costs[where if variant == "electra_15" else mask].mean()
    assert 0 < (filled != original).sum() <= where.sum()
    weights = {"weight": 50.0, "generator_weight": 1.0} | changes
    expected = weights["generator_weight"] * generator + weights["weight"] * learnt
    np.testing.assert_allclose(totals(objective, model, params, batch), expected, rtol=2e-5)


def test_a_trained_generator_costs_nothing_and_learns_nothing(clean):
    """It keeps its own dropout, here none, while the model drops out."""
    small = BODY | dict(pooler=False)
    given = SimpleNamespace(spec=small, params=parameters(create(small, ("mlm",)), 3))
    objective = ReplacedTokens(MASKED, sharing="none", trained=given, weight=3.0)
    noisy = create_model(BODY | dict(family="electra", dropout=0.3), objective)
    params = parameters(noisy) | objective.initial(BODY)
    batch = jit(objective.corrupt)(clean, jax.random.key(1))
    run = jit(gradient_of(objective, noisy))
    weights = objective.weights(batch)
    found = [run(params, batch, weights, jax.random.key(key))[0] for key in (0, 0, 1)]
    costs = [float(loss) for loss, _, _ in found]
    assert costs[0] == costs[1] != costs[2]
    _, metrics, gradients = found[0]
    loss, weight = metrics["rtd_loss"]
    np.testing.assert_allclose(costs[0], 3 * loss / weight, rtol=1e-5)
    samples = [
        [float(m["generator_loss"][0]), float(m["replaced_fraction"][0])] for _, m, _ in found
    ]
    assert samples[0] == samples[1] == samples[2]
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradients["generator"]))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradients["rtd"]))


# --------------------------------------------------------------------------------- distillation


@functools.cache
def teacher():
    body = BODY | dict(num_layers=2, hidden_size=12, num_heads=3, dropout=0.5,
                       attention_dropout=0.5, pooler=False)  # fmt: skip
    params = parameters(create(body, ("mlm",)), 5)
    return Saved(body, ("mlm",), 2, None, False, params, Path("teacher"), "firth")


@pytest.mark.parametrize(
    "changes",
    [
        nightly({}),
        dict(soft=3.0, hard=0.5, cosine=4.0, temperature=1.5),
        dict(masked_only=True, temperature=4.0),
        nightly(dict(cosine=0.0, hard=0.0)),
    ],
    ids=str,
)
def test_distillation_weighs_three_terms_and_the_teacher_drops_nothing(clean, changes):
    """The teacher's config has dropout .5: in training, too, it says what it does in evaluation."""
    objective = Distill(MASKED, teacher(), width=8, **changes)
    model = create_model(BODY | dict(pooler=False), objective)
    params = parameters(model) | objective.initial(BODY)
    batch = jit(objective.corrupt)(clean, jax.random.key(1))

    def logits(m, b):
        last, taught = hidden(m, b).last, hidden(m.teacher, b).last
        bridged = m.head("bridge")(last) if "bridge" in objective.heads else None
        return m.mlm(last), m.teacher.mlm(taught), bridged, taught

    ours, theirs, state, taught = read(model, logits, params, batch)
    chosen, mask = is_chosen(batch), np.asarray(clean["mask"])
    weights = dict(soft=5.0, hard=2.0, cosine=1.0, temperature=2.0) | changes
    student, tutor = (log_softmax(x / weights["temperature"]) for x in (ours, theirs))
    divergence = (np.exp(tutor) * (tutor - student)).sum(-1)
    soft = divergence[chosen if changes.get("masked_only") else mask].mean()
    hard = nll(ours, clean["tokens"])[chosen].mean()
    expected = weights["soft"] * weights["temperature"] ** 2 * soft + weights["hard"] * hard
    if weights["cosine"]:
        lengths = np.linalg.norm(state, axis=-1) * np.linalg.norm(taught, axis=-1)
        expected += weights["cosine"] * (1 - (state * taught).sum(-1) / lengths)[mask].mean()
    found = totals(objective, model, params, batch, keys=(0, 1))
    np.testing.assert_allclose(found, [expected, expected], rtol=2e-5)


# ------------------------------------------------------------------- causal and permutation LMs


@pytest.mark.parametrize("known", [True, False])
def test_causal_lm_is_the_mean_over_what_is_predicted(clean, known):
    """The last token of a row is followed by one that the view knows, or costs nothing."""
    batch = clean | {"segments": jnp.zeros((B, L), jnp.int32)}
    batch |= {"following": jnp.full(B, 9)} if known else {}
    model = create(RELATIVE | dict(family="transformer_xl"), ("lm",))
    params = parameters(model)
    words = read(model, lambda m, b: m.lm(hidden(m, b).last), params, batch)
    tokens, mask = np.asarray(clean["tokens"]), np.asarray(clean["mask"])
    costs = [
        nll(words[row, at], tokens[row, at + 1] if at + 1 < L and mask[row, at + 1] else 9)
        for row, at in np.argwhere(mask)
        if known or (at + 1 < L and mask[row, at + 1])
    ]
    batch = CausalLM().corrupt(batch, None)
    found = totals(CausalLM(), model, params, batch)
    np.testing.assert_allclose(found, np.mean(costs), rtol=1e-5)


def test_permutation_lm_is_the_mean_over_its_targets(clean):
    starts = np.ones(V, bool)
    objective = PermutationLM(SPECIAL, 6, starts, reuse=L // 2)
    model = create(RELATIVE | dict(family="xlnet"), ("lm",))
    params = parameters(model)
    batch = jit(objective.corrupt)(clean, jax.random.key(1))

    def logits(m, b):
        names = ("tokens", "segments", "mask", "ranks", "positions")
        return m.lm(m.encoder.two_streams(*(b[n] for n in names), train=False)[1])

    used = np.asarray(batch["target_weights"]) > 0
    original = np.take_along_axis(np.asarray(clean["tokens"]), np.asarray(batch["positions"]), 1)
    expected = nll(read(model, logits, params, batch), original)[used].mean()
    np.testing.assert_allclose(totals(objective, model, params, batch), expected, rtol=1e-5)


# ----------------------------------------------------------------------------------- fine-tuning


def pair_rows(a, b):
    """[CLS] a [SEP] b [SEP] and padding: tokens, segments and mask [L]."""
    tokens, second = [2, *a, 3, *b, 3], len(a) + 2
    pad = L - len(tokens)
    segments = [0] * second + [1] * (len(tokens) - second)
    return tokens + [0] * pad, segments + [0] * pad, [True] * len(tokens) + [False] * pad


@pytest.mark.parametrize(
    "fields",
    [
        {},
        dict(regression=True),
        dict(both_orders=True),
        dict(lm_weight=0.5),
        dict(lm_weight=3.0, both_orders=True),
        dict(lm_weight=2.0, regression=True),
    ],
    ids=str,
)
def test_fine_tuning_adds_what_its_fields_say(fields):
    rng = np.random.default_rng(4)
    sizes = [(3, 4), (5, 2), (1, 6), (4, 4), (2, 2), (6, 7)]
    texts = [[rng.integers(5, V, n) for n in pair] for pair in sizes]
    names = ("tokens", "segments", "mask")

    def laid(pairs):
        columns = zip(*(pair_rows(*pair) for pair in pairs), strict=True)
        return dict(zip(names, map(jnp.asarray, columns), strict=True))

    labels = np.array([0, 2, 1, 1, 2, 0])
    batch = laid(texts) | {"labels": jnp.asarray(labels), "weight": jnp.asarray([1, 1, 1, 1, 1, 0])}
    objective = Finetune(**fields)
    body = BODY | dict(family="gpt", embedding_dropout=0.0, classifier_dropout=0.0)
    model = create(body, objective.heads, num_labels=1 if objective.regression else C)
    params = parameters(model)

    def logits(m, pair):
        batch, swapped = pair
        out = hidden(m, batch)
        words = m.lm(out.last) if objective.lm_weight else None
        if objective.both_orders:
            out = out.replace(last=out.last + hidden(m, swapped).last)
        return m.classify(out, batch["mask"], train=False), words

    found, words = read(model, logits, params, (batch, laid([pair[::-1] for pair in texts])))
    if objective.regression:
        expected = ((found[:, 0] - labels) ** 2)[:5].mean()
    else:
        expected = nll(found, labels)[:5].mean()
    if objective.lm_weight:
        means = []
        for row, (a, b) in enumerate(sizes[:5]):
            n = a + b + 3
            means.append(nll(words[row, : n - 1], batch["tokens"][row, 1:n]).mean())
        expected += fields["lm_weight"] * np.mean(means)
    np.testing.assert_allclose(totals(objective, model, params, batch), expected, rtol=1e-5)
