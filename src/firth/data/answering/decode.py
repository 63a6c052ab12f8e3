"""From the logits of windows to answers: the best spans of all windows of a question.

Devlin et al. 2019, section 4.2 and 4.3, and BERT's run_squad.py. S spans.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.special import softmax

from firth.data.answering.files import Questions
from firth.data.answering.windows import Windows, max_context
from firth.errors import FirthError
from firth.storage.local import write_text

BEST = 20  # answers that BERT's code keeps of a question
NEVER = 1e9  # the odds of no answer to a question whose context has no token


@dataclasses.dataclass(frozen=True)
class Span:
    """A candidate answer: its text, characters [begin, end) of the context, and its two logits.

    No answer is the text "" at (-1, -1).
    """

    text: str
    begin: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """The sum of the logits."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Answered:
    """What a model answers to a question.

    best: the candidates that are answers, the likeliest first, no text twice; at least one unless
      the context has no token. null: the candidate of no answer. null_odds: its score less that of
      the best answer.
    """

    best: tuple[Span, ...]
    null: Span

    @property
    def null_odds(self) -> float:
        """NEVER where there is no answer at all."""
        return self.null.score - self.best[0].score if self.best else NEVER

    def answer(self, threshold: float | None) -> Span:
        """The best answer; no answer where null_odds is above the threshold, unless that is None.

        Without any candidate it is no answer.
        """
        if not self.best or (threshold is not None and self.null_odds > threshold):
            return self.null
        return self.best[0]

    def ranked(self, threshold: float | None, most: int | None = None) -> list[tuple[Span, float]]:
        """(candidate, probability) of the best ones, at most so many, and of no answer as well,
        unless `threshold` is None; the probabilities are those of a softmax over the scores of what
        is listed.
        """
        listed = [*self.best] if threshold is None and self.best else [*self.best, self.null]
        listed = sorted(listed, key=lambda span: -span.score)[:most]
        if self.null not in listed and threshold is not None:
            listed.append(self.null)
        return list(zip(listed, softmax([s.score for s in listed]).tolist(), strict=True))


def to_line(one: Answered) -> str:
    """The candidates of a question as a line of JSON."""
    spans = [dataclasses.astuple(span) for span in (one.null, *one.best)]
    return json.dumps(spans) + "\n"


def from_line(line: str | bytes) -> Answered:
    """What `to_line` made a line of."""
    null, *best = (Span(*values) for values in json.loads(line))
    return Answered(tuple(best), null)


def decode(
    questions: Questions,
    windows: Windows,
    logits: Sequence[np.ndarray],
    *,
    longest: int = 30,
    best: int = BEST,
) -> list[Answered]:
    """The answers to questions.

    Every span of at most `longest` tokens of the context counts, not those of the 20 best begins
    and ends alone, as in BERT's code. A span begins where its window shows the most around the
    token, and it is a substring of the context.

    Args:
      questions, windows: of the same file.
      logits: float32 [L, 2] of each window, L being at least the tokens of its row.
      longest: tokens of an answer. best: how many answers to keep.

    Raises FirthError, naming the question, for logits that are not finite.
    """
    first_W = np.searchsorted(windows.question, np.arange(len(questions) + 1)).tolist()
    return [
        _decode(questions, windows, logits, n, range(begin, end), longest, best)
        for n, (begin, end) in enumerate(itertools.pairwise(first_W))
    ]


def _decode(questions, windows, logits, number: int, own: range, longest, best) -> Answered:
    context = questions.contexts[questions.context[number]]
    part, found, nulls = slice(own.start, own.stop), [], []
    shown = max_context(windows.begin[part], windows.size[part]) if len(own) > 1 else [None]
    for w, most_around in zip(own, shown, strict=True):
        first, size = int(windows.first[w]), int(windows.size[w])
        row_L2, null = logits[w], int(windows.null[w])
        inner_T2 = row_L2[first : first + size]
        if not (np.isfinite(inner_T2).all() and np.isfinite(row_L2[null]).all()):
            raise FirthError(
                f"{questions.source}: question {questions.ids[number]!r}: what the model gives is "
                "not finite; it has diverged"
            )
        nulls.append(Span("", -1, -1, float(row_L2[null, 0]), float(row_L2[null, 1])))
        at = int(windows.contexts[number] + windows.begin[w])
        spans_T2 = windows.spans[at : at + size]
        for begin, end in best_spans(inner_T2, spans_T2, most_around, longest, best):
            text = context[spans_T2[begin, 0] : spans_T2[end, 1]]
            bare = text.strip()
            if bare:
                start = int(spans_T2[begin, 0]) + len(text) - len(text.lstrip())
                logit = float(inner_T2[begin, 0]), float(inner_T2[end, 1])
                found.append(Span(bare, start, start + len(bare), *logit))
    found.sort(key=lambda span: -span.score)
    unique = {}
    for span in found:
        unique.setdefault(span.text, span)
    return Answered(tuple(unique.values())[:best], min(nulls, key=lambda span: span.score))


def best_spans(logits_T2, spans_T2, begins_T, longest: int, best: int) -> list[tuple[int, int]]:
    """(first, last token) of the best spans of a window, at most `best`, in no order.

    Args:
      logits_T2: float32 [T, 2] of the context's tokens.
      spans_T2: their characters; a span without any is none.
      begins_T: bool [T], where a span may begin; None: anywhere.
      longest: the most tokens of a span.
      best: how many.
    """
    T = len(logits_T2)
    if not T:
        return []
    reach = min(longest, T)
    ends = np.concatenate([logits_T2[:, 1], np.full(reach - 1, -np.inf, np.float32)])
    score_TK = logits_T2[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, reach)
    last_chars = np.concatenate([spans_T2[:, 1], np.zeros(reach - 1, np.int32)])
    shown_TK = np.lib.stride_tricks.sliding_window_view(last_chars, reach) > spans_T2[:, :1]
    if begins_T is not None:
        shown_TK &= begins_T[:, None]
    score_S = np.where(shown_TK, score_TK, -np.inf).ravel()
    if best < len(score_S):
        chosen = np.argpartition(-score_S, best - 1)[:best]
    else:
        chosen = np.arange(len(score_S))
    chosen = chosen[score_S[chosen] > -np.inf].tolist()
    return [(s // reach, s // reach + s % reach) for s in chosen]


@dataclasses.dataclass(frozen=True)
class Predicted:
    """The answers to questions, by their ids; `threshold` is as for `Answered.answer`."""

    ids: Sequence[str]
    answered: Sequence[Answered]
    threshold: float | None

    def texts(self, threshold: float | None) -> dict[str, str]:
        """{id: answer} by another threshold."""
        return {n: one.answer(threshold).text for n, one in self._pairs()}

    def odds(self) -> dict[str, float]:
        """{id: the odds of no answer}."""
        return {n: one.null_odds for n, one in self._pairs()}

    def write(self, path: Path, *, ranked: bool = True) -> list[Path]:
        """Write the files of SQuAD's scripts and of BERT's: {id: answer} at `path`, and beside it

        nbest_<name>: {id: [{"text", "probability", "start_logit", "end_logit"}, ...]}, where
        `ranked`; null_odds_<name>: {id: odds}, unless the threshold is None. Returns their paths.
        """
        found: dict[Path, Mapping] = {path: self.texts(self.threshold)}
        if ranked:
            listed = {n: ranked_json(one, self.threshold) for n, one in self._pairs()}
            found[path.with_name(f"nbest_{path.name}")] = listed
        if self.threshold is not None:
            found[path.with_name(f"null_odds_{path.name}")] = self.odds()
        for place, whole in found.items():
            write_text(place, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
        return list(found)

    def _pairs(self) -> list[tuple[str, Answered]]:
        return list(zip(self.ids, self.answered, strict=True))


def ranked_json(one: Answered, threshold: float | None, most: int = BEST) -> list[dict]:
    """The candidates of a question as the official n-best file has them: `Answered.ranked`."""
    return [
        {
            "text": span.text,
            "probability": probability,
            "start_logit": span.start_logit,
            "end_logit": span.end_logit,
        }
        for span, probability in one.ranked(threshold, most)
    ]
