"""Exact match and F1 against the published rules, written here a second time, word by word."""

import collections
import random
import re
import string

import numpy as np
import pytest

from firth.data.answering.files import Questions, read_squad
from firth.data.answering.metrics import (
    best_threshold,
    metrics_of,
    normalised,
    score_answers,
)
from firth.errors import FirthError

PIECES = [
    "the",
    "The",
    "a",
    "An",
    "an.",
    "A-a",
    "theatre",
    "vase",
    "Vase,",
    "Straße",
    "é",
    "e\u0301",
]
PIECES += [
    "“quoted”",
    "'",
    "$3.50",
    "3",
    "...",
    "\u00a0",
    "\t",
    "  ",
    "\u2009",
    "the_a",
    "東京",
    "İ",
]
PIECES += ["", "!", "a's", "\u3000", "\u017f", "ß", "THE", "_", "\u00ad"]


def plain(text):
    """The text that is compared: lower case, no punctuation, no articles, single spaces."""
    text = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
    text = re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text)
    return " ".join(text.split())


def exact(found, gold):
    return int(plain(found) == plain(gold))


def f1(found, gold, second):
    mine, theirs = plain(found).split(), plain(gold).split()
    same = sum((collections.Counter(mine) & collections.Counter(theirs)).values())
    if second and (not mine or not theirs):
        return int(mine == theirs)
    if same == 0:
        return 0
    precision, recall = same / len(mine), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def first_version(golds, found):
    """{metric: value} of version 1.1, in percent."""
    total = len(golds)
    return {
        "exact": 100.0
        * sum(max(exact(found[n], g) for g in gs) for n, gs in golds.items())
        / total,
        "f1": 100.0
        * sum(max(f1(found[n], g, False) for g in gs) for n, gs in golds.items())
        / total,
    }


def second_version(golds, found, odds, threshold):
    """{metric: value} of version 2.0, in percent."""
    has = {n: bool(gs) for n, gs in golds.items()}
    raw = {"exact": {}, "f1": {}}
    for n, gs in golds.items():
        gs = [g for g in gs if plain(g)] or [""]
        raw["exact"][n] = max(exact(found[n], g) for g in gs)
        raw["f1"][n] = max(f1(found[n], g, True) for g in gs)
    out = {}
    for name, scores in raw.items():
        final = {n: (float(not has[n]) if odds[n] > threshold else s) for n, s in scores.items()}
        out[name] = 100.0 * sum(final.values()) / len(final)
        for kind, want in (("answerable", True), ("unanswerable", False)):
            own = [s for n, s in final.items() if has[n] is want]
            if own:
                out[f"{kind}_{name}"] = 100.0 * sum(own) / len(own)
        current = best = sum(1 for n in has if not has[n])
        best_at = 0.0
        for n in sorted(odds, key=lambda n: odds[n]):
            if has[n]:
                change = scores[n]
            elif found[n]:
                change = -1
            else:
                change = 0
            current += change
            if current > best:
                best, best_at = current, odds[n]
        out[f"best_{name}"], out[f"best_{name}_threshold"] = 100.0 * best / len(scores), best_at
    return out


def questions_of(golds):
    ids = list(golds)
    answers = [tuple(golds[n]) for n in ids]
    return Questions("made", [""], [""] * len(ids), ids, np.zeros(len(ids), int), answers, None)


def random_text(rng):
    return rng.choice(["", " "]).join(rng.choice(PIECES) for _ in range(rng.randrange(5)))


def random_case(seed, unanswerable):
    rng = random.Random(seed)
    golds, found, odds = {}, {}, {}
    for n in map(str, range(rng.randrange(1, 60))):
        golds[n] = [random_text(rng) for _ in range(rng.randrange(0 if unanswerable else 1, 4))]
        found[n] = rng.choice([random_text(rng), "", *golds[n]])
        odds[n] = rng.choice([rng.gauss(0, 5), 0.0, 1.0])
    return golds, found, odds


def agree(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        scale = 1 if name.endswith("threshold") else 100
        assert found[name] * scale == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("seed", range(40))
def test_random_answers_of_both_versions(seed):
    golds, found, odds = random_case(seed, unanswerable=False)
    agree(score_answers(questions_of(golds), found), first_version(golds, found))
    golds, found, odds = random_case(seed, unanswerable=True)
    for threshold in (0.0, 1.0, -3.0):
        scores = score_answers(questions_of(golds), found, odds, threshold=threshold)
        agree(scores, second_version(golds, found, odds, threshold))
        assert [name for name in metrics_of(True) if name in scores] == list(scores)


@pytest.mark.parametrize(
    "file", ["xquad.en.json.gz", "qed-dev.squad.json.gz", "subjqa-test.squad2.json.gz"]
)
def test_real_questions(shared_data, file):
    """Answers that are right, near, empty or those of another question."""
    questions, rng = read_squad(shared_data(f"qa/{file}")), random.Random(0)
    golds = dict(zip(questions.ids, questions.answers, strict=True))
    pool = [text for answers in questions.answers for text in answers]
    found, odds = {}, {}
    for n, answers in golds.items():
        own = [f"The {text}!" for text in answers] + [text[1:-1] for text in answers]
        found[n] = rng.choice([*answers, *own, rng.choice(pool), ""])
        odds[n] = rng.gauss(-1.0 if answers else 1.0, 2.0)
    if "squad2" in file:
        scores = score_answers(questions, found, odds)
        agree(scores, second_version(golds, found, odds, 0.0))
        assert scores["best_f1"] > scores["f1"] > 0.3
    else:
        scores = score_answers(questions, found)
        agree(scores, first_version(golds, found))
        assert 1 > scores["f1"] > scores["exact"] > 0.2


def test_what_is_compared():
    assert normalised("  The\tVase, a 'broken' one!\u00a0") == "vase broken one"
    assert (
        normalised("A. An? theory… the…") == "theory… …"
    )  # an ellipsis of one character is no punctuation
    assert normalised("theatre a-an") == "theatre aan"


def test_answers_without_words():
    """Version 1.1 gives them no F1; version 2.0 leaves such an answer out."""
    questions = questions_of({"1": ["the", "a vase"], "2": ["the"]})
    assert score_answers(questions, {"1": "a", "2": "An"}) == {"f1": 0.0, "exact": 1.0}
    scores = score_answers(questions, {"1": "", "2": ""}, {"1": 0.0, "2": 0.0})
    assert (scores["f1"], scores["exact"]) == (0.5, 0.5)
    assert "unanswerable_f1" not in scores and scores["answerable_exact"] == 0.5


def test_the_best_threshold_is_the_best_of_all():
    """Against every threshold in turn: at it and below, an answer is given."""
    for seed in range(30):
        golds, found, odds = random_case(seed, unanswerable=True)
        n = list(golds)
        raw = [second_version({i: golds[i]}, found, {i: -9.0}, 0.0)["f1"] / 100 for i in n]
        has, blank = [bool(golds[i]) for i in n], [not found[i] for i in n]
        found_best, at = best_threshold(raw, [odds[i] for i in n], has, blank)

        def mean_at(threshold, n=n, raw=raw, has=has, odds=odds):
            final = [
                s if odds[i] <= threshold else float(not h)
                for i, s, h in zip(n, raw, has, strict=True)
            ]
            return sum(final) / len(final)

        levels = [mean_at(threshold) for threshold in {-1e9, *odds.values()}]
        assert found_best <= max(levels) + 1e-9 or any(blank)
        if len(set(odds.values())) == len(odds):
            none = sum(not h for h in has) / len(has)
            assert found_best == pytest.approx(max(none, *levels))
            assert mean_at(at) == pytest.approx(found_best) or found_best == pytest.approx(none)


def test_what_cannot_be_scored():
    questions = questions_of({"1": ["a"], "2": ["b"]})
    with pytest.raises(FirthError, match=r"1 of 2 questions have no answer, the first '2'"):
        score_answers(questions, {"1": "a"})
    with pytest.raises(FirthError, match=r"2 of 2 questions have no odds, the first '1'"):
        score_answers(questions, {"1": "a", "2": "b"}, {})
    bare = Questions("b.json", ["x"], ["?"], ["1"], np.zeros(1, int), None, None)
    with pytest.raises(FirthError, match=r"b\.json has no answers to compare with"):
        score_answers(bare, {"1": "x"})
