"""Hidden states of a few places: those of the whole body, for less work in its last layer.

What reads them: pseudo-log-likelihoods, masked language models in training, generators, and
classifiers of the first token.
"""

import functools
import itertools

import jax
import numpy as np
import pytest
from helpers.cases import with_each_change
from helpers.quick import initial, jit
from scipy.special import log_softmax

from firth.layers.transformer import reads_places
from firth.models import bert
from firth.models.heads import classifies_pooled
from firth.models.model import Model, bound, create
from firth.objectives.finetune import Finetune

B, L, V, P = 3, 24, 40, 2
BERT = dict(
    vocab_size=V, num_layers=3, hidden_size=16, num_heads=2, intermediate_size=64, max_length=L
)
WINDOW = dict(family="modernbert", global_every=2, window=6)  # the last layer is global
BODIES = {
    "bert": BERT | dict(family="bert"),
    "bert, one layer": BERT | dict(family="bert", num_layers=1),
    "bert, scanned": BERT | dict(family="bert", scan=True),
    "roberta": BERT | dict(family="roberta", max_length=L + 2),
    "albert": BERT | dict(family="albert", embedding_size=8),
    "distilbert": BERT | dict(family="distilbert"),
    "electra": BERT | dict(family="electra", embedding_size=8),
    "modernbert": BERT | WINDOW,
    "modernbert, local": BERT | WINDOW | dict(num_layers=2),
    "modernbert, scanned": BERT | WINDOW | dict(scan=True),
}
AT = np.array([[5, 1], [0, 7], [22, 23]])
REAL = np.arange(L) < np.array([[9], [12], [24]])
TEXTS = REAL * (1 + (np.arange(L) > 3))  # two texts in a row
TOKENS = np.random.default_rng(0).integers(0, V, (B, L))


@functools.cache
def made(name):
    model = create(BODIES[name], ("mlm",))
    return model, initial(model, np.zeros((1, L), int), scale=0.3)


def at(model, tokens_BL, mask_BL, at_BP):
    return model.read_at(at_BP, tokens_BL, None, mask_BL).last


def all_gathered(model, tokens_BL, mask_BL, at_BP):
    return model.encoder(tokens_BL, None, mask_BL).last[np.arange(B)[:, None], at_BP]


WAYS = list(itertools.product(BODIES, ("real", "packed")))
OFTEN = [way for way in WAYS if way[1] == "packed" or way[0] in ("bert", "modernbert")]


@pytest.mark.parametrize(("name", "mask"), with_each_change(OFTEN, WAYS))
def test_they_are_those_of_the_whole_body(name, mask):
    model, params = made(name)
    mask_BL = REAL if mask == "real" else TEXTS
    found = jit(bound(model, at))(params, TOKENS, mask_BL, AT)
    expected = jit(bound(model, all_gathered))(params, TOKENS, mask_BL, AT)
    assert found.shape == (B, P, 16) and np.ptp(expected, axis=(0, 1)).min() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-5)


UNROLLED = [name for name in BODIES if "scanned" not in name]


@pytest.mark.parametrize("name", with_each_change(("bert", "albert", "modernbert"), UNROLLED))
def test_in_training_every_dropout_is_that_of_the_whole_body(name):
    """At all places, where both draw as many random bits."""
    fields = BODIES[name] | dict(dropout=0.3, attention_dropout=0.2, remat="full")
    model, (_, params) = create(fields, ("mlm",)), made(name)
    places_BL = np.broadcast_to(np.arange(L), (B, L))

    def gradient(whole, key):
        def read(model):
            if whole:
                return model.encoder(TOKENS, None, REAL, train=True).last
            return model.read_at(places_BL, TOKENS, None, REAL, train=True).last

        def mean(params):
            last_BLD = bound(model, read)(params, rngs={"dropout": key})
            return (last_BLD * REAL[..., None] * np.cos(np.arange(16))).mean(), last_BLD

        return jax.grad(mean, has_aux=True)(params)

    run = jit(gradient, static_argnums=0)
    found, expected = run(False, jax.random.key(1)), run(True, jax.random.key(1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
    assert abs(found[1] - run(False, jax.random.key(2))[1]).max() > 0.1


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "albert", "distilbert", "electra", "modernbert"]
)
def test_the_last_layer_is_computed_there_alone(name):
    """The products saved are at least those of its MLP, which are in proportion to the places."""
    model, params = made(name)

    def flops(function):
        lowered = jax.jit(bound(model, function)).lower(params, TOKENS, REAL, AT)
        return lowered.compile().cost_analysis()["flops"]

    matrices = 3 if name == "modernbert" else 2
    assert flops(all_gathered) - flops(at) > 2 * matrices * 16 * 64 * B * (L - P)


def classified(packed):
    """(the logits of a bound model by the objective, those of its whole body, a batch)."""
    objective = Finetune()
    rows = dict(tokens=TOKENS, segments=np.zeros_like(TOKENS))
    if packed:
        batch = rows | dict(text=TEXTS, weight=np.ones((B, 2)))
    else:
        batch = rows | dict(mask=REAL, weight=np.ones(B))

    def alone(model, batch):
        return objective.logits(model, batch, train=False)

    def whole(model, batch):
        out = model.encoder(batch["tokens"], None, TEXTS if packed else REAL)
        if not packed:
            return model.classify(out, REAL)
        first_BT = (TEXTS[:, None] == np.array([[1], [2]])).argmax(2)
        x_BTD = out.last[np.arange(B)[:, None], first_BT]
        pools = classifies_pooled(model.encoder.config)
        return model.head("classifier")(model.encoder.pool(x_BTD) if pools else x_BTD)

    return alone, whole, batch


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["bert", "albert", "distilbert", "modernbert"])
def test_a_classifier_of_the_first_token_reads_no_other(name, packed):
    model = create(BODIES[name], ("classifier",))
    params = initial(model, np.zeros((1, L), int), scale=0.3)
    alone, whole, batch = classified(packed)
    programs = [jax.jit(bound(model, way)).lower(params, batch).compile() for way in (alone, whole)]
    found, expected = (program(params, batch) for program in programs)
    assert found.shape == ((B, 2, 2) if packed else (B, 2)) and np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-5)
    few, all_of_them = (program.cost_analysis()["flops"] for program in programs)
    assert all_of_them - few > 2 * 2 * 16 * 64 * B * (L - P)


def test_a_language_modelling_loss_reads_every_token():
    """With a classifier of the first, as a causal body of one's own may have."""
    model = create(BODIES["bert"], ("classifier", "lm"))
    params = initial(model, np.zeros((1, L), int), scale=0.3)
    rows = dict(tokens=TOKENS, segments=np.zeros_like(TOKENS), mask=REAL)
    batch = rows | dict(weight=np.ones(B), labels=np.zeros(B, int))
    losses = functools.partial(Finetune(lm_weight=0.5).losses, train=False)
    sums, _ = jit(bound(model, losses))(params, batch)
    logits_BLV = jit(model.apply)({"params": params}, TOKENS, None, REAL)[1]["lm"]
    scores_BL = log_softmax(np.asarray(logits_BLV), axis=-1)[:, :-1]
    scores_BL = np.take_along_axis(scores_BL, TOKENS[:, 1:, None], axis=-1)[..., 0]
    means_B = (scores_BL * REAL[:, 1:]).sum(1) / REAL[:, 1:].sum(1)
    np.testing.assert_allclose(sums["lm"], -means_B.sum(), rtol=1e-5)


@pytest.mark.parametrize("kernels", [dict(fused_attention=True), dict(attention="cudnn")])
def test_kernels_take_whole_rows(kernels):
    for name in ("bert", "modernbert"):
        assert not reads_places(create(BODIES[name] | kernels).encoder)
        assert reads_places(create(BODIES[name]).encoder)


def test_a_body_of_ones_own_need_not_know_of_it():
    """One derived from BERT's, which computes something else."""

    class Body(bert.Body):
        def encode(self, e_BLE, mask_BL, *, train, attentions=False):
            return super().encode(-e_BLE, mask_BL, train=train, attentions=attentions)

    fields = {name: value for name, value in BODIES["bert"].items() if name != "family"}
    model, (_, params) = Model(Body(bert.Config(**fields)), ("mlm",)), made("bert")
    arrays = params, TOKENS, REAL, AT
    expected = jit(bound(model, all_gathered))(*arrays)
    np.testing.assert_allclose(jit(bound(model, at))(*arrays), expected, atol=1e-5)
