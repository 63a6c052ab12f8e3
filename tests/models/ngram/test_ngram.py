"""N-gram models against a second implementation with dictionaries, and against KenLM's figures."""

import gzip
import math
from collections import Counter

import numpy as np
import pytest

from firth.errors import FirthError
from firth.models.ngram.counts import count
from firth.models.ngram.smoothing import NAMES, Smoothing, estimate

SIZE = 300
END = 1


def text(seed=0, sentences=400):
    """(tokens, starts) of sentences in which a word depends on the one before it."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(sentences):
        line = [int(rng.integers(2, 60))]
        while rng.random() < 0.85:
            step = int(rng.zipf(1.5))
            line.append(2 + (line[-1] * 3 + step) % 5 if step < 4 else min(step, SIZE - 5))
        lines.append([*line, END])
    tokens = np.array([word for line in lines for word in line])
    starts = np.zeros(len(tokens), bool)
    starts[np.cumsum([0, *map(len, lines[:-1])])] = True
    return tokens, starts, lines


TOKENS, STARTS, LINES = text()


def model(order=3, **options):
    smoothing = Smoothing(**options)
    return estimate(count(TOKENS, STARTS, SIZE, order), smoothing)


def by_hand(order, thresholds=(0,)):
    """Modified Kneser-Ney as a function (context, word), written from its definition."""
    raw = Counter()
    for line in LINES:
        words = ["<s>", *line]
        for n in range(1, order + 1):
            raw.update(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    del raw["<s>",]
    adjusted = {}
    for gram, times in raw.items():
        if len(gram) == order or gram[0] == "<s>":
            adjusted[gram] = times
    for n in range(1, order):
        before = Counter(gram[1:] for gram in raw if len(gram) == n + 1)
        adjusted |= {gram: times for gram, times in before.items() if gram[0] != "<s>"}
    discounts = {}
    for n in range(1, order + 1):
        times = Counter(value for gram, value in adjusted.items() if len(gram) == n)
        y = times[1] / (times[1] + 2 * times[2])
        discounts[n] = [0] + [i - (i + 1) * y * times[i + 1] / times[i] for i in (1, 2, 3)]
    follows = {}
    for gram, value in adjusted.items():
        follows.setdefault(gram[:-1], {})[gram[-1]] = value

    def keeps(gram):
        return len(gram) == 1 or raw[gram] > thresholds[min(len(gram), len(thresholds)) - 1]

    def p(context, word):
        if context not in follows:
            return p(context[1:], word)
        own, n = follows[context], len(context) + 1
        total = sum(own.values())
        kept = {w: v for w, v in own.items() if keeps((*context, w))}
        mass = sum(v - discounts[n][min(v, 3)] for v in kept.values()) / total
        value = kept.get(word, 0)
        lower = p(context[1:], word) if context else 1 / SIZE
        return (value - discounts[n][min(value, 3)]) / total + (1 - mass) * lower

    return p


@pytest.mark.parametrize("thresholds", [(0,), (0, 0, 1), (0, 1, 2)])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_modified_kneser_ney_is_its_definition(order, thresholds):
    p = by_hand(order, thresholds)
    tokens, starts, lines = text(seed=1, sentences=40)
    expected = []
    for line in lines:
        words = ["<s>", *line]
        for i in range(1, len(words)):
            expected.append(math.log(p(tuple(words[max(i - order + 1, 0) : i]), words[i])))
    measured = model(order, prune=thresholds).score(tokens, starts)
    np.testing.assert_allclose(measured, expected, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prune", [(), (0, 1)])
@pytest.mark.parametrize("interpolate", [True, False])
def test_probabilities_sum_to_one(name, prune, interpolate):
    if name == "katz" and prune:
        prune = ()
    some = model(4, name=name, prune=prune, interpolate_unigrams=interpolate, add=0.3)
    rng = np.random.default_rng(2)
    contexts = [[], [SIZE], [SIZE, 5], [SIZE - 1] * 3, *LINES[:5], *rng.integers(0, SIZE, (20, 3))]
    for context in contexts:
        assert np.exp(some.distribution(context)).sum() == pytest.approx(1, abs=2e-6), context


@pytest.mark.parametrize("name", NAMES)
def test_the_distribution_is_what_is_scored(name):
    some = model(3, name=name)
    tokens, starts, lines = text(seed=3, sentences=10)
    with np.errstate(divide="ignore"):
        measured = some.score(tokens, starts)
    place = 0
    for line in lines:
        for i, word in enumerate(line):
            expected = some.distribution([SIZE, *line[:i]])[word]
            np.testing.assert_allclose(measured[place], expected, rtol=1e-6)
            place += 1


def test_frequencies_and_added_counts_are_their_formulas():
    pairs = Counter(pair for line in LINES for pair in zip(["<s>", *line], line, strict=False))
    before = Counter(word for line in LINES for word in ["<s>", *line[:-1]])
    for context, word in [*list(pairs)[:50], (3, 298), ("<s>", 298)]:
        ids = [SIZE if context == "<s>" else context]
        frequency = pairs[context, word] / before[context]
        measured = np.exp(model(2, name="mle").distribution(ids)[word])
        assert measured == pytest.approx(frequency, rel=1e-6)
        added = (pairs[context, word] + 0.5) / (before[context] + 0.5 * SIZE)
        measured = np.exp(model(2, name="add_k", add=0.5).distribution(ids)[word])
        assert measured == pytest.approx(added, rel=1e-6)


def test_katz_keeps_the_good_turing_estimate_of_a_seen_pair():
    pairs = Counter(pair for line in LINES for pair in zip(["<s>", *line], line, strict=False))
    before = Counter(word for line in LINES for word in ["<s>", *line[:-1]])
    times = Counter(pairs.values())
    common = 8 * times[8] / times[1]

    def ratio(r):
        turing = (r + 1) * times[r + 1] / (r * times[r])
        scaled = (turing - common) / (1 - common)
        return 1 if r > 7 or turing > 1 or scaled <= 0 else scaled

    mass = Counter()
    for (context, _), r in pairs.items():
        mass[context] += ratio(r) * r
    assert {ratio(r) for r in pairs.values()} != {1}
    for (context, word), r in list(pairs.items())[:80]:
        # As in SRILM: where nothing was discounted, the unseen words get the mass of one count.
        total = before[context] + (mass[context] == before[context])
        expected = ratio(r) * r / total
        ids = [SIZE if context == "<s>" else context]
        measured = np.exp(model(2, name="katz").distribution(ids)[word])
        assert measured == pytest.approx(expected, rel=1e-5)


def test_a_text_too_small_for_discounts():
    tokens, starts = np.array([2, 3, END, 2, 4, END]), np.array([1, 0, 0, 1, 0, 0], bool)
    counts = count(tokens, starts, 5, 2)
    with pytest.raises(FirthError, match=r"order 1: .*no n-gram of that order has the count 3"):
        estimate(counts, Smoothing())
    some = estimate(counts, Smoothing(discount_fallback=(0.5, 1.0, 1.5)))
    assert np.exp(some.distribution([2])).sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(name="kneser"), "smoothing='kneser' is unknown; did you mean 'kneser_ney'"),
        (dict(name="add_k", add=0.0), "add=0.0: expected a number above 0"),
        (dict(discount_fallback=(0.5, 1.0)), "expected three discounts"),
        (dict(discount_fallback=(1.5, 1.0, 1.0)), "none of them above its count"),
        (dict(prune=(0, 2, 1)), "none of them below that of the order before"),
        (dict(prune=(1,)), "words stay, so the first value must be 0"),
        (dict(name="katz", prune=(0, 1)), "set good_turing_min instead"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(FirthError, match=message):
        Smoothing(**options)


def test_bad_orders_and_texts():
    for order in (0, 13):
        with pytest.raises(FirthError, match="expected 1 to 12"):
            count(TOKENS, STARTS, SIZE, order)
    with pytest.raises(FirthError, match="no sentence has 5 words"):
        count(np.array([2, 3, END]), np.array([True, False, False]), SIZE, 6)
    with pytest.raises(FirthError, match="no words"):
        count(np.array([], int), np.array([], bool), SIZE, 2)


def read_ptb(folder):
    """{split: (tokens, starts)} of the Penn Treebank, `<unk>` an ordinary word."""
    vocab, found = {"</s>": 0}, {}
    for split in ("train", "test"):
        with gzip.open(folder / f"ptb.{split}.txt.gz", "rt") as file:
            lines = [[*line.split(), "</s>"] for line in file]
        ids = [vocab.setdefault(word, len(vocab)) for line in lines for word in line]
        starts = np.zeros(len(ids), bool)
        starts[np.cumsum([0, *map(len, lines[:-1])])] = True
        found[split] = np.array(ids), starts
    return found, len(vocab)


def test_the_penn_treebank(shared_data):
    found, size = read_ptb(shared_data("ptb"))
    counts = {order: count(*found["train"], size, order) for order in (3, 5)}
    expected = {  # KenLM's lmplz; Good-Turing by SRILM in Mikolov et al. 2011, table 1
        (3, "modified_kneser_ney"): (148.2815, 0.005),
        (5, "modified_kneser_ney"): (141.1862, 0.005),
        (3, "katz"): (165.2, 0.1),
        (5, "katz"): (162.3, 0.1),
    }
    for (order, name), (perplexity, within) in expected.items():
        log_probs = estimate(counts[order], Smoothing(name=name)).score(*found["test"])
        assert math.exp(-log_probs.mean()) == pytest.approx(perplexity, abs=within)
