"""Hidden states of a few places: those of the whole body, for less work in its last layer."""

import functools
import itertools

import jax
import numpy as np
import pytest
from helpers.cases import with_each_change
from helpers.quick import initial, jit

from firth.models import bert
from firth.models.model import Model, bound, create

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
    return model.hidden_at(tokens_BL, mask_BL, at_BP)


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


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "electra", "modernbert"])
def test_the_last_layer_is_computed_there_alone(name):
    """The products saved are at least those of its MLP, which are in proportion to the places."""
    model, params = made(name)

    def flops(function):
        lowered = jax.jit(bound(model, function)).lower(params, TOKENS, REAL, AT)
        return lowered.compile().cost_analysis()["flops"]

    matrices = 3 if name == "modernbert" else 2
    assert flops(all_gathered) - flops(at) > 2 * matrices * 16 * 64 * B * (L - P)


def test_a_body_of_ones_own_need_not_know_of_it():
    """One with BERT's Config and Body as its bases, which computes something else."""

    class Config(bert.Config):
        pass

    class Body(bert.Body):
        def encode(self, e_BLE, mask_BL, *, train, attentions=False):
            return super().encode(-e_BLE, mask_BL, train=train, attentions=attentions)

    fields = {name: value for name, value in BODIES["bert"].items() if name != "family"}
    model, (_, params) = Model(Body(Config(**fields)), ("mlm",)), made("bert")
    arrays = params, TOKENS, REAL, AT
    expected = jit(bound(model, all_gathered))(*arrays)
    np.testing.assert_allclose(jit(bound(model, at))(*arrays), expected, atol=1e-5)
