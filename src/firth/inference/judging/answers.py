"""Models that answer questions by a span of a text, judged on a split. N questions."""

from pathlib import Path

import numpy as np

from firth.data.answering.decode import Predicted
from firth.data.answering.load import load_answering
from firth.data.answering.metrics import accepted, f1_or_none, score_answers
from firth.errors import FirthError
from firth.inference.answering.answerer import Answerer
from firth.inference.judging.judged import Judged, Wrong


def judge_answers(workdir: Path, config, split: str, worst: int) -> Judged:
    """The model of a workdir on a split, with so many of its worst answers.

    Raises FirthError as `load_answering` and `Answerer` do, and for a split without answers.
    """
    data = config.data
    _, splits = load_answering(
        {name: data[name] for name in ("train", "dev", "test")},
        name=data.task,
        directory=data.dir,
        unanswerable=data.unanswerable,
        misplaced=data.misplaced,
    )
    if split not in splits or splits[split].answers is None:
        raise FirthError(f"the task has no answers to split {split!r}; it has {', '.join(splits)}")
    questions, model = splits[split], Answerer(str(workdir))
    threshold = model.threshold if data.unanswerable else None
    answered = [one for _, found in model.in_parts(questions, best=1) for one in found]
    predicted = Predicted(questions.ids, answered, threshold)
    options = {"odds": predicted.odds(), "threshold": threshold} if data.unanswerable else {}
    metrics = score_answers(questions, predicted.texts(None), **options)
    said = [one.answer(threshold).text for one in answered]
    golds = [accepted(answers) for answers in questions.answers]
    f1_N = np.array(
        [max(f1_or_none(one, gold) for gold in own) for one, own in zip(said, golds, strict=True)]
    )
    order = [i for i in np.argsort(f1_N, kind="stable") if f1_N[i] < 1]
    texts = [questions.contexts[i] for i in questions.context]
    return Judged(
        split,
        questions.source,
        len(questions),
        metrics,
        np.array([len(text.split()) for text in texts]),
        f1_N,
        "F1 of the answer",
        worst=tuple(
            Wrong(
                {"question": questions.texts[i], "text": texts[i]},
                " | ".join(golds[i]) or "(no answer)",
                said[i] or "(no answer)",
                f"F1 {f1_N[i]:.2f}",
            )
            for i in order[:worst]
        ),
        wrong=len(order),
    )
