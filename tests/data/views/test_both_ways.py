"""ELMo's streams against the rule, sentence by sentence: both directions, every word once."""

import numpy as np
import pytest
from helpers.stores import store_of

from firth.data.views.base import Source
from firth.data.views.both_ways import BothWaysConfig
from firth.errors import FirthError
from firth.tokenizers.spelling import spell
from firth.tokenizers.train_words import train_words

WORDS = [f"w{n}" for n in range(60)]


def tokenizer_of(marks=False):
    special = {"cls": "<S>", "sep": "</S>"} if marks else {}
    return train_words(
        "word", [" ".join(WORDS)], None, lowercase=False, strip_accents=False,
        special_tokens=special, min_frequency=1,
    )  # fmt: skip


def view_of(documents, marks=False, **options):
    tokenizer, store = tokenizer_of(marks), store_of(documents)
    first = tokenizer.id("w0")
    count = int(store.sentences[-1])
    store.tokens = (first + np.arange(count) % len(WORDS)).astype(np.uint32)
    config = BothWaysConfig(**{"length": 4, "max_characters": 6} | options)
    return config.view(Source(store, tokenizer, 3)), store, tokenizer


def by_rule(store, tokenizer, order, begin, end):
    """[(word read, word to predict)] of each direction, of sentences in an order."""
    ahead, behind = [], []
    for s in order:
        words = [
            tokenizer.token(t) for t in store.tokens[store.sentences[s] : store.sentences[s + 1]]
        ]
        ahead += zip(["<S>", *words], [*words, end], strict=True)
        words.reverse()
        behind += zip(["</S>", *words], [*words, begin], strict=True)
    return ahead, behind


def shown(batches, tokenizer, row):
    """The same of a row's real places, from batches."""
    spelled = {tuple(s): w for w in ("<S>", "</S>", *WORDS) for s in spell([w], 6)[0]}
    found = [], []
    for batch in batches:
        for direction in (0, 1):
            read, targets = batch["characters"][row, direction], batch["targets"][row, direction]
            for real, r, t in zip(batch["mask"][row], read, targets, strict=True):
                if real:
                    found[direction].append((spelled[tuple(r)], tokenizer.token(t)))
                else:
                    assert not r.any() and not t
    return found


@pytest.mark.parametrize("marks", [False, True])
def test_sentences_as_stored_are_those_of_the_rule(marks):
    view, store, tokenizer = view_of([[3, 1], [5, 2, 7]], marks)
    begin, end = ("<S>", "</S>") if marks else ("<eos>", "<eos>")
    ahead, behind = by_rule(store, tokenizer, range(5), begin, end)
    assert view.num_tokens == len(ahead) == 18 + 5
    assert [*map(list, shown(view.sequential(1), tokenizer, 0))] == [ahead, behind]
    for rows in (2, 3):  # in streams, which together are the whole
        batches = list(view.sequential(rows))
        for direction, whole in enumerate((ahead, behind)):
            parts = [shown(batches, tokenizer, row)[direction] for row in range(rows)]
            assert [pair for part in parts for pair in part] == whole
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert [b["reset"].all() for b in batches] == [True] + [False] * (len(batches) - 1)


def test_an_epoch_shows_every_sentence_in_another_order():
    view, store, tokenizer = view_of([[3, 1], [5, 2, 7]])
    steps = view.steps_per_epoch(1)
    assert steps == 23 // 4
    orders = []
    for epoch in range(3):
        batches = [view.batch(epoch * steps + t, 1) for t in range(steps)]
        assert [b["reset"][0] for b in batches] == [True] + [False] * (steps - 1)
        assert all((b["copy"] == epoch).all() for b in batches)
        found, back = shown(batches, tokenizer, 0)
        order = view._order(epoch)
        numbers = [int(np.flatnonzero(store.sentences == begin)[0]) for begin in order.begin]
        ahead, behind = by_rule(store, tokenizer, numbers, "<eos>", "<eos>")
        assert (found, back) == (ahead[:20], behind[:20])
        orders.append(tuple(numbers))
    assert sorted(orders[0]) == [0, 1, 2, 3, 4] and len(set(orders)) == 3
    plain, store, tokenizer = view_of([[3, 1], [5, 2, 7]], shuffle=False)
    ahead, _ = by_rule(store, tokenizer, range(5), "<eos>", "<eos>")
    assert shown([plain.batch(0, 1)], tokenizer, 0)[0] == ahead[:4]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_slices_add_up_and_fields_are_as_promised(count):
    view, _, _ = view_of([[3, 1, 9, 4], [5, 2, 7]])
    whole = view.batch(1, 4)
    parts = [view.batch(1, 4, index, count) for index in range(count)]
    assert list(whole) == list(view.fields)
    for name, (shape, dtype) in view.fields.items():
        assert whole[name].shape == (4, *shape) and whole[name].dtype == dtype
        np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), whole[name])
    assert whole["mask"].all() and (whole["tokens"] == whole["targets"][:, 0]).all()
    assert whole["example"].tolist() == [4, 5, 6, 7]
    assert [b["mask"].sum() for b in view.sequential(2, limit=1)] == [8]


def test_bad_values_are_refused():
    with pytest.raises(FirthError, match="length=0 is too short"):
        BothWaysConfig(length=0)
    with pytest.raises(FirthError, match="max_characters=2: expected 3 or more"):
        BothWaysConfig(length=4, max_characters=2)
    view, _, _ = view_of([[3, 1]])
    with pytest.raises(FirthError, match="6 places are too few for 2 rows of 4"):
        view.batch(0, 2)
