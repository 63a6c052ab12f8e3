"""The words that get a vector: chosen from the counts of a corpus, the most frequent first.

V words.
"""

from typing import NamedTuple

import numpy as np

from firth.errors import FirthError


class Vocabulary(NamedTuple):
    """ids: int32 [V], the token of each word. counts: int64 [V], never rising."""

    ids: np.ndarray
    counts: np.ndarray

    def __len__(self):
        return len(self.ids)

    def rows(self, size: int) -> np.ndarray:
        """int32 [size]: the number of each token's word, -1 for a token that is none."""
        rows = np.full(size, -1, np.int32)
        rows[self.ids] = np.arange(len(self.ids))
        return rows


def choose(counts, left_out, min_count: int, max_words: int = 0) -> Vocabulary:
    """The tokens that occur at least `min_count` times, by falling frequency and then by id.

    Args:
      counts: int64, how often each token of the tokenizer occurs.
      left_out: ids that get no vector: special tokens, the unknown word.
      min_count: at least 1.
      max_words: how many of the most frequent to keep; 0 is all.

    Raises FirthError for fewer than two words.
    """
    counts = np.array(counts)
    counts[list(left_out)] = 0
    order = np.argsort(-counts, kind="stable").astype(np.int32)
    order = order[: np.count_nonzero(counts >= max(min_count, 1))][: max_words or None]
    if len(order) < 2:
        raise FirthError(
            f"the corpus is too small: {len(order)} of its words occur at least {min_count} times "
            "(model.min_count); give more text, or a smaller min_count"
        )
    return Vocabulary(order, counts[order])


def kept_share(counts_V: np.ndarray, sample: float) -> np.ndarray:
    """float64 [V]: the share of each word's occurrences that subsampling keeps; 0 keeps all.

    sqrt(s/f) + s/f of a word's frequency f, at most 1: the C tool's rule, which keeps more than
    the paper's sqrt(s/f).
    """
    if not sample:
        return np.ones(len(counts_V))
    ratio = sample * counts_V.sum() / counts_V
    return np.minimum(np.sqrt(ratio) + ratio, 1.0)


def noise_steps(counts_V: np.ndarray, power: float = 0.75) -> np.ndarray:
    """float64 [V]: the cumulative noise distribution, counts to a power, to draw negatives from."""
    steps = np.cumsum(counts_V.astype(float) ** power)
    return steps / steps[-1]


def huffman(counts_V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Huffman code of each word: (nodes int32 [V, L], bits int8 [V, L]) from the root down.

    `counts_V` never rises. The inner nodes have the numbers 0 .. V-2, the root is V-2. Where a code
    is shorter than L, the longest, `nodes` is -1. The bit says to which child of a node the path
    goes on; of two equal counts the later word is joined first, as in the C tool.
    """
    words = len(counts_V)
    weight = np.concatenate([counts_V, np.full(words, np.iinfo(np.int64).max)]).tolist()
    parent, bit = np.zeros(2 * words - 1, np.int64), np.zeros(2 * words - 1, np.int8)
    leaf, inner = words - 1, words  # the lightest of each kind that has no parent yet
    for node in range(words, 2 * words - 1):
        total = 0
        for side in (0, 1):
            if leaf >= 0 and weight[leaf] < weight[inner]:
                child, leaf = leaf, leaf - 1
            else:
                child, inner = inner, inner + 1
            parent[child], bit[child] = node, side
            total += weight[child]
        weight[node] = total  # not before: until both are chosen, no inner node may be itself
    return _paths(parent, bit, words)


def _paths(parent, bit, words: int):
    """The nodes and bits from the root to each leaf, of trees given by their parents."""
    root, at = 2 * words - 2, np.arange(words)
    nodes, bits = [], []
    while (at != root).any():
        inside = at != root
        bits.append(np.where(inside, bit[at], 0))
        at = np.where(inside, parent[at], root)
        nodes.append(np.where(inside, at - words, -1))
    nodes, bits = np.stack(nodes, 1), np.stack(bits, 1)
    depth = (nodes >= 0).sum(1)
    place = depth[:, None] - 1 - np.arange(nodes.shape[1])  # from leaf to root is the wrong order
    turned = np.where(place >= 0, place, 0)
    nodes = np.where(place >= 0, np.take_along_axis(nodes, turned, 1), -1)
    bits = np.where(place >= 0, np.take_along_axis(bits, turned, 1), 0)
    return nodes.astype(np.int32), bits.astype(np.int8)
