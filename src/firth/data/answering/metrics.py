"""Exact match and F1 of answers, by the rules of SQuAD's official scripts (1.1 and 2.0).

Rajpurkar et al. 2016, section 6.1, and 2018. All values are shares, from 0 to 1, where the scripts
print percent.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from firth.data.answering.files import Questions
from firth.data.tasks.overview import Baseline
from firth.errors import FirthError

KINDS = ("answerable", "unanswerable")
ALWAYS = ("f1", "exact")
BEST = ("best_f1", "best_f1_threshold", "best_exact", "best_exact_threshold")
WITH_NONE = (*ALWAYS, *(f"{kind}_{name}" for kind in KINDS for name in ALWAYS), *BEST)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def metrics_of(unanswerable: bool) -> tuple[str, ...]:
    """The metrics of a task; the first chooses the best checkpoint."""
    return WITH_NONE if unanswerable else ALWAYS


def normalised(text: str) -> str:
    """Small letters, without ASCII punctuation and articles, white space as single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, gold: str) -> float:
    """1 where both are the same once normalised, else 0."""
    return float(normalised(predicted) == normalised(gold))


def f1_of_words(predicted: str, gold: str) -> float:
    """The harmonic mean of precision and recall of the normalised words, 0 where none is shared."""
    found, wanted = normalised(predicted).split(), normalised(gold).split()
    shared = (Counter(found) & Counter(wanted)).total()
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def f1_or_none(predicted: str, gold: str) -> float:
    """The same, but 1 where both have no words: no answer is right where there is none."""
    if not normalised(predicted) and not normalised(gold):
        return 1.0
    return f1_of_words(predicted, gold)


def accepted(answers: Sequence[str]) -> tuple[str, ...]:
    """The answers that version 2.0 compares with: those with words, else no answer, ""."""
    return tuple(filter(normalised, answers)) or ("",)


def score_answers(
    questions: Questions,
    predicted: Mapping[str, str],
    odds: Mapping[str, float] | None = None,
    *,
    threshold: float = 0.0,
) -> dict[str, float]:
    """{metric: value} of predictions against all accepted answers of each question.

    Args:
      questions: with answers.
      predicted: the answer to each question by its id, "" for none.
      odds: how much likelier no answer is than the predicted one, by id. With them the rules are
        those of version 2.0, and the metrics those of WITH_NONE that there are questions for: an
        answer whose odds are above `threshold` counts as none, and best_f1 and best_exact are those
        of the best threshold. Without them the rules are those of version 1.1.

    Raises FirthError for a file without answers and for a question without a prediction.
    """
    if questions.answers is None:
        raise FirthError(f"{questions.source} has no answers to compare with")
    for name, said in (("answer", predicted), ("odds", predicted if odds is None else odds)):
        if lacking := [number for number in questions.ids if number not in said]:
            raise FirthError(
                f"{len(lacking):,} of {len(questions):,} questions have no {name}, the first "
                f"{lacking[0]!r}"
            )
    if odds is None:
        measures = {"f1": f1_of_words, "exact": exact_match}
        return {name: _mean(_raw(questions, predicted, m)) for name, m in measures.items()}
    found: dict[str, float] = {}
    measures = {"f1": f1_or_none, "exact": exact_match}
    has_answer = [bool(answers) for answers in questions.answers]
    asked = [odds[number] for number in questions.ids]
    blank = [not predicted[number] for number in questions.ids]
    for name, measure in measures.items():
        raw = _raw(questions, predicted, measure, accepted)
        final = [
            float(not has) if odd > threshold else one
            for one, odd, has in zip(raw, asked, has_answer, strict=True)
        ]
        found[name] = _mean(final)
        for kind, wanted in zip(KINDS, (True, False), strict=True):
            if own := [one for one, has in zip(final, has_answer, strict=True) if has is wanted]:
                found[f"{kind}_{name}"] = _mean(own)
        best = best_threshold(raw, asked, has_answer, blank)
        found[f"best_{name}"], found[f"best_{name}_threshold"] = best
    return {name: found[name] for name in WITH_NONE if name in found}


def best_threshold(
    scores: Sequence[float],
    odds: Sequence[float],
    has_answer: Sequence[bool],
    blank: Sequence[bool],
) -> tuple[float, float]:
    """(the best mean score, the threshold of the odds up to which an answer is given for it).

    `scores` are those of the answers where they are given, `blank` says which of them are empty.
    Begins with no answer to any question, at a threshold of 0, as the official script does.
    """
    current = best = float(len(has_answer) - sum(has_answer))
    threshold = 0.0
    for i in sorted(range(len(odds)), key=odds.__getitem__):
        current += scores[i] if has_answer[i] else 0.0 if blank[i] else -1.0
        if current > best:
            best, threshold = current, odds[i]
    return best / len(scores), threshold


def _raw(
    questions: Questions, predicted: Mapping[str, str], measure: Callable, golds: Callable = tuple
) -> list[float]:
    """The best score of each answer against those that are accepted."""
    return [
        max(measure(predicted[number], gold) for gold in golds(answers))
        for number, answers in zip(questions.ids, questions.answers, strict=True)
    ]


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores)


def baseline(questions: Questions, unanswerable: bool) -> Baseline:
    """What no model gets: never an answer where that may be right, else the whole context."""
    texts = questions.contexts
    if unanswerable:
        predicted, odds = dict.fromkeys(questions.ids, ""), dict.fromkeys(questions.ids, 0.0)
        found = score_answers(questions, predicted, odds)
        return Baseline("baseline (never an answer)", {name: found[name] for name in ALWAYS})
    predicted = {
        number: texts[n] for number, n in zip(questions.ids, questions.context, strict=True)
    }
    return Baseline("baseline (always the whole context)", score_answers(questions, predicted))
