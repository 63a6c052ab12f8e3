"""What stands in the place of chosen tokens: proportions and vocabulary, by chi-square."""

import functools

import jax
import numpy as np
import pytest
from helpers.quick import jit
from helpers.rows import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL,
    UNLIKELY,
    WEIGHTS,
    chosen,
    corrupt,
    keys,
    make_batch,
)
from scipy.stats import chisquare

from firth.objectives import mask
from firth.objectives.mlm import MASKINGS, MaskedLM

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
    hit = [found["mask"][(batch["positions"] == slot).any(1), slot] for slot in range(1, 20)]
    hit = np.concatenate(hit)  # draw n where place n is chosen, which the choice's noise decides
    assert abs(hit.mean() - 0.8) < 4 * np.sqrt(0.16 / len(hit))
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


@pytest.mark.parametrize("avoid", [(), (0,), (0, 3, 2), (49, 4, 48, 4), tuple(range(40))])
def test_random_tokens_are_uniform_over_what_is_not_avoided(avoid):
    tokens = np.full((2000, 20), 7, np.int32)
    positions = np.tile(np.arange(20, dtype=np.int32), (2000, 1))
    rest = sorted(set(range(50)) - set(avoid))
    replace = functools.partial(mask.replace, mask_id=MASK, vocab_size=50, rates=(0.0, 1.0))
    run = jit(functools.partial(replace, avoid=avoid))
    new = run(keys(2000), tokens, positions, np.ones((2000, 20), np.float32))
    counts = np.bincount(np.ravel(new), minlength=50)
    assert len(counts) == 50 and counts[rest].sum() == new.size, "an avoided token"
    assert chisquare(counts[rest]).pvalue > UNLIKELY


@pytest.mark.parametrize("random_specials", [True, False])
def test_random_tokens_of_the_objective_are_special_only_on_request(random_specials):
    tokens = np.full((800, 20), 7, np.int32)
    objective = MaskedLM(
        MASK,
        12,
        SPECIAL,
        rate=0.9,
        rates=(0.0, 1.0),
        random_specials=random_specials,
        reserved_ids=(1, 11),
    )
    batch = corrupt(objective)(make_batch(tokens, tokens > 0), jax.random.key(0))
    used = np.asarray(batch["target_weights"]) > 0
    new = np.take_along_axis(np.asarray(batch["tokens"]), np.asarray(batch["positions"]), 1)[used]
    expected = set(range(12)) - (set() if random_specials else {*SPECIAL, 1, 11, MASK})
    assert used.sum() == 800 * 18 and set(new.tolist()) == expected


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


@pytest.mark.parametrize("masking", MASKINGS)
def test_rows_without_candidates_are_left_alone(masking):
    tokens = np.full((3, 12), PAD, np.int32)
    tokens[1, :2] = CLS, SEP
    tokens[2, :3] = CLS, 9, SEP
    starts = np.ones(60, bool)
    objective = MaskedLM(
        MASK, 60, SPECIAL, starts, masking, rates=(1.0, 0.0), token_weights=WEIGHTS
    )
    batch = jit(objective.corrupt)(make_batch(tokens, tokens != PAD), jax.random.key(0))
    assert chosen(batch["positions"], batch["target_weights"]) == [(), (), (1,)]
    np.testing.assert_array_equal(batch["tokens"][:2], tokens[:2])
    np.testing.assert_array_equal(batch["tokens"][2, :3], [CLS, MASK, SEP])
