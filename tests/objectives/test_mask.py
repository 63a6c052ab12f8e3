"""Masking against the BERT code's rules in plain Python, and against chance by chi-square."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import nightly
from helpers.quick import jit
from helpers.rows import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL,
    UNLIKELY,
    Hashable,
    chosen,
    corrupt,
    corrupted_rows,
    keys,
    make_batch,
    random_rows,
    words_of,
)
from scipy.stats import chisquare

from firth.objectives import mask
from firth.objectives.mlm import MASKINGS, MaskedLM

# ------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("most", [20, 77, 1000])
@pytest.mark.parametrize("rate", [0.15, 0.1, 0.25, 0.5])
def test_counts_are_those_of_the_bert_code(rate, most):
    """`min(most, max(1, int(round(len(tokens) * rate))))`: Python rounds halves to even."""
    counts = mask.prediction_counts(512, rate, most)
    assert counts.dtype == np.int32 and len(counts) == 513
    for n in range(1, 513):
        assert counts[n] == min(most, max(1, int(round(n * rate)))), n  # noqa: RUF046


def test_halves_round_to_even():
    """Lengths that tell the rule from rounding up: 0.15 * 30 = 4.5 and 0.15 * 70 = 10.5."""
    counts = mask.prediction_counts(512, 0.15, 512)
    assert counts[30] == 4 and counts[70] == 10 and counts[1] == counts[3] == 1


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_drawn_counts_are_right_on_average_and_next_to_the_product(rate):
    """`int(rate * n + random())` of fairseq: between the whole numbers around rate * n."""
    sizes, rows = [1, 2, 5, 7, 20, 41, 100, 511], 5000
    draw = jit(functools.partial(mask.drawn_counts, length=512, rate=rate, max_predictions=400))
    counts = np.asarray(draw(keys(rows * len(sizes)), np.repeat(sizes, rows)))
    assert counts.dtype == np.int32
    for n, found in zip(sizes, counts.reshape(-1, rows), strict=True):
        part = rate * n - np.floor(rate * n)
        assert set(found.tolist()) <= {int(np.floor(rate * n)), int(np.floor(rate * n)) + 1}
        assert abs(found.mean() - rate * n) <= 4 * np.sqrt(part * (1 - part) / rows) + 1e-6, n
    assert counts.min() == 0, "a row of one token is mostly left alone"


def test_drawn_counts_are_capped_and_differ_between_rows():
    draw = jit(functools.partial(mask.drawn_counts, length=64, rate=0.15, max_predictions=7))
    assert set(np.asarray(draw(keys(200), np.full(200, 50))).tolist()) == {7}
    assert set(np.asarray(draw(keys(200), np.full(200, 43))).tolist()) == {6, 7}
    assert set(np.asarray(draw(keys(200), np.zeros(200, int))).tolist()) == {0}


def test_the_objective_counts_as_roberta_on_request():
    tokens, present, _ = random_rows(600, 64)
    objective = MaskedLM(MASK, 60, SPECIAL, counting="floor", max_predictions=64)
    batch = corrupt(objective)(make_batch(tokens, present), jax.random.key(1))
    found, exact = np.asarray(batch["target_weights"]).sum(1), 0.15 * present.sum(1)
    assert ((np.floor(exact) <= found) & (found <= np.ceil(exact))).all()
    assert abs((found - exact).mean()) < 4 * 0.5 / np.sqrt(600) and found.min() == 0


# ----------------------------------------------------------------------------------- selection

CASES = [(masking, *size) for masking in MASKINGS for size in ((64, 20), (33, 3))]
OF = {masking: [case for case in CASES if case[0] == masking] for masking in MASKINGS}


@pytest.mark.parametrize("case", [*CASES[1::2], *map(nightly, CASES[::2])])
def test_positions_are_distinct_ascending_and_never_special(case):
    _, batch, tokens, present, _ = corrupted_rows(*case)
    for row, picked in enumerate(chosen(batch["positions"], batch["target_weights"])):
        assert list(picked) == sorted(set(picked))
        assert present[row, list(picked)].all()
        assert not np.isin(tokens[row, list(picked)], SPECIAL).any()
    used = batch["target_weights"] > 0
    assert (np.diff(used.astype(int), axis=1) <= 0).all(), "unused slots come last"
    assert (batch["positions"][~used] == 0).all()


@pytest.mark.parametrize("case", OF["token"] + OF["frequency"])
def test_exactly_the_count_is_chosen(case):
    _, batch, tokens, present, _ = corrupted_rows(*case)
    picked = chosen(batch["positions"], batch["target_weights"])
    assert batch["positions"].shape[1] == case[2]
    for row, n in enumerate(present.sum(1).tolist()):
        candidates = sum(t not in SPECIAL for t in tokens[row, :n])
        count = min(case[2], max(1, int(round(n * 0.15))))  # noqa: RUF046
        assert len(picked[row]) == min(count, candidates)


def test_every_subset_of_tokens_is_equally_likely():
    """All 20 sets of three out of six scattered candidates, over 20,000 keys."""
    candidates = np.zeros(9, bool)
    candidates[[1, 2, 4, 5, 6, 8]] = True
    n = 20_000
    rows = np.tile(candidates, (n, 1))
    select = jit(functools.partial(mask.select_tokens, slots=5))
    found = collections.Counter(chosen(*select(keys(n), rows, np.full(n, 3))))
    assert set(found) == set(itertools.combinations([1, 2, 4, 5, 6, 8], 3))
    assert chisquare(list(found.values())).pvalue > UNLIKELY


def test_specials_are_chosen_on_request_but_never_padding():
    """As in fairseq, where <s> and </s> are as likely as any other token."""
    tokens = np.full((4000, 14), 9, np.int32)
    tokens[:, 0], tokens[:, 9] = CLS, SEP
    tokens[:, 10:] = PAD
    objective = MaskedLM(MASK, 60, SPECIAL, rate=0.3, mask_specials=True)
    batch = corrupt(objective)(make_batch(tokens, tokens != PAD), jax.random.key(0))
    assert batch["target_weights"].sum() == 4000 * 3
    counts = np.bincount(np.concatenate(chosen(batch["positions"], batch["target_weights"])))
    assert len(counts) == 10 and chisquare(counts).pvalue > UNLIKELY
    # Drawn three at a time the counts vary less than the test expects, so a bias is seen as well.
    assert abs(counts[[0, 9]] - 1200).max() < 4 * np.sqrt(4000 * 0.3 * 0.7)


# ------------------------------------------------------------------------------ other selections


def test_weights_of_tokens_are_smoothed_counts():
    """numpy's `maximum(counts, 1) ** -0.7` with zeros for specials, as DistilBERT's code has it."""
    weights = mask.smoothed_weights([0, 1, 10, 10_000, 5, 2**40], 0.7, {0, 4})
    assert weights.dtype == np.float32
    expected = [0, 1, 10**-0.7, 10_000**-0.7, 0, 2**-28]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    np.testing.assert_array_equal(mask.smoothed_weights([0, 3, 9], 0, [2]), [1, 1, 0])


def test_rare_tokens_are_chosen_as_their_weights_say():
    """One draw: chances in proportion to count ** -0.7, a hundredfold count 25 times less."""
    weights = mask.smoothed_weights([7, 10, 1000, 100, 40], 0.7, [0])
    rows = np.tile(weights, (20_000, 1))
    candidates = np.array([1, 1, 1, 1, 0], bool)[None].repeat(len(rows), 0)
    select = jit(functools.partial(mask.select_weighted, slots=3))
    picked = chosen(*select(keys(len(rows)), candidates, rows, np.full(len(rows), 1)))
    found = collections.Counter(picked)
    assert set(found) == {(1,), (2,), (3,)}
    likely = np.array([10, 1000, 100]) ** -0.7
    expected = likely / likely.sum() * len(rows)
    assert chisquare([found[1,], found[2,], found[3,]], expected).pvalue > UNLIKELY


def test_several_are_drawn_one_after_another_from_what_is_left():
    """Chance of a pair: w_i * w_j / (1 - w_i) + w_j * w_i / (1 - w_j); never a weight of zero."""
    weights, n = np.array([0.1, 0.2, 0.0, 0.3, 0.4]), 20_000
    select = jit(functools.partial(mask.select_weighted, slots=5))
    rows, every = np.tile(weights, (n, 1)).astype(np.float32), np.ones((n, 5), bool)
    found = collections.Counter(chosen(*select(keys(n), every, rows, np.full(n, 2))))
    chance = {
        (i, j): weights[i] * weights[j] * (1 / (1 - weights[i]) + 1 / (1 - weights[j]))
        for i, j in itertools.combinations([0, 1, 3, 4], 2)
    }
    assert set(found) == set(chance)
    observed = [found[pair] for pair in chance]
    assert chisquare(observed, np.array(list(chance.values())) * n).pvalue > UNLIKELY
    assert set(chosen(*select(keys(9), every[:9], rows[:9], np.full(9, 5)))) == {(0, 1, 3, 4)}


def test_the_objective_chooses_by_the_weights_of_its_tokens():
    """One prediction a row: a token of weight 0 never, one of weight 1 ten times one of 0.1."""
    tokens = np.tile(np.array([CLS, 7, 8, 9, SEP], np.int32), (2000, 1))
    weights = np.zeros(60, np.float32)
    weights[[8, 9]] = 0.1, 1.0
    objective = MaskedLM(MASK, 60, SPECIAL, None, "frequency", token_weights=weights.view(Hashable))
    batch = corrupt(objective)(make_batch(tokens, tokens > 0), jax.random.key(0))
    found = collections.Counter(chosen(batch["positions"], batch["target_weights"]))
    assert set(found) == {(2,), (3,)}
    assert abs(found[2,] / 2000 - 1 / 11) < 4 * np.sqrt(1 / 11 * 10 / 11 / 2000)


def test_draws_with_replacement_are_independent_and_uniform():
    """Every ordered outcome of three draws from three candidates; the slots come sorted."""
    candidates, n = np.array([0, 1, 0, 1, 1, 0], bool), 20_000
    select = jit(functools.partial(mask.select_with_replacement, slots=4))
    positions, weights = select(keys(n), np.tile(candidates, (n, 1)), np.full(n, 3))
    assert positions.shape == weights.shape == (n, 4)
    assert (np.asarray(positions)[:, 3] == 0).all() and (np.asarray(weights)[:, 3] == 0).all()
    found = collections.Counter(chosen(positions, weights))
    likely = collections.Counter(
        tuple(sorted(draws)) for draws in itertools.product([1, 3, 4], repeat=3)
    )
    assert set(found) == set(likely)
    expected = [likely[draws] * n / 27 for draws in found]
    assert chisquare(list(found.values()), expected).pvalue > UNLIKELY


def test_draws_with_replacement_need_a_candidate_and_may_outnumber_them():
    candidates = np.array([[0, 0, 0], [0, 0, 1]], bool)
    select = jit(functools.partial(mask.select_with_replacement, slots=5))
    positions, weights = select(keys(2), candidates, np.array([4, 4]))
    assert chosen(positions, weights) == [(), (2, 2, 2, 2)]


# ---------------------------------------------------------------------------------- whole words


def take_in_order(words, count):
    """The loop of create_masked_lm_predictions over shuffled words, in plain Python."""
    masked = []
    for word in words:
        if len(masked) >= count:
            break
        if len(masked) + len(word) > count:
            continue
        masked.extend(word)
    return tuple(sorted(masked))


@pytest.mark.parametrize("case", OF["word"])
def test_whole_words_within_the_count_and_none_left_that_would_fit(case):
    """Exactly the sets that the BERT code can reach: those that are maximal."""
    _, batch, tokens, present, starts = corrupted_rows(*case)
    several = 0
    for row, picked in enumerate(chosen(batch["positions"], batch["target_weights"])):
        candidates = present[row] & ~np.isin(tokens[row], SPECIAL)
        words = words_of(candidates, starts[tokens[row]])
        n = int(present[row].sum())
        count = min(case[2], max(1, int(round(n * 0.15))))  # noqa: RUF046
        taken = [w for w in words if set(w) <= set(picked)]
        assert sorted(itertools.chain(*taken)) == list(picked), "part of a word"
        assert len(picked) <= count
        left = [w for w in words if w not in taken]
        assert all(len(picked) + len(w) > count for w in left), "a word that fits was left"
        several += any(len(w) > 1 for w in taken)
    assert several > 20


@pytest.mark.parametrize("first", ["special", "start", "continuation"])
def test_sets_of_words_are_as_likely_as_over_every_order_of_the_reference(first):
    """The reference runs over all orders of five words; 20,000 keys must fit its frequencies."""
    starts = np.array([1, 1, 0, 1, 1, 0, 0, 1, 1, 0], bool)
    candidates = np.ones(10, bool)
    candidates[0] = first != "special"
    starts[0] = first != "continuation"
    words, count, n = words_of(candidates, starts), 4, 20_000
    orders = list(itertools.permutations(words))
    expected = collections.Counter(take_in_order(order, count) for order in orders)
    tile = functools.partial(np.tile, reps=(n, 1))
    select = jit(functools.partial(mask.select_words, slots=6))
    found = collections.Counter(
        chosen(*select(keys(n), tile(candidates), tile(starts), np.full(n, count)))
    )
    assert set(found) == set(expected)
    likely = [expected[s] * n / len(orders) for s in found]
    assert chisquare(list(found.values()), likely).pvalue > UNLIKELY


def test_a_word_longer_than_the_count_is_never_cut():
    candidates, starts = np.ones((50, 6), bool), np.zeros((50, 6), bool)
    candidates[:, 0] = False
    starts[:, :2] = True
    select = jit(functools.partial(mask.select_words, slots=6))
    assert set(chosen(*select(keys(50), candidates, starts, np.full(50, 4)))) == {()}
    assert set(chosen(*select(keys(50), candidates, starts, np.full(50, 5)))) == {(1, 2, 3, 4, 5)}


def test_what_may_not_be_masked_ends_a_word():
    candidates, starts = np.ones((50, 5), bool), np.zeros((50, 5), bool)
    candidates[:, [0, 3]] = False
    starts[:, 1] = True  # of the words 1 2 and 4, between which stands a token that is no start
    select = jit(functools.partial(mask.select_words, slots=5))
    assert set(chosen(*select(keys(50), candidates, starts, np.full(50, 2)))) == {(1, 2), (4,)}


# --------------------------------------------------------------------------------------- keying


@pytest.mark.parametrize("case", CASES[1::2])
def test_a_row_does_not_depend_on_the_batch_around_it(case):
    objective, batch, tokens, present, _ = corrupted_rows(*case)
    order = np.random.default_rng(0).permutation(300)[:40]
    whole = make_batch(tokens, present)
    some = jax.device_get(
        corrupt(objective)({k: v[order] for k, v in whole.items()}, jax.random.key(1))
    )
    for name in ("tokens", "positions", "targets", "target_weights"):
        np.testing.assert_array_equal(some[name], batch[name][order])


def test_a_row_is_keyed_by_its_example_its_copy_and_the_key():
    objective, _, tokens, present, _ = corrupted_rows(*CASES[0])
    same = make_batch(np.tile(tokens[:1], (40, 1)), np.tile(present[:1], (40, 1)))
    same["example"] = jnp.asarray(np.arange(40) // 10, jnp.uint32)
    same["copy"] = jnp.asarray(np.arange(40) % 10 // 2, jnp.uint32)  # each pair comes twice
    run = corrupt(objective)
    first, again, other = (
        jax.device_get(run(same, jax.random.key(seed)))["tokens"] for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first[::2], first[1::2])
    assert len({row.tobytes() for row in first}) == 20
    assert not {row.tobytes() for row in first} & {row.tobytes() for row in other}
