"""Spans of words against ALBERT's rules in plain Python and against the papers' proportions."""

import collections
import functools
import itertools

import jax
import numpy as np
import pytest
from helpers.quick import jit
from helpers.rows import (
    MASK,
    SPECIAL,
    UNLIKELY,
    Hashable,
    chosen,
    corrupt,
    corrupted_rows,
    keys,
    make_batch,
    words_of,
)
from scipy.stats import chisquare

from firth.objectives import spans
from firth.objectives.mlm import MaskedLM

NGRAM, GEOMETRIC = spans.ngram_probs(), spans.geometric_probs()


def runs(sizes):
    """The (start, tokens) of each row's spans."""
    return [tuple((i, s) for i, s in enumerate(row) if s) for row in np.asarray(sizes).tolist()]


def test_lengths_are_those_of_the_papers():
    np.testing.assert_allclose(NGRAM, [6 / 11, 3 / 11, 2 / 11])
    assert len(GEOMETRIC) == 10 and abs(GEOMETRIC.sum() - 1) < 1e-12
    np.testing.assert_allclose(GEOMETRIC[1:] / GEOMETRIC[:-1], 0.8)
    assert abs(GEOMETRIC @ np.arange(1, 11) - 3.8) < 0.01  # "a mean span length of 3.8"


# --------------------------------------------------------------------------------- against a loop


def place_in_order(groups, order, lengths, count):
    """ALBERT's loop over shuffled words, each with the words that follow it in its group."""
    taken, placed = set(), []
    for (g, k), n in zip(order, lengths, strict=True):
        run = groups[g][k : k + n]
        while run and len(taken) + sum(map(len, run)) > count:
            run = run[:-1]
        tokens = [t for word in run for t in word]
        if not taken & set(tokens) and tokens:
            taken |= set(tokens)
            placed.append((tokens[0], len(tokens)))
    return tuple(sorted(placed))


@pytest.mark.parametrize("count", [4, 20])
@pytest.mark.parametrize("probs", [NGRAM, [0.2, 0.8]], ids=["ngram", "two"])
def test_spans_are_as_likely_as_over_every_order_and_length_of_the_reference(probs, count):
    """Five words around a special token, the second group without a start; padding at the end."""
    candidates = np.array([0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 0], bool)
    starts = np.array([1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 0], bool)
    groups, n = [[[1], [2, 3], [4]], [[6, 7], [8]]], 20_000
    assert list(itertools.chain(*groups)) == words_of(candidates, starts)
    words = [(g, k) for g, group in enumerate(groups) for k in range(len(group))]
    chance = collections.Counter()
    for lengths in itertools.product(range(1, len(probs) + 1), repeat=len(words)):
        p = np.prod([probs[length - 1] for length in lengths]) / 120
        for order in itertools.permutations(words):
            chance[place_in_order(groups, order, lengths, count)] += p
    place = jit(functools.partial(spans.place_spans, length_probs=probs))
    tile = functools.partial(np.tile, reps=(n, 1))
    sizes = place(keys(n), tile(candidates), tile(starts), np.full(n, count))
    found = collections.Counter(runs(sizes))
    assert set(found) <= set(chance)
    often = [s for s in chance if chance[s] * n >= 5]
    observed = [found[s] for s in often]
    expected = [chance[s] * n for s in often]
    observed.append(n - sum(observed) + 5)  # all the rare ones together, which may be none
    expected.append(n - sum(expected) + 5)
    assert len(often) > 10 and chisquare(observed, expected).pvalue > UNLIKELY


# ---------------------------------------------------------------------------- against the papers


def test_ngrams_come_in_the_proportions_of_albert():
    """Three tokens in a long row: the first draw leaves room for what the second makes of it.

    One trigram: 2/11. A bigram and a word: 3/11, or 6/11 of a word first, then 5/11 of no word.
    """
    n, length = 3000, 120
    place = jit(functools.partial(spans.place_spans, length_probs=NGRAM))
    every = np.ones((n, length), bool)
    found = collections.Counter(
        tuple(sorted(size for _, size in row))
        for row in runs(place(keys(n), every, every, np.full(n, 3)))
    )
    assert set(found) == {(3,), (1, 2), (1, 1, 1)}
    chance = {(3,): 2 / 11, (1, 2): 3 / 11 + 6 / 11 * 5 / 11, (1, 1, 1): (6 / 11) ** 2}
    for sizes, p in chance.items():
        # The row's end and neighbours already taken shift the chances by less than 1%.
        assert abs(found[sizes] / n - p) < 4 * np.sqrt(p * (1 - p) / n) + 0.01, sizes


def test_spans_are_as_long_as_those_of_spanbert():
    """3.8 words on average, 10 at most, where 5% of a long row leaves spans room."""
    n, length = 64, 2000
    place = jit(functools.partial(spans.place_spans, length_probs=GEOMETRIC))
    every = np.ones((n, length), bool)
    placed = runs(place(keys(n), every, every, np.full(n, 100)))
    lengths = np.array([size for row in placed for _, size in row])
    assert lengths.max() == 10 and {sum(s for _, s in row) for row in placed} == {100}
    # The error of the mean is 0.07; the last span's cut and collisions shorten it by 0.15.
    assert 3.8 - 0.4 < lengths.mean() < 3.8 + 0.2, lengths.mean()


def test_lengths_are_counted_in_words():
    """Words of three tokens: bigrams take six, and no run begins inside a word."""
    n, length = 300, 90
    starts = np.arange(length) % 3 == 0
    place = jit(functools.partial(spans.place_spans, length_probs=[0.0, 1.0]))
    tile = functools.partial(np.tile, reps=(n, 1))
    placed = runs(place(keys(n), np.ones((n, length), bool), tile(starts), np.full(n, 12)))
    assert {s for row in placed for _, s in row} == {3, 6}  # 3 at the row's end
    assert {i % 3 for row in placed for i, _ in row} == {0}
    bigrams = [row for row in placed if all(s == 6 for _, s in row)]
    assert len(bigrams) > 200 and {len(row) for row in bigrams} == {2}


# ------------------------------------------------------------------------------------ properties


@pytest.mark.parametrize("masking", ["ngram", "span"])
@pytest.mark.parametrize("size", [(64, 20), (33, 3)])
def test_whole_words_within_the_count(masking, size):
    _, batch, tokens, present, starts = corrupted_rows(masking, *size)
    several = full = 0
    for row, picked in enumerate(chosen(batch["positions"], batch["target_weights"])):
        candidates = present[row] & ~np.isin(tokens[row], SPECIAL)
        words = words_of(candidates, starts[tokens[row]])
        taken = [w for w in words if set(w) <= set(picked)]
        assert sorted(itertools.chain(*taken)) == list(picked), "part of a word"
        n = int(present[row].sum())
        count = min(size[1], max(1, int(round(n * 0.15))))  # noqa: RUF046
        assert len(picked) <= count
        several += any(len(w) > 1 for w in taken)
        full += len(picked) == count
    assert several > 20 and full > 150


@pytest.mark.parametrize(("masking", "expected"), [("ngram", 5 / 3), ("span", 3.8)])
def test_the_objective_draws_the_lengths_of_its_masking(masking, expected):
    """Ten of 256 words: a run of n-grams is as long as their mean, and one of spans as theirs."""
    every = np.ones(60, bool).view(Hashable)
    objective = MaskedLM(MASK, 60, SPECIAL, every, masking, rate=10 / 256, max_predictions=10)
    tokens = np.full((300, 256), 9, np.int32)
    batch = corrupt(objective)(make_batch(tokens, tokens > 0), jax.random.key(0))
    picked = chosen(batch["positions"], batch["target_weights"])
    assert {len(row) for row in picked} == {10}
    begun = sum(1 + int((np.diff(row) > 1).sum()) for row in picked)
    # The last run is cut to what is left, which shortens long ones more.
    assert 0.75 * expected < 300 * 10 / begun < 1.15 * expected


def test_a_row_may_begin_inside_a_word():
    """Its rest is a word, whatever the row's last token is; six tokens are room for all words."""
    starts = np.array([[0, 0, 1, 1, 0, 1]], bool)
    place = jit(functools.partial(spans.place_spans, length_probs=[1.0]))
    sizes = place(keys(1), np.ones((1, 6), bool), starts, np.array([6]))
    assert sizes.tolist() == [[2, 0, 1, 2, 0, 1]]


@pytest.mark.parametrize("probs", [NGRAM, GEOMETRIC], ids=["ngram", "geometric"])
def test_no_run_goes_beyond_a_special_token(probs):
    """Lone words between specials, though every word that follows would fit."""
    candidates = np.arange(40) % 2 == 1
    tile = functools.partial(np.tile, reps=(100, 1))
    place = jit(functools.partial(spans.place_spans, length_probs=probs))
    sizes = np.asarray(
        place(keys(100), tile(candidates), np.ones((100, 40), bool), np.full(100, 15))
    )
    assert sizes.max() == 1 and (sizes.sum(1) == 15).all() and not sizes[:, ~candidates].any()


def test_neither_the_count_nor_the_slots_are_exceeded_and_no_word_is_cut():
    candidates, starts = np.ones((50, 6), bool), np.zeros((50, 6), bool)
    candidates[:, 0] = False
    starts[:, :2] = True  # one word of five
    for slots, count, expected in (
        (6, 4, ()),
        (6, 5, (1, 2, 3, 4, 5)),
        (4, 5, ()),
        (6, 0, ()),
    ):
        select = functools.partial(spans.select_spans, slots=slots, length_probs=NGRAM)
        picked = chosen(*jit(select)(keys(50), candidates, starts, np.full(50, count)))
        assert set(picked) == {expected}


def test_the_tokens_selected_are_those_of_the_runs_placed():
    rng = np.random.default_rng(0)
    candidates, starts = rng.random((300, 40)) < 0.9, rng.random((300, 40)) < 0.6
    arguments = keys(300), candidates, starts, rng.integers(0, 21, 300)
    placed = runs(jit(functools.partial(spans.place_spans, length_probs=NGRAM))(*arguments))
    select = functools.partial(spans.select_spans, slots=20, length_probs=NGRAM)
    picked = chosen(*jit(select)(*arguments))
    for row, places in zip(picked, placed, strict=True):
        assert list(row) == [t for start, size in places for t in range(start, start + size)]
