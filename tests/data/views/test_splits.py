"""Training and held-out examples share no document: every view, built as a run builds it."""

import jax
import numpy as np
import pytest
from helpers.marked_store import make_marked_store

from firth import recipe
from firth.run.experiment import build
from firth.training.partition import create_mesh

DOCUMENTS = 24
VIEWS = {  # name -> (recipe, changes)
    "pairs": ("bert.py:tiny,length=32", {}),
    "sentence order": ("albert.py:tiny,length=32", {}),
    "packed": ("roberta.py:tiny,length=32", {}),
    "packed documents": ("roberta.py:tiny,length=32", {"data.mode": "documents"}),
    "streams": ("transformer_xl.py:tiny,length=16", {}),
    "sentences both ways": ("elmo.py:tiny,length=16", {}),
    "streams both ways": ("xlnet.py:tiny,length=16", {}),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_marked_store(tmp_path_factory.mktemp("documents"), DOCUMENTS)


def built(name, store, seed=0, **changes):
    path, own = VIEWS[name]
    fields = {"seed": seed, "batch_size": 4, "eval.batch_size": 4, "eval.batches": 10_000}
    fields |= {} if "streams" in name or "ways" in name else {"model.max_length": 32}
    fields |= {"data.store": str(store), "data.heldout": 0.3} | own | changes
    config = recipe.with_fields(recipe.read_recipe(path), fields)
    return build(config, create_mesh(devices=jax.devices()[:1]))


def rows_of(batches, owner):
    """[(documents of the first text, of the second, label)] of the real rows."""
    rows = []
    for batch in batches:
        for n in np.flatnonzero(batch["mask"].any(-1)):
            tokens, segments = batch["tokens"][n], batch["segments"][n]
            parts = [owner[tokens[batch["mask"][n] & (segments == s)]] for s in (0, 1)]
            label = int(batch["next"][n]) if "next" in batch else None
            rows.append((*({int(d) for d in part if d >= 0} for part in parts), label))
    return rows


def documents_of(rows):
    return set().union(*(part for a, b, _ in rows for part in (a, b)))


def training_rows(run, owner, steps=60):
    """Those of several epochs: the plans of pairs are made anew in each."""
    return rows_of((run.batch(step) for step in range(steps)), owner)


@pytest.mark.parametrize("name", VIEWS)
def test_training_and_held_out_rows_share_no_document(made, name):
    store, owner = made
    run = built(name, store)
    train = training_rows(run, owner)
    heldout = rows_of(run.heldout["heldout"](), owner)
    ours, theirs = documents_of(train), documents_of(heldout)
    assert not ours & theirs
    assert ours | theirs == set(range(DOCUMENTS))
    assert 3 <= len(theirs) <= 12  # about 0.3 of 24
    # Another seed, which draws other rows, keeps what is held out or trades it: never both.
    again = built(name, store, seed=1)
    heldout_again = documents_of(rows_of(again.heldout["heldout"](), owner))
    assert not documents_of(training_rows(again, owner)) & heldout_again


@pytest.mark.parametrize("name", ["pairs", "sentence order"])
def test_random_second_texts_are_of_the_same_split(made, name):
    store, owner = made
    run = built(name, store)
    sides = training_rows(run, owner), rows_of(run.heldout["heldout"](), owner)
    for rows, other in (sides, sides[::-1]):
        mixed = [(a, b) for a, b, _ in rows if a != b]
        assert mixed, "no second text came from another document: nothing was tested"
        assert all(len(a) == len(b) == 1 for a, b, _ in rows)
        assert not set().union(*(b for _, b in mixed)) & documents_of(other)
        assert all(label == 1 for a, b, label in rows if a != b)


@pytest.mark.parametrize("name", VIEWS)
def test_without_a_split_every_document_is_trained_on(made, name):
    store, owner = made
    run = built(name, store, **{"data.heldout": 0.0})
    assert not run.heldout
    assert documents_of(training_rows(run, owner, 90)) == set(range(DOCUMENTS))


@pytest.mark.parametrize("name", ["pairs", "packed", "streams"])
def test_a_store_of_its_own_is_what_is_held_out(made, tmp_path, name):
    store, owner = made
    other, _ = make_marked_store(tmp_path / "other", 10, first=40)
    run = built(name, store, **{"data.heldout_store": str(other)})
    assert documents_of(rows_of(run.heldout["heldout"](), owner)) == set(range(40, 50))
    assert documents_of(training_rows(run, owner, 90)) == set(range(DOCUMENTS))
