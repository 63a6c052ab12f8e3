"""Sizes in rows: each once, without overlap, in few rows."""

import itertools

import numpy as np
import pytest

from firth.data.packing.plan import pack

RANDOM = np.random.default_rng(0)
CASES = {
    "short": (RANDOM.integers(3, 20, 500), 64),
    "all": (RANDOM.integers(1, 33, 300), 32),
    "long": (RANDOM.integers(40, 65, 80), 64),
    "alike": (np.full(100, 7), 64),
    "one": (np.array([5]), 5),
}


@pytest.mark.parametrize("name", CASES)
def test_every_size_has_a_place_of_its_own(name):
    sizes, length = CASES[name]
    plan = pack(sizes, length)
    np.testing.assert_array_equal(np.sort(plan.sizes), np.sort(sizes))
    assert plan.begins[0] == 0 and plan.begins[-1] == len(sizes)
    assert plan.counts.min() > 0 and plan.counts.sum() == len(sizes)
    for begin, end in itertools.pairwise(plan.begins):
        ends = plan.starts[begin:end] + plan.sizes[begin:end]
        assert ends[-1] <= length
        np.testing.assert_array_equal(plan.starts[begin:end], [0, *ends[:-1]])


def best_fit(sizes, length):
    """The number of rows if the texts come one by one, the longest first."""
    rooms = []
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in rooms if room >= size]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else length) - size)
    return len(rooms)


@pytest.mark.parametrize("name", CASES)
def test_rows_are_as_few_as_texts_one_by_one_would_take(name):
    sizes, length = CASES[name]
    assert len(pack(sizes, length)) == best_fit(sizes, length)


def test_a_text_goes_where_the_least_room_holds_it():
    plan = pack(np.array([3, 6, 9, 1, 7]), 10)
    rows = {tuple(plan.sizes[a:b].tolist()) for a, b in itertools.pairwise(plan.begins)}
    assert rows == {(9, 1), (7, 3), (6,)}


def test_the_order_of_sizes_changes_nothing():
    sizes, length = CASES["short"]
    first, other = pack(sizes, length), pack(RANDOM.permutation(sizes), length)
    np.testing.assert_array_equal(first.sizes, other.sizes)
    np.testing.assert_array_equal(first.begins, other.begins)
