"""Texts packed into rows are read as if each were alone: logits, losses and gradients."""

import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers.cases import with_each_change
from helpers.quick import initial, jit

from firth.data.packing.rows import Packed
from firth.data.tasks.buckets import Buckets, Tokenised, starts_of
from firth.errors import FirthError
from firth.layers import fused
from firth.models import FAMILIES
from firth.models.model import bound, create
from firth.objectives.finetune import Finetune, check_packing
from firth.objectives.objective import Sources

L, V, N, C = 24, 40, 14, 3
BERT = dict(
    vocab_size=V,
    num_layers=2,
    hidden_size=16,
    num_heads=2,
    intermediate_size=24,
    max_length=L,
    dropout=0.0,
    attention_dropout=0.0,
    classifier_dropout=0.0,
)
WINDOW = dict(num_layers=3, global_every=2, window=6)
BODIES = {
    "bert": BERT | dict(family="bert"),
    "scanned": BERT | dict(family="bert", scan=True, remat="full"),
    "bert, mean": BERT | dict(family="bert", classifier_pooling="mean"),
    "roberta": BERT | dict(family="roberta", max_length=L + 2),
    "roberta, mean": BERT | dict(family="roberta", max_length=L + 2, classifier_pooling="mean"),
    "albert": BERT | dict(family="albert", embedding_size=8),
    "distilbert": BERT | dict(family="distilbert"),
    "electra": BERT | dict(family="electra", embedding_size=8),
    "modernbert": BERT | WINDOW | dict(family="modernbert"),
    "modernbert, mean": BERT | WINDOW | dict(family="modernbert", classifier_pooling="mean"),
    "modernbert, scanned": BERT | WINDOW | dict(family="modernbert", scan=True),
}


def examples(kind="classification", seed=0, changed=()):
    """Texts and pairs of 3 to 9 tokens; those `changed` have other tokens than without."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 10, N)
    offsets = starts_of(sizes)
    tokens = rng.integers(5, V - 1, offsets[-1])
    for number in changed:
        tokens[offsets[number] : offsets[number + 1]] += 1
    labels = rng.integers(0, C, N) if kind == "classification" else rng.normal(2, 1, N)
    labels = labels.astype(np.int32 if kind == "classification" else np.float32)
    second = np.where(rng.random(N) < 0.5, sizes, sizes - 2)
    return Tokenised(tokens.astype(np.int32), offsets, second, labels, L, 0, truncated=0)


@functools.cache
def made(body, kind="classification"):
    """(objective, model, parameters) of random values."""
    task = SimpleNamespace(kind=kind, text_columns=("a", "b"))
    objective = Finetune.from_config({}, Sources(None, task))
    model = create(BODIES[body], objective.heads, C if kind == "classification" else 1)
    return objective, model, initial(model, np.zeros((1, L), int), scale=0.3)


@functools.cache
def run(body, kind="classification"):
    """A function (params, batch) -> ((loss, logits), gradient) of the mean over the batch."""
    objective, model, _ = made(body, kind)

    def mean(model, batch):
        logits = objective.logits(model, batch, train=True)
        sums, _ = objective.losses(model, batch, train=True)
        return sums["task"] / objective.weights(batch)["task"], logits

    return jit(jax.value_and_grad(bound(model, mean), has_aux=True))


def by_example(batch, logits):
    """The logits of each example, in their order: [N, C]."""
    real = batch["weight"] > 0
    found = np.zeros((N, logits.shape[-1]))
    found[batch["example"][real]] = np.asarray(logits)[real]
    return found


def whole(view):
    (batch,) = view.sequential(N)
    return batch


# A code of their own: layers in a loop or scanned, positions that begin at two, shared layers,
# windows; and two ways to pool.
OWN = ("bert", "scanned", "roberta, mean", "albert", "modernbert, mean")


@pytest.mark.parametrize("body", with_each_change(OWN, BODIES))
def test_logits_losses_and_gradients_are_those_of_texts_alone(body):
    params = made(body)[2]
    packed, alone = whole(Packed(examples())), whole(Buckets(examples()))
    assert packed["weight"].sum() == alone["weight"].sum() == N
    assert len(packed["tokens"]) < N / 2
    (loss, logits), grads = run(body)(params, packed)
    (expected, apart), theirs = run(body)(params, alone)
    apart = by_example(alone, apart)
    assert np.ptp(apart, axis=0).min() > 0.1  # texts differ
    np.testing.assert_allclose(by_example(packed, logits), apart, atol=1e-5)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(grads), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * max(abs(other).max(), 1))


def test_regression_is_the_same_packed():
    params = made("bert", "regression")[2]
    values = [
        run("bert", "regression")(params, whole(kind(examples("regression"))))
        for kind in (Packed, Buckets)
    ]
    for one, other in zip(*map(jax.tree.leaves, ((v[0][0], v[1]) for v in values)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * max(abs(other).max(), 1))


@pytest.mark.parametrize("body", ["bert", "roberta", "modernbert", "modernbert, mean"])
def test_a_text_does_not_see_its_neighbours(body):
    """Other tokens in one change its own logits alone; those of the others to the bit."""
    params, changed = made(body)[2], (3, 8)
    (_, logits), _ = run(body)(params, batch := whole(Packed(examples())))
    (_, others), _ = run(body)(params, whole(Packed(examples(changed=changed))))
    same = (by_example(batch, logits) == by_example(batch, others)).all(1)
    np.testing.assert_array_equal(np.flatnonzero(~same), changed)


def test_padding_and_what_a_row_lacks_count_for_nothing():
    params = made("bert")[2]
    (loss, _), grads = run("bert")(params, batch := whole(Packed(examples(), texts=11)))
    garbage = {name: array.copy() for name, array in batch.items()}
    garbage["tokens"][~batch["mask"]] = 7
    garbage["labels"][batch["weight"] == 0] = 1
    (again, _), others = run("bert")(params, garbage)
    assert loss == again
    for one, other in zip(jax.tree.leaves(grads), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)


def test_only_bodies_that_keep_texts_apart_take_packed_rows():
    able = {"bert", "roberta", "albert", "distilbert", "electra", "modernbert"}
    for name in FAMILIES:
        if name in able:
            check_packing({"family": name})
            continue
        said = f"model.family='{name}' cannot read packed rows, .*; bert, roberta, .*modernbert can"
        with pytest.raises(FirthError, match=said):
            check_packing({"family": name})


def test_a_body_of_ones_own_says_itself_that_it_packs(tmp_path, monkeypatch):
    """Derived from BERT's, it may mix the tokens of a row in a way of its own."""
    text = "from firth.models import bert\n\n\nclass Config(bert.Config):\n    {}\n\n\n"
    text += "class Body(bert.Body):\n    pass\n"
    monkeypatch.syspath_prepend(tmp_path)
    for name, line in (("mixes_texts", "pass"), ("keeps_texts", "packs = True")):
        (tmp_path / f"{name}.py").write_text(text.format(line))
    with pytest.raises(FirthError, match="'mixes_texts:Body' cannot read packed rows"):
        check_packing({"family": "mixes_texts:Body"})
    check_packing({"family": "keeps_texts:Body"})


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_kernels_that_know_padding_alone_are_left_out(family, monkeypatch):
    """Those of TPUs, also for the local layers of ModernBERT."""
    wide = dict(hidden_size=128, num_heads=8, num_layers=2, fused_attention=True)
    model = create(BERT | wide | dict(family=family), ("classifier",))
    monkeypatch.setattr(fused, "on_tpu", lambda: True)
    monkeypatch.setattr(fused, "LENGTHS", (L,))
    tokens, text = np.zeros((1, L), int), np.repeat([1, 2, 0], L // 3)[None]
    params = jax.eval_shape(model.init, jax.random.key(0), tokens[:, :8])["params"]

    def encode(mask):
        run = functools.partial(model.apply, method=lambda m, *x: m.encoder(*x))
        jax.eval_shape(run, {"params": params}, tokens, tokens, mask)

    monkeypatch.setattr(fused, "attend", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        encode(text > 0)
    encode(text)
