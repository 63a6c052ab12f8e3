"""The lengths of batches that are chosen from the examples."""

import functools
import itertools

import numpy as np
import pytest

from firth.data.tasks.buckets import Buckets, Tokenised, choose_lengths, of_splits, tokenise
from firth.data.tasks.load import load_split
from firth.data.tasks.task import GLUE
from firth.tokenizers.load import load_tokenizer


def padding_of(sizes, lengths):
    """The share of padding if every example is as long as the shortest bucket that holds it."""
    return 1 - sizes.sum() / lengths[np.searchsorted(lengths, sizes)].sum()


@pytest.mark.parametrize("seed", range(8))
def test_lengths_are_the_fewest_and_the_best_of_all_choices(seed):
    random = np.random.default_rng(seed)
    longest = int(random.integers(20, 31))
    sizes = np.minimum(1 + random.geometric(0.12, 700), longest)
    chosen = choose_lengths(sizes, longest)
    top = min(-(-sizes.max() // 4) * 4, longest)
    others = [*range(4, top, 4)]
    best = {
        buckets: min(
            padding_of(sizes, np.array([*shorter, top]))
            for shorter in itertools.combinations(others, buckets - 1)
        )
        for buckets in range(1, len(others) + 2)
    }
    assert padding_of(sizes, chosen) == pytest.approx(best[len(chosen)])
    assert best[len(chosen)] < 0.12 or len(chosen) == len(best)
    assert len(chosen) == 1 or best[len(chosen) - 1] >= 0.12


def test_lengths_of_texts_of_one_length_of_few_texts_and_of_many_lengths():
    assert choose_lengths(np.full(900, 30), 128).tolist() == [32]
    assert choose_lengths(np.full(900, 128), 128).tolist() == [128]
    assert choose_lengths(np.array([1, 9]), 10).tolist() == [10]
    assert choose_lengths(np.array([1, 9] * 64), 10).tolist() == [4, 10]
    many = choose_lengths(np.arange(6000) % 602 + 1, 602)
    assert len(many) < 12 and many[-1] == 602 and set(many[:-1] % 4) == {0}
    sizes = 2 ** np.arange(4, 20)
    many = choose_lengths(np.repeat(sizes, sizes[::-1] // 16), 1 << 20)
    assert len(many) == 12


@pytest.mark.parametrize(
    ("task", "length"),
    [("sst2", 128), ("cola", 128), ("mrpc", 128), ("stsb", 128), ("rte", 256), ("wnli", 128)],
)
def test_little_of_glue_is_padding(shared_data, task, length):
    tokenizer = load_tokenizer(shared_data("vocabs/bert-base-uncased-vocab.txt"))
    examples = load_split(GLUE[task], "train", shared_data("glue"))
    view = Buckets(tokenise(examples, tokenizer, length))
    assert view.pad_fraction(32) < 0.15
    assert len(view.shapes(32)) <= 12


def test_all_splits_have_the_lengths_of_train():
    """A dev set of other sizes brings no other shape."""
    rng = np.random.default_rng(0)

    def rows(count, longest):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(1, longest, count))])
        sizes = np.diff(offsets).astype(np.int32)
        return Tokenised(np.zeros(offsets[-1], np.int32), offsets, sizes, None, 64, 0, 0)

    splits = {"dev": rows(300, 21), "train": rows(700, 60), "test": rows(90, 33)}
    views = of_splits(functools.partial(Buckets, seed=3), splits)
    own = choose_lengths(np.diff(splits["dev"].offsets), 64)
    assert set(own) - set(views["train"].lengths)  # it would have chosen others
    for name, view in views.items():
        np.testing.assert_array_equal(view.lengths, views["train"].lengths)
        assert view.epoch_size() == len(splits[name])
