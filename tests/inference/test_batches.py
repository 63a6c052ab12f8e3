"""Batches of about as many tokens each: every text once, in few shapes, with little padding."""

import numpy as np
import pytest

from firth.inference.batching import padded_length, repeat_first, token_batches

LONGEST, TOKENS = 512, 1024


def draw(count: int, seed: int = 0) -> list[int]:
    """Sizes of sentences: about 27 tokens, at most LONGEST."""
    sizes = np.random.default_rng(seed).gamma(4, 7, count).astype(int) + 2
    return np.minimum(sizes, LONGEST).tolist()


@pytest.mark.parametrize("sizes", [draw(1500), [5], [512] * 5, [0, 3, 500], list(range(1, 513))])
def test_every_text_is_in_one_batch_that_holds_it(sizes):
    batches = token_batches(sizes, TOKENS, LONGEST)
    assert sorted(i for batch in batches for i in batch.members) == list(range(len(sizes)))
    for batch in batches:
        assert max(sizes[i] for i in batch.members) <= batch.length <= LONGEST
        assert len(batch.members) <= batch.rows
        assert batch.rows * batch.length <= TOKENS or batch.rows == 1


def test_padding_is_little():
    sizes = draw(3000)
    padded = sum(batch.rows * batch.length for batch in token_batches(sizes, TOKENS, LONGEST))
    assert padded < 1.12 * sum(sizes)
    for size in range(64, LONGEST):
        assert size <= padded_length(size, LONGEST) <= 1.125 * size
    assert [padded_length(n, LONGEST) for n in (1, 4, 5, 63, 65)] == [4, 4, 8, 64, 72]
    assert padded_length(39, 40) == 40 and padded_length(36, 37) == 36


def test_a_shorter_step_pads_less():
    assert [padded_length(n, LONGEST, 2) for n in (1, 5, 6, 31, 33, 65)] == [2, 6, 6, 32, 36, 72]
    sizes = draw(3000)
    by_4, by_2 = (token_batches(sizes, TOKENS, LONGEST, step) for step in (4, 2))
    padded = [sum(batch.rows * batch.length for batch in batches) for batches in (by_4, by_2)]
    assert sum(sizes) <= padded[1] < padded[0]
    assert all(batch.length % 2 == 0 for batch in by_2)


def test_shapes_are_few():
    """A length has one number of rows, but for the last batch of each call."""
    full, last = set(), set()
    for seed in range(40):
        *most, end = token_batches(draw(50 + 40 * seed, seed), TOKENS, LONGEST)
        full |= {(batch.rows, batch.length) for batch in most}
        last |= {(end.rows, end.length)}
    assert len({length for _, length in full}) == len(full) <= 40
    for rows, length in last:
        ladder = [most := TOKENS // length]
        while most > 1:
            ladder.append(most := max(most // 4, 1))
        assert rows in ladder


def test_a_batch_is_filled_with_its_first_row():
    filled = repeat_first([np.array([[1, 2], [3, 4]]), np.array([True, False])], 4)
    assert filled[0].tolist() == [[1, 2], [3, 4], [1, 2], [1, 2]]
    assert filled[1].tolist() == [True, False, True, True]
