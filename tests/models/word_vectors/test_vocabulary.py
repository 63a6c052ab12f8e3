"""The words of word vectors: which, how often they are kept, their noise and Huffman codes."""

import heapq
import itertools

import numpy as np
import pytest

from firth.errors import FirthError
from firth.models.word_vectors.vocabulary import choose, huffman, kept_share, noise_steps


def test_words_come_by_frequency_and_rare_and_special_ones_not_at_all():
    words = choose([99, 4, 7, 5, 7, 50], [0, 5], 5)
    assert words.ids.tolist() == [2, 4, 3] and words.counts.tolist() == [7, 7, 5]
    assert words.rows(6).tolist() == [-1, -1, 0, 2, 1, -1]
    assert choose([99, 4, 7, 5, 7, 50], [0, 5], 1, max_words=2).ids.tolist() == [2, 4]
    with pytest.raises(FirthError, match="too small: 1 of its words occur at least 7 times"):
        choose([9, 3, 3], [], 7)


def test_frequent_words_are_thinned_out():
    counts = np.array([900, 90, 9, 1])
    shares = kept_share(counts, 1e-2)
    for count, share in zip(counts, shares, strict=True):
        ratio = 1e-2 / (count / 1000)  # the C tool: (sqrt(f/s) + 1) s/f
        assert share == pytest.approx(min((np.sqrt(1 / ratio) + 1) * ratio, 1))
    assert kept_share(counts, 0.0).tolist() == [1, 1, 1, 1]


def test_noise_is_the_counts_to_three_quarters():
    steps = noise_steps(np.array([16, 1, 1]))
    assert np.diff(steps, prepend=0) == pytest.approx(np.array([8, 1, 1]) / 10)


def heap_lengths(counts):
    """The length of each word's Huffman code, by a heap."""
    heap = [(count, number, [number]) for number, count in enumerate(counts)]
    heapq.heapify(heap)
    lengths, fresh = [0] * len(counts), itertools.count(len(counts))
    while len(heap) > 1:
        (a, _, left), (b, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        for number in left + right:
            lengths[number] += 1
        heapq.heappush(heap, (a + b, next(fresh), left + right))
    return np.array(lengths)


@pytest.mark.parametrize("words", [2, 3, 40, 400])
def test_codes_are_huffmans(words):
    counts = np.sort(np.random.default_rng(words).zipf(1.3, words).clip(max=10**6))[::-1]
    nodes, bits = huffman(counts)
    lengths = (nodes >= 0).sum(1)
    assert (counts * lengths).sum() == (counts * heap_lengths(counts)).sum()
    assert np.sum(0.5**lengths) == 1
    codes = {tuple(row[:n]) for row, n in zip(bits.tolist(), lengths, strict=True)}
    assert len(codes) == words
    assert not any(code[:n] in codes for code in codes for n in range(len(code)))
    assert (nodes[:, 0] == words - 2).all() and nodes.max() == words - 2


def test_each_node_of_a_path_is_the_prefix_of_its_code():
    nodes, bits = huffman(np.array([30, 20, 10, 9, 8, 7, 2, 2, 1]))
    prefixes = {}
    for path, code in zip(nodes.tolist(), bits.tolist(), strict=True):
        for place, node in enumerate(path):
            if node >= 0:
                prefixes.setdefault(node, set()).add(tuple(code[:place]))
    assert len(prefixes) == 8 and all(len(found) == 1 for found in prefixes.values())
    assert len(set(map(tuple, itertools.chain(*prefixes.values())))) == 8
