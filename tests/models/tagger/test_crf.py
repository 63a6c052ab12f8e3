"""The conditional random field against all sequences of tags, in double precision."""

import itertools

import jax
import numpy as np
import pytest

from firth.data.tagging.schemes import allowed
from firth.models.tagger.crf import Steps, log_partition, path_score, viterbi

B, W, C = 5, 4, 3
LABELS = ("O", "B-A", "I-A")
MASK = np.arange(W) < np.array([4, 3, 1, 2, 0])[:, None]


@pytest.fixture(scope="module")
def made():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(B, W, C)).astype(np.float32)
    steps = Steps(*(rng.normal(size=s).astype(np.float32) for s in ((C, C), (C,), (C,))))
    return scores, steps


def score(scores_WC, tags, steps):
    """The score of one sequence, float64."""
    transitions, first, last = (np.asarray(x, np.float64) for x in steps)
    found = first[tags[0]] + last[tags[-1]]
    found += sum(float(row[tag]) for row, tag in zip(scores_WC, tags, strict=False))
    return found + sum(transitions[pair] for pair in itertools.pairwise(tags))


def sequences(row):
    return list(itertools.product(range(C), repeat=int(MASK[row].sum())))


def test_the_forward_algorithm_sums_over_all_sequences(made):
    scores, steps = made
    found = jax.jit(log_partition)(scores, MASK, steps)
    for row in range(B - 1):
        every = [score(scores[row], tags, steps) for tags in sequences(row)]
        assert found[row] == pytest.approx(np.logaddexp.reduce(every), rel=1e-5)
    assert np.isfinite(found).all()  # the row without words, too


def test_the_score_of_a_sequence(made):
    scores, steps = made
    rng = np.random.default_rng(1)
    tags = rng.integers(0, C, (B, W))
    found = path_score(scores, tags, MASK, steps)
    for row in range(B - 1):
        expected = score(scores[row], tuple(tags[row, : MASK[row].sum()]), steps)
        assert found[row] == pytest.approx(expected, rel=1e-5)
    assert found[-1] == 0


@pytest.mark.parametrize("constrained", [False, True])
def test_viterbi_finds_the_best_of_all_sequences(made, constrained):
    scores, steps = made
    table = allowed(LABELS)
    used = steps.only(table) if constrained else steps
    found = np.asarray(jax.jit(viterbi)(scores, MASK, used))
    assert not found[~MASK].any() and found.dtype == np.int32
    differ = 0
    for row in range(B - 1):
        every = sequences(row)
        best = max(every, key=lambda tags: score(scores[row], tags, steps))
        if constrained:
            differ += not legal(best, table)
            every = [tags for tags in every if legal(tags, table)]
            best = max(every, key=lambda tags: score(scores[row], tags, steps))
        assert tuple(found[row, : MASK[row].sum()]) == best
    assert differ or not constrained  # else the constraints would have done nothing


def legal(tags, table):
    return table[-1, tags[0]] and all(table[pair] for pair in itertools.pairwise(tags))


def test_the_gradient_is_that_of_expected_counts(made):
    """The loss falls by what the model expects beyond what stands there."""
    scores, steps = made

    def loss(scores):
        return log_partition(scores, MASK, steps)[:1].sum()

    found = np.asarray(jax.grad(loss)(scores))[0]
    every = sequences(0)
    weights = np.array([score(scores[0], tags, steps) for tags in every])
    weights = np.exp(weights - np.logaddexp.reduce(weights))
    for word, tag in itertools.product(range(W), range(C)):
        share = sum(w for w, tags in zip(weights, every, strict=True) if tags[word] == tag)
        assert found[word, tag] == pytest.approx(share, abs=1e-5)


def test_a_row_of_several_sentences_is_as_each_by_itself(made):
    """Their scores, their sums over sequences and their best tags."""
    scores, steps = made
    used = steps.only(allowed(LABELS))
    flat, sizes = scores[:3].reshape(1, 12, C), (4, 3, 5)
    mask, begins = np.ones((1, 12), bool), np.zeros((1, 12), bool)
    starts = np.cumsum((0, *sizes[:2]))
    begins[0, starts] = True
    tags = np.random.default_rng(2).integers(0, C, (1, 12))
    parts = [slice(a, a + n) for a, n in zip(starts, sizes, strict=True)]
    for function, given in ((log_partition, ()), (path_score, (tags,))):
        whole = function(flat, *given, mask, steps, begins)
        each = [function(flat[:, p], *(x[:, p] for x in given), mask[:, p], steps) for p in parts]
        np.testing.assert_allclose(whole, sum(each), rtol=1e-5)
        assert abs(float(whole[0] - function(flat, *given, mask, steps)[0])) > 1e-3
    found = viterbi(flat, mask, used, begins)
    alone = [viterbi(flat[:, p], mask[:, p], used) for p in parts]
    np.testing.assert_array_equal(found, np.concatenate(alone, axis=1))
    assert all(LABELS[tag] != "I-A" for tag in np.asarray(found)[begins])
