"""A model that answers questions, in Python and for commands: questions in, candidates out."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from firth import recipe
from firth.data.answering.decode import BEST, Answered, decode
from firth.data.answering.files import Questions
from firth.data.answering.windows import AnswerBuckets, in_windows
from firth.errors import FirthError
from firth.inference.encoder import Encoder, load
from firth.inference.execution.ahead import computed, of_view
from firth.models.model import bound, family, longest
from firth.objectives.answer import Answer
from firth.training.journal import read_journal
from firth.weights.read import Saved, has_head

HEAD = "answer"
ARRAYS = ("tokens", "segments", "mask")
# Tokens of a row, between windows, of a question and of an answer, where no recipe says.
LENGTH, STRIDE, QUESTION, LONGEST = 384, 128, 64, 30
WINDOW = 512  # questions at a time
ROUNDING = 1e-3  # how far the odds of a question may be from those in training


def is_answerer(source) -> bool:
    """Whether the name of a model, as for `read_model`, is that of one that answers questions."""
    return has_head(source, HEAD, "ForQuestionAnswering")


class Answerer:
    """A model that answers questions by spans of their texts.

    Attributes: length, stride, question_length, longest: tokens, as its recipe has them.
      threshold: of the odds of no answer; None for a model that always answers. It is the one that
      its run found best on dev, else the recipe's. Raises FirthError for a model without the head.
    """

    def __init__(self, source, dtype: str | None = None):
        self.encoder: Encoder = load(source, dtype=dtype)
        saved = self.encoder.saved
        if HEAD not in saved.heads or saved.tokenizer_path is None:
            raise FirthError(
                f"{saved.source} answers no questions; train it first: firth train --config "
                f"squad.py:init={saved.source} --config.data.train=FILE --config.data.dev=FILE "
                "--workdir DIR"
            )
        trained = recipe.read(Path(saved.source)) if saved.layout == "workdir" else {}
        data, objective = trained.get("data", {}), trained.get("objective", {})
        self.length = min(data.get("length", LENGTH), longest(saved.spec))
        self.stride = data.get("stride", STRIDE)
        self.question_length = data.get("question_length", QUESTION)
        self.longest = objective.get("max_answer", LONGEST)
        self.threshold = None
        if data.get("unanswerable", False):
            self.threshold = _tuned(saved, objective.get("null_threshold", 0.0))
        task = Answer()

        def logits(model, *arrays):
            return task.logits(model, dict(zip(ARRAYS, arrays, strict=True)), train=False)

        self._run = self.encoder.program("answer", lambda: bound(self.encoder.model, logits))

    def __call__(
        self,
        questions: Questions,
        *,
        batch_size: int = 32,
        length: int | None = None,
        stride: int | None = None,
        best: int = BEST,
    ) -> list[Answered]:
        """The `best` candidates of each question; `length` and `stride` are those of its windows.

        Raises FirthError for more tokens than the model has positions, and as `in_windows` and
        `decode` do.
        """
        most = longest(self.encoder.saved.spec)
        if length and length > most:
            raise FirthError(f"max_length={length}: the model has {most} positions")
        windows = in_windows(
            dataclasses.replace(questions, spans=None),
            self.encoder.tokenizer,
            length=length or self.length,
            stride=stride or self.stride,
            question_length=self.question_length,
            roles=family(self.encoder.saved.spec["family"]).SPECIAL_TOKENS,
        )
        logits = [None] * len(windows)
        prepared = of_view(AnswerBuckets(windows), ARRAYS, batch_size)
        for batch, found_BL2 in computed(self._run, self.encoder.params, prepared):
            for row in np.flatnonzero(batch["weight"]):
                logits[batch["example"][row]] = found_BL2[row]
        return decode(questions, windows, logits, longest=self.longest, best=best)

    def digest(self) -> str:
        """A digest of everything that decides the candidates, besides what `__call__` takes."""
        read = (self.length, self.stride, self.question_length, self.longest)
        return self.encoder.saved.digest(self.encoder.tokenizer.digest, *read)

    def in_parts(
        self, questions: Questions, first: int = 0, **options
    ) -> Iterator[tuple[Questions, list]]:
        """(some questions, their candidates), so many at a time that memory is bounded.

        `first` is the number of the first question of all.
        """
        for begin in range(first, len(questions), WINDOW):
            part = questions.part(begin, begin + WINDOW)
            yield part, self(part, **options)


def _tuned(saved: Saved, default: float) -> float:
    """The threshold that was best for F1 on dev at the step of these weights.

    It lies on the odds of a question, which rounding must not move above it.
    """
    name, found = "eval/dev/best_f1_threshold", default
    if (saved.source / "metrics.jsonl").is_file():
        for entry in read_journal(saved.source):
            if entry["step"] == saved.step and name in entry:
                found = entry[name] + ROUNDING
    return found
