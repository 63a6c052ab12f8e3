"""What a run has of its questions: the task, the windows of each split, and scores."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from firth.data.answering.decode import Predicted, decode
from firth.data.answering.files import Questions
from firth.data.answering.load import baselines, load_answering, overview
from firth.data.answering.metrics import score_answers
from firth.data.answering.windows import AnswerBuckets, Windows, in_windows
from firth.data.tasks.buckets import of_splits
from firth.data.tasks.overview import Baseline
from firth.data.tasks.task import Task
from firth.models.model import family
from firth.run.labelled.parts import Parts, task_tokenizer
from firth.tokenizers.base import Tokenizer
from firth.weights.read import Saved


@dataclasses.dataclass
class Answering(Parts):
    """The parts of a run.

    unanswerable: whether questions may have no answer. longest: tokens of an answer. threshold: of
    the odds of no answer. windows: {split: those of its questions}, once `rows` has made them.
    """

    task: Task
    splits: dict[str, Questions]
    tokenizer: Tokenizer
    unanswerable: bool
    longest: int
    threshold: float
    windows: dict[str, Windows] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, config, initial: Saved | None) -> "Answering":
        """Read the files of a config's data section; `initial` are weights to start from."""
        data, objective = config.data, config.objective
        task, splits = load_answering(
            {split: data[split] for split in ("train", "dev", "test")},
            name=data.task,
            directory=data.dir,
            unanswerable=data.unanswerable,
            misplaced=data.misplaced,
        )
        return cls(
            task,
            splits,
            task_tokenizer(data, initial),
            data.unanswerable,
            objective.max_answer,
            objective.null_threshold,
        )

    def rows(self, spec: dict, data, seed: int) -> dict[str, AnswerBuckets]:
        """The view of each split."""
        for split, questions in self.splits.items():
            self.windows[split] = in_windows(
                questions,
                self.tokenizer,
                length=data.length,
                stride=data.stride,
                question_length=data.question_length,
                roles=family(spec["family"]).SPECIAL_TOKENS,
            )
        return of_splits(functools.partial(AnswerBuckets, seed=seed), self.windows)

    def overview(self) -> list[str]:
        """Lines to read before the run."""
        found = {split: (len(w), w.cut, w.held) for split, w in self.windows.items()}
        lines = [f"{split}: {baseline}" for split, baseline in self.baselines().items()]
        return overview(self.splits, found) + lines

    def baselines(self) -> dict[str, Baseline]:
        """Of dev and, with answers, of test."""
        return baselines(self.splits, self.unanswerable)

    def score(self, split: str, columns: list[dict]) -> tuple[dict[str, float], Predicted]:
        """(metrics, predictions) of a split; no metrics of questions without answers."""
        questions, windows = self.splits[split], self.windows[split]
        logits = by_window(columns, len(windows))
        answered = decode(questions, windows, logits, longest=self.longest)
        threshold = self.threshold if self.unanswerable else None
        predicted = Predicted(questions.ids, answered, threshold)
        if questions.answers is None:
            return {}, predicted
        odds = predicted.odds() if self.unanswerable else None
        # All answers count up to the threshold that is found best, so none is blank before.
        scores = score_answers(questions, predicted.texts(None), odds, threshold=self.threshold)
        return scores, predicted


def by_window(columns: list[dict], count: int) -> Sequence[np.ndarray]:
    """The logits [L, 2] of each window from outputs {example, weight, logits} of batches."""
    found: list = [None] * count
    for rows in columns:
        for row in np.flatnonzero(rows["weight"]):
            found[rows["example"][row]] = rows["logits"][row]
    return found
