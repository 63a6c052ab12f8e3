"""What a recipe may count on from every view: those that Firth ships, and one of the user's own."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.stores import END, IDS, joined, random_documents, same, store_of
from helpers.views import packed, pairs, streams

from firth import recipe
from firth.data.tasks.buckets import Buckets, Tokenised
from firth.data.views import VIEWS, create_view, view_config
from firth.data.views.base import Source
from firth.data.views.both_ways import BothWaysConfig
from firth.errors import FirthError
from firth.run.outline import outline

STORE = store_of(random_documents(0, 60))


def made_buckets(labels=None):
    sizes = np.random.default_rng(0).integers(1, 60, 101)
    tokens = np.arange(sizes.sum(), dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Buckets(Tokenised(tokens, offsets, sizes.astype(np.int32), labels, 64, 0, 0))


def words():
    """A tokenizer with a word for every token of the store."""
    vocab = [str(number) for number in range(int(STORE.tokens.max()) + 1)]
    return SimpleNamespace(vocab=vocab, id=lambda word: None, end_id=END)


MADE = {
    "packed": lambda: packed(STORE, 32, **IDS),
    "pairs": lambda: pairs(STORE, 32, **IDS),
    "streams": lambda: streams(STORE, 32, end_id=END, **IDS),
    "both_ways": lambda: BothWaysConfig(length=32).view(Source(STORE, words())),
    "xlnet": lambda: streams(STORE, 32, end_id=END, reuse=8, **IDS),
    "buckets": made_buckets,
    "labelled buckets": lambda: made_buckets(np.arange(101, dtype=np.float32)),
}
every_view = pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())


@every_view
def test_batches_have_the_fields_that_are_known_before(make):
    view = make()
    for batch in (view.batch(1, 8), *view.sequential(8, limit=2)):
        assert list(batch) == list(view.fields)
        for name, (shape, dtype) in view.fields.items():
            length = batch["tokens"].shape[1]
            assert batch[name].shape == (8, *(length if n is None else n for n in shape))
            assert batch[name].dtype == dtype
        assert length <= view.length


@every_view
def test_slices_add_up(make):
    view = make()
    assert same(joined([view.batch(3, 8, i, 2) for i in range(2)]), view.batch(3, 8))
    slices = [view.sequential(8, index=i, count=2, limit=3) for i in range(2)]
    for *parts, whole in zip(*slices, view.sequential(8, limit=3), strict=True):
        assert same(joined(parts), whole)


@every_view
def test_numbers_out_of_range_are_refused(make):
    view = make()
    with pytest.raises(FirthError, match="no batch for step -1"):
        view.batch(-1, 8)
    for call in (lambda **own: view.batch(0, 8, **own), lambda **own: view.sequential(8, **own)):
        with pytest.raises(FirthError, match="8 rows cannot be divided into 3 equal slices"):
            call(count=3)
    with pytest.raises(FirthError, match="limit=0 batches"):
        view.sequential(8, limit=0)


def test_limited_buckets_have_texts_of_all_lengths():
    view = made_buckets()
    sizes = np.concatenate([batch["mask"].sum(1) for batch in view.sequential(8, limit=3)])
    everything = np.concatenate([batch["mask"].sum(1) for batch in view.sequential(8)])
    assert len(sizes) == 24 and (np.diff(sizes) >= 0).all()
    np.testing.assert_allclose(np.median(sizes), np.median(everything), atol=4)


# ------------------------------------------------------------------------- named in a recipe

OWN = """
from dataclasses import dataclass
import numpy as np
from firth.data.views.base import View, ViewConfig, row_fields

@dataclass(frozen=True, kw_only=True)
class Config(ViewConfig):
    step: int = 1

    @property
    def fields(self):
        return row_fields(self.length, kind=np.int32)

    def view(self, source):
        return Counting(self, source)

class Counting(View):
    def __init__(self, config, source):
        self.length, self.fields, self.tokens = config.length, config.fields, source.store.tokens

    def _batch(self, step, batch_size, own):
        rows = own.stop - own.start
        return {name: np.full((rows, *s), step, t) for name, (s, t) in self.fields.items()}

    def _sequential(self, batch_size, own, limit):
        return (self._batch(step, batch_size, own) for step in range(limit))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The data section of a recipe with a view in a file of the folder that one works in."""
    (tmp_path / "my_views.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_views", raising=False)
    config = recipe.read_recipe("roberta.py:tiny,length=32")
    with config.unlocked():
        del config.data["mode"]
    config.data.view = "my_views:Config"
    return config


def test_a_view_of_ones_own_is_named_by_its_module(own):
    with own.unlocked():
        own.data.step = 2
    assert view_config(own.data).step == 2 and view_config(own.data).min_documents == 1
    view = create_view(own.data, Source(STORE, None))
    assert view.batch(7, 8, 1, 2)["kind"].tolist() == [7] * 4
    shapes = outline(own).batch
    assert shapes["kind"].shape == (own.batch_size,) and shapes["kind"].dtype == np.int32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data.view": "packd"}, r"data\.view='packd' is unknown; did you mean 'packed'"),
        ({"data.view": "no_such:Config"}, "cannot import 'no_such'"),
        ({"data.view": "my_views:View2"}, "module 'my_views' has no 'View2'"),
        ({"data.view": "pairs", "data.mode": "blocks"}, r"data\.view='pairs': .*'mode'"),
        ({"data.view": "packed", "data.mode": "words"}, "unknown packing mode 'words'"),
    ],
)
def test_what_a_view_does_not_know_is_refused(own, fields, message):
    with pytest.raises(FirthError, match=message):
        view_config(recipe.with_fields(own, fields).data)


@pytest.mark.parametrize("name", VIEWS)
def test_a_config_needs_no_data_to_know_the_fields(name):
    data = recipe.read_recipe("bert.py:tiny,length=32").data
    with data.unlocked():
        for field in ("order", "short_seq_prob", "dupe_factor"):
            del data[field]
    data.view = name
    fields = view_config(data).fields
    assert fields == MADE[name]().fields and fields["tokens"] == ((32,), np.dtype(np.int32))
