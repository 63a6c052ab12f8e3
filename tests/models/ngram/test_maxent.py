"""Maximum-entropy models against sums over the whole vocabulary, written from the definition."""

import dataclasses
import logging
from collections import Counter

import numpy as np
import pytest

from firth.errors import FirthError
from firth.models.ngram.counts import count
from firth.models.ngram.maxent import Likelihood, MaximumEntropy, as_ngram, fit, hash_ngrams

SIZE, START, END = 12, 12, 1
L2 = (0.3, 0.5, 0.7)


def text(seed=0, sentences=30):
    """(tokens, starts, lines) of sentences over a few words; words 9 to 11 never occur."""
    rng = np.random.default_rng(seed)
    lines = [[*map(int, rng.integers(2, 9, rng.integers(1, 7))), END] for _ in range(sentences)]
    starts = np.zeros(sum(map(len, lines)), bool)
    starts[np.cumsum([0, *map(len, lines[:-1])])] = True
    return np.concatenate(lines), starts, lines


TOKENS, STARTS, LINES = text()


def grams(order, minimum=(1, 1, 1)):
    """The n-grams with a weight, in the order of Firth's tables: by their prefixes, then words."""
    raw = Counter()
    for line in LINES:
        words = [START, *line]
        for n in range(2, order + 1):
            raw.update(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    found = [(word,) for word in range(SIZE)]
    return found + [
        gram
        for n in range(2, order + 1)
        for gram in sorted(gram for gram in raw if len(gram) == n and raw[gram] >= minimum[n - 1])
    ]


def log_softmax(weights, context, order):
    """float64 [V]: by the sum over all words; `weights` is {n-gram: weight}."""
    scores = np.array(
        [
            sum(
                weights.get((*context[len(context) - n :], word), 0.0)
                for n in range(min(order, len(context) + 1))
            )
            for word in range(SIZE)
        ]
    )
    return scores - np.log(np.exp(scores).sum())


def by_hand(weights, order):
    """The penalised loss in nats a token, from the definition."""
    total = 0.0
    for line in LINES:
        words = [START, *line]
        for i in range(1, len(words)):
            context = tuple(words[max(i - order + 1, 0) : i])
            total -= log_softmax(weights, context, order)[words[i]]
    total += sum(0.5 * L2[len(gram) - 1] * weight**2 for gram, weight in weights.items())
    return total / len(TOKENS)


def likelihood(order=3, **options):
    settings = MaximumEntropy(l2=L2, **options)
    return Likelihood(count(TOKENS, STARTS, SIZE, order), settings)


@pytest.mark.parametrize("minimum", [(1, 1, 1), (1, 1, 2)])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_loss_and_its_gradient_are_those_of_the_definition(order, minimum):
    rng = np.random.default_rng(order)
    function, names = likelihood(order, minimum=minimum), grams(order, minimum)
    assert function.weights == len(names)
    weights = rng.normal(0, 1, len(names))
    loss, gradient = function(weights)
    assert loss == pytest.approx(by_hand(dict(zip(names, weights, strict=True)), order), rel=1e-12)
    for place in rng.choice(len(names), min(len(names), 12), replace=False):
        step = np.eye(1, len(names), place)[0] * 1e-5
        pair = (
            by_hand(dict(zip(names, weights + sign * step, strict=True)), order) for sign in (1, -1)
        )
        assert gradient[place] == pytest.approx(np.subtract(*pair) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("minimum", [(1, 1, 1), (1, 2, 2)])
def test_the_back_off_model_has_the_probabilities_of_the_definition(minimum):
    function, names = likelihood(minimum=minimum), grams(3, minimum)
    weights = np.random.default_rng(0).normal(0, 1, len(names))
    model, table = as_ngram(function, weights), dict(zip(names, weights, strict=True))
    assert sum(map(len, model.keys)) == len(names) + 1  # and <s>
    seen = {gram[:2] for gram in grams(3)}
    contexts = [(), (START,), (END,), (10,), (10, 11), (3, 10), (10, 3), (START, 4)]
    contexts += [(a, b) for a in (START, *range(2, 9)) for b in range(2, 9)]
    assert any(context not in seen for context in contexts[-56:])
    for context in contexts:
        found = model.distribution(context)
        assert np.exp(found).sum() == pytest.approx(1, abs=1e-5)
        np.testing.assert_allclose(found, log_softmax(table, context, 3), atol=2e-6)
    expected = [
        log_softmax(table, tuple([START, *line][max(i - 2, 0) : i]), 3)[word]
        for line in LINES
        for i, word in enumerate(line, 1)
    ]
    np.testing.assert_allclose(model.score(TOKENS, STARTS), expected, atol=2e-6)


def test_training_ends_at_the_minimum(caplog):
    settings = MaximumEntropy(l2=L2, tolerance=1e-12)
    with caplog.at_level(logging.INFO, logger="firth"):
        model, weights = fit(count(TOKENS, STARTS, SIZE, 3), settings)
    assert "iteration 10: " in caplog.text and "not settled" not in caplog.text
    names = grams(3)
    table = dict(zip(names, weights, strict=True))
    least = by_hand(table, 3)
    assert np.abs(likelihood()(weights)[1]).max() < 1e-5
    rng = np.random.default_rng(1)
    for _ in range(5):
        moved = weights + rng.normal(0, 0.02, len(weights))
        assert by_hand(dict(zip(names, moved, strict=True)), 3) > least
    np.testing.assert_allclose(model.distribution((2, 3)), log_softmax(table, (2, 3), 3), atol=2e-6)
    _, same = fit(count(TOKENS, STARTS, SIZE, 3), settings, rng.normal(0, 0.3, len(weights)))
    np.testing.assert_allclose(same, weights, atol=1e-3)  # convex: from wherever it begins


def test_it_says_when_it_has_not_settled(caplog):
    settings = MaximumEntropy(l2=L2, iterations=2, tolerance=0)
    fit(count(TOKENS, STARTS, SIZE, 3), settings)
    assert "not settled after 2 iterations" in caplog.text and "iterations=4" in caplog.text


def test_hashed_ngrams_share_weights():
    """With 3 bits the longer n-grams have 8 weights: the definition with weights repeated."""
    function = likelihood(hash_bits=3)
    assert function.weights == SIZE + 8
    counts, rng = function.counts, np.random.default_rng(0)
    cells = [hashes >> np.uint64(61) for hashes in hash_ngrams(counts)]
    weights = rng.normal(0, 1, function.weights)
    flat = np.concatenate(
        [weights[:SIZE], *(weights[SIZE + cell.astype(int)] for cell in cells[1:])]
    )
    table = dict(zip(grams(3), flat, strict=True))
    assert len(set(np.concatenate(cells[1:]).tolist())) == 8
    np.testing.assert_allclose(
        as_ngram(function, weights).distribution((START, 4)),
        log_softmax(table, (START, 4), 3),
        atol=2e-6,
    )
    _, gradient = function(weights)
    for place in (0, 3, SIZE, SIZE + 7):
        step = np.eye(1, function.weights, place)[0] * 1e-5
        slope = (function(weights + step)[0] - function(weights - step)[0]) / 2e-5
        assert gradient[place] == pytest.approx(slope, abs=1e-8)
    wide = np.concatenate(hash_ngrams(count(*text(1, 200)[:2], SIZE, 3)))
    assert len(np.unique(wide)) == len(wide)  # words, their order and their number all matter


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(l2=()), "l2=.*expected numbers above 0"),
        (dict(l2=(1.0, 0.0)), "weights grow without end"),
        (dict(minimum=(2,)), "words stay"),
        (dict(minimum=(1, 3, 2)), "none of them below"),
        (dict(hash_bits=31), "hash_bits=31: expected 0"),
        (dict(iterations=0), "at least one iteration"),
        (dict(tolerance=1.0), "a tolerance in"),
    ],
)
def test_settings_out_of_range(fields, said):
    with pytest.raises(FirthError, match=said):
        dataclasses.replace(MaximumEntropy(), **fields)
