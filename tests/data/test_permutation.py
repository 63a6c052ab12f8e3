import json

import numpy as np
import pytest
from scipy import stats

from firth.data.permutation import (
    Epochs,
    derive_key,
    permute,
    random_below,
    random_bits,
    random_heads,
    random_unit,
)
from firth.errors import FirthError


def test_random_bits_are_splitmix64():
    # The generator of Steele, Lea and Flood in exact integers; its state before output n is
    # key + n * golden. The first output for seed 0 is the published 0xE220A8397B1DCDAF.
    def splitmix(state):
        z = state % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    counters = [0, 1, 2, 12345, 2**40]
    expected = [splitmix(99 + n * 0x9E3779B97F4A7C15) for n in counters]
    assert random_bits(99, np.array(counters)).tolist() == expected
    assert int(random_bits(0, np.array([1]))[0]) == 0xE220A8397B1DCDAF


def test_keys_differ_in_every_part():
    keys = {derive_key(*p) for p in [(0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "a")]}
    assert len(keys) == 5
    assert derive_key(0, "a", 1) == derive_key(0, "a", 1)


def test_draws_follow_their_distributions():
    counter = np.arange(40_000)
    assert stats.kstest(random_unit(1, counter), "uniform").pvalue > 1e-3
    drawn = random_below(2, counter, 7)
    assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > 1e-3
    bounds = 1 + counter % 5
    assert np.all((random_below(3, counter, bounds) < bounds) & (random_below(3, counter, 5) >= 0))
    assert random_below(4, counter, 2**31 - 1).max() < 2**31 - 1


@pytest.mark.parametrize("tosses", [1, 5, 63, 64, 65, 200])
def test_heads_are_binomial(tosses):
    heads = random_heads(5, np.arange(20_000), np.full(20_000, tosses))
    expected = stats.binom(tosses, 0.5).pmf(np.arange(tosses + 1)) * len(heads)
    common = expected > 5
    observed = np.bincount(heads, minlength=tosses + 1)
    rest = [observed[~common].sum()], [expected[~common].sum()]
    if rest[1][0] < 1:
        rest = [], []
    observed, expected = np.append(observed[common], rest[0]), np.append(expected[common], rest[1])
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_heads_of_mixed_tosses():
    tosses = np.array([0, 1, 64, 65, 1000, 0])
    heads = random_heads(6, np.arange(6), tosses)
    assert np.all((heads >= 0) & (heads <= tosses))
    alone = [random_heads(6, np.array([n]), tosses[n : n + 1])[0] for n in range(6)]
    assert heads.tolist() == alone


@pytest.mark.parametrize("size", [*range(1, 70), 100, 255, 256, 257, 1000, 4097, 65_536, 100_003])
def test_permute_is_a_bijection(size):
    for key in (0, 1, derive_key(3, "order", size)):
        assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


def test_permute_works_element_by_element_and_for_huge_sizes():
    size = 10**15 + 7
    ranks = np.array([0, 1, size // 2, size - 1])
    images = permute(ranks, size, 11)
    assert len(set(images.tolist())) == 4 and images.min() >= 0 and images.max() < size
    assert [permute(ranks[n : n + 1], size, 11)[0] for n in range(4)] == images.tolist()


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 9, 12, 17])
def test_permutations_are_uniform(size):
    """Where two neighbours go, over many keys: all pairs of places equally often."""
    keys = 300 * size
    images = np.array([permute(np.arange(size), size, derive_key("u", n)) for n in range(keys)])
    for pair in ((0, 1), (size - 2, size - 1)):
        joint = images[:, pair[0]] * size + images[:, pair[1]]
        places = np.flatnonzero(~np.eye(size, dtype=bool))
        counts = np.bincount(joint, minlength=size * size)
        assert stats.chisquare(counts[places]).pvalue > 1e-4


def test_permutation_breaks_up_neighbours():
    images = permute(np.arange(50_000), 50_000, 7)
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(np.arange(50_000), images)[0, 1]) < 0.02


@pytest.mark.parametrize("period", [0, 1, 3])
def test_epochs_locate_every_number(period):
    def count(plan):
        return [5, 3, 7, 2, 9, 4, 6, 8][plan]

    epochs = Epochs(count, period)
    located = [epochs.locate(number) for number in range(30)]
    expected, epoch = [], 0
    while len(expected) < 30:
        expected += [(epoch, r) for r in range(count(epoch % period if period else epoch))]
        epoch += 1
    assert located == expected[:30]
    assert Epochs(count, period).locate(29) == expected[29]


def test_epochs_count_lazily_and_once():
    counted = []
    epochs = Epochs(lambda plan: counted.append(plan) or 10, period=2)
    assert epochs.locate(7) == (0, 7) and counted == [0]
    assert epochs.locate(10**12 + 3) == (10**11, 3) and counted == [0, 1]


def test_epoch_sizes_are_cached(tmp_path):
    path, counted = tmp_path / "folder" / "sizes.json", []

    def count(plan):
        counted.append(plan)
        return plan + 5

    assert Epochs(count, 0, path, "this").locate(15) == (2, 4)
    assert counted == [0, 1, 2]
    assert Epochs(count, 0, path, "this").locate(15) == (2, 4)
    assert counted == [0, 1, 2]  # all from the file
    assert Epochs(count, 0, path, "other").locate(5) == (1, 0)
    assert counted == [0, 1, 2, 0, 1]  # another run's sizes are not believed
    assert [p.name for p in path.parent.iterdir()] == ["sizes.json"]
    assert json.loads(path.read_text())["identity"] == "other"


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"identity": "this", "sizes": [1]}', '{"identity": "this"}']
)
def test_damaged_cache_is_replaced(tmp_path, damage):
    path = tmp_path / "sizes.json"
    path.write_text(damage)
    assert Epochs(lambda plan: 4, 0, path, "this").locate(5) == (1, 1)
    assert json.loads(path.read_text()) == {"identity": "this", "sizes": {"0": 4, "1": 4}}


def test_cache_that_cannot_be_written_is_no_failure(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot write epoch sizes to .*sizes.json"):
        assert Epochs(lambda plan: 4, 0, tmp_path / "file" / "sizes.json", "x").size(0) == 4


def test_cache_that_lies_is_named(tmp_path):
    path = tmp_path / "sizes.json"
    path.write_text('{"identity": "this", "sizes": {"0": 4}}')
    epochs = Epochs(lambda plan: 9, 0, path, "this")
    with pytest.raises(FirthError, match=r"sizes.json: says that plan 0 has 4 examples.* 9"):
        epochs.record(0, 9)
