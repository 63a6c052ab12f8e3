"""What judges the model of a workdir, by its kind."""

from pathlib import Path

from firth import recipe
from firth.inference.answering.answerer import is_answerer
from firth.inference.judging.answers import judge_answers
from firth.inference.judging.judged import Judged
from firth.inference.judging.texts import judge_texts
from firth.inference.judging.words import judge_words
from firth.inference.tagging.tagger import is_tagger

KINDS = ((is_tagger, judge_words), (is_answerer, judge_answers))


def judge(workdir: Path, split: str, worst: int) -> Judged | None:
    """The model of a workdir on a split of its task; None for a run that learns no labels, or
    those of several tasks.

    `worst` is how many of the examples that it got wrong are kept. Raises FirthError where the
    model or the files of the task cannot be read.
    """
    config = recipe.read(workdir)
    data = config.get("data", {})
    if "task" not in data or data.get("tasks"):
        return None
    judges = (found for tells, found in KINDS if tells(workdir))
    return next(judges, judge_texts)(workdir, config, split, worst)
