"""Masking against the BERT code's rules in plain Python, and against chance by chi-square."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import jit
from scipy.stats import chisquare

from firth.objectives import mask
from firth.objectives.mlm import MaskedLM

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = (PAD, CLS, SEP)
UNLIKELY = 1e-4  # a test fails by chance once in ten thousand keys; the keys are fixed


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


def chosen(positions, weights):
    """The selected positions of each row, as tuples."""
    positions, weights = np.asarray(positions), np.asarray(weights)
    assert set(np.unique(weights)) <= {0.0, 1.0}
    return [tuple(row[w > 0].tolist()) for row, w in zip(positions, weights, strict=True)]


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


# ----------------------------------------------------------------------------------- selection


def random_rows(rows, length, seed=0, vocabulary=60):
    """Rows as the views make them: [CLS] text [SEP] text [SEP] padding; also word starts [V]."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(3, vocabulary, (rows, length)).astype(np.int32)
    size = rng.integers(4, length + 1, (rows, 1))
    tokens[:, 0] = CLS
    at = np.arange(length)
    tokens = np.where((at == size - 1) | (at == size // 2), SEP, tokens)
    starts = rng.random(vocabulary) < 0.6
    starts[:5] = True
    return np.where(at < size, tokens, PAD), at < size, starts


def make_batch(tokens, present):
    return {
        "tokens": jnp.asarray(tokens),
        "mask": jnp.asarray(present),
        "example": jnp.arange(len(tokens), dtype=jnp.uint32),
        "copy": jnp.zeros(len(tokens), jnp.uint32),
    }


@functools.cache
def corrupt(objective):
    return jit(objective.corrupt)


class Hashable(np.ndarray):
    """Word starts that a frozen objective can be cached with."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


@functools.cache
def made(masking, length, most):
    """(objective, corrupted batch, original tokens, mask, word starts) of 300 random rows."""
    tokens, present, starts = random_rows(300, length)
    objective = MaskedLM(MASK, 60, SPECIAL, starts.view(Hashable), masking, max_predictions=most)
    batch = corrupt(objective)(make_batch(tokens, present), jax.random.key(1))
    return objective, jax.device_get(batch), tokens, present, starts


CASES = [("token", 64, 20), ("token", 33, 3), ("word", 64, 20), ("word", 33, 3)]


@pytest.mark.parametrize("case", CASES)
def test_positions_are_distinct_ascending_and_never_special(case):
    _, batch, tokens, present, _ = made(*case)
    for row, picked in enumerate(chosen(batch["positions"], batch["target_weights"])):
        assert list(picked) == sorted(set(picked))
        assert present[row, list(picked)].all()
        assert not np.isin(tokens[row, list(picked)], SPECIAL).any()
    used = batch["target_weights"] > 0
    assert (np.diff(used.astype(int), axis=1) <= 0).all(), "unused slots come last"
    assert (batch["positions"][~used] == 0).all()


@pytest.mark.parametrize("case", CASES[:2])
def test_exactly_the_count_is_chosen(case):
    _, batch, tokens, present, _ = made(*case)
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


# ---------------------------------------------------------------------------------- whole words


def words_of(candidates, starts):
    """Groups of positions, as the BERT code builds `cand_indexes`; specials end a word."""
    words, opened = [], False
    for i, (candidate, start) in enumerate(zip(candidates, starts, strict=True)):
        if candidate and opened and not start:
            words[-1].append(i)
        elif candidate:
            words.append([i])
        opened = bool(candidate)
    return words


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


@pytest.mark.parametrize("case", CASES[2:])
def test_whole_words_within_the_count_and_none_left_that_would_fit(case):
    """Exactly the sets that the BERT code can reach: those that are maximal."""
    _, batch, tokens, present, starts = made(*case)
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


# ---------------------------------------------------------------------------------- replacement

ROWS, LENGTH, V = 5000, 140, 30522


@pytest.fixture(scope="module")
def replaced():
    """100,000 predictions over the real vocabulary's size; no original token is [MASK]."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, V, (ROWS, LENGTH)).astype(np.int32)
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    objective = MaskedLM(MASK, V, SPECIAL, max_predictions=20)
    batch = corrupt(objective)(make_batch(tokens, np.ones(tokens.shape, bool)), jax.random.key(3))
    return tokens, jax.device_get(batch)


def test_eighty_ten_ten(replaced):
    tokens, batch = replaced
    assert batch["target_weights"].sum() == ROWS * 20 >= 1e5
    new = np.take_along_axis(batch["tokens"], batch["positions"], 1)
    old = np.take_along_axis(tokens, batch["positions"], 1)
    np.testing.assert_array_equal(batch["targets"], old)
    n = new.size
    expected = {"mask": 0.8 + 0.1 / V, "kept": 0.1 + 0.1 / V}
    found = {"mask": (new == MASK), "kept": (new == old)}
    for name, p in expected.items():
        assert abs(found[name].mean() - p) < 4 * np.sqrt(p * (1 - p) / n), name
    # The draw is independent of where the token stands, of its slot and of its neighbour's draw.
    for slot in range(20):
        assert abs(found["mask"][:, slot].mean() - 0.8) < 4.5 * np.sqrt(0.16 / ROWS)
    late = batch["positions"] > LENGTH // 2
    assert abs(found["mask"][late].mean() - 0.8) < 4 * np.sqrt(0.16 / late.sum())
    both = (found["mask"][:, 1:] & found["mask"][:, :-1]).mean()
    assert abs(both - 0.64) < 5 * np.sqrt(0.64 * 0.36 / n)


def test_nothing_else_changes(replaced):
    tokens, batch = replaced
    untouched = np.ones(tokens.shape, bool)
    np.put_along_axis(untouched, batch["positions"], False, axis=1)
    np.testing.assert_array_equal(batch["tokens"][untouched], tokens[untouched])
    assert batch["tokens"].dtype == tokens.dtype


def test_positions_are_uniform_over_the_row(replaced):
    _, batch = replaced
    counts = np.bincount(batch["positions"].ravel(), minlength=LENGTH)
    assert counts[0] == counts[-1] == 0
    # Drawn without replacement: the variance of a count is smaller by (n - k) / (n - 1).
    n, k = LENGTH - 2, 20
    statistic = ((counts[1:-1] - ROWS * k / n) ** 2).sum() / (ROWS * k / n)
    scaled = statistic * (n - 1) / (n - k)
    assert abs(scaled - (n - 1)) < 4.5 * np.sqrt(2 * (n - 1))


def test_random_tokens_are_uniform_over_the_whole_vocabulary():
    """Specials and the original token included, as in the BERT code."""
    tokens = np.full((5000, 20), 7, np.int32)
    positions = np.tile(np.arange(20, dtype=np.int32), (5000, 1))
    replace = jit(
        functools.partial(mask.replace, mask_id=MASK, vocab_size=50, rates=(0.0, 1.0)),
    )
    new = replace(keys(5000), tokens, positions, np.ones((5000, 20), np.float32))
    counts = np.bincount(np.ravel(new), minlength=50)
    assert len(counts) == 50 and chisquare(counts).pvalue > UNLIKELY


def test_unused_slots_change_nothing_even_where_position_zero_is_chosen():
    tokens = np.arange(5, 13, dtype=np.int32)[None].repeat(200, 0)
    positions = np.zeros((200, 6), np.int32)
    weights = np.zeros((200, 6), np.float32)
    weights[:100, 0] = 1  # position 0 is chosen; five unused slots point at it too
    replace = jit(
        functools.partial(mask.replace, mask_id=MASK, vocab_size=50, rates=(1.0, 0.0)),
    )
    new = np.asarray(replace(keys(200), tokens, positions, weights))
    assert (new[:100, 0] == MASK).all()
    np.testing.assert_array_equal(new[:100, 1:], tokens[:100, 1:])
    np.testing.assert_array_equal(new[100:], tokens[100:])


@pytest.mark.parametrize("masking", ["token", "word"])
def test_rows_without_candidates_are_left_alone(masking):
    tokens = np.full((3, 12), PAD, np.int32)
    tokens[1, :2] = CLS, SEP
    tokens[2, :3] = CLS, 9, SEP
    objective = MaskedLM(MASK, 60, SPECIAL, np.ones(60, bool), masking, rates=(1.0, 0.0))
    batch = jit(objective.corrupt)(make_batch(tokens, tokens != PAD), jax.random.key(0))
    assert chosen(batch["positions"], batch["target_weights"]) == [(), (), (1,)]
    np.testing.assert_array_equal(batch["tokens"][:2], tokens[:2])
    np.testing.assert_array_equal(batch["tokens"][2, :3], [CLS, MASK, SEP])


# --------------------------------------------------------------------------------------- keying


@pytest.mark.parametrize("case", CASES[::2])
def test_a_row_does_not_depend_on_the_batch_around_it(case):
    objective, batch, tokens, present, _ = made(*case)
    order = np.random.default_rng(0).permutation(300)[:40]
    whole = make_batch(tokens, present)
    some = jax.device_get(
        corrupt(objective)({k: v[order] for k, v in whole.items()}, jax.random.key(1))
    )
    for name in ("tokens", "positions", "targets", "target_weights"):
        np.testing.assert_array_equal(some[name], batch[name][order])


def test_a_row_is_keyed_by_its_example_its_copy_and_the_key():
    objective, _, tokens, present, _ = made(*CASES[0])
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
