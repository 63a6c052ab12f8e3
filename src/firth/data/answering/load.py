"""A task of answering questions from a text, and the questions of its splits."""

from collections.abc import Mapping
from pathlib import Path

from firth.data.answering.files import Questions, read_squad
from firth.data.answering.metrics import baseline, metrics_of
from firth.data.tasks.overview import Baseline
from firth.data.tasks.tables import find_file
from firth.data.tasks.task import Task
from firth.errors import FirthError

KIND = "answering"


def load_answering(
    files: Mapping[str, str],
    *,
    name: str = "",
    directory: str = "",
    unanswerable: bool = False,
    misplaced: str = "refuse",
) -> tuple[Task, dict[str, Questions]]:
    """(the task, the questions of each split).

    Args:
      files: {split: path}, train, dev and perhaps test.
      name: of the task. directory: the base of relative paths; "" is here.
      unanswerable, misplaced: as for `files.read_squad`.

    Raises FirthError for a missing file, what `read_squad` raises, and a split of train or dev
    without answers.
    """
    for split in ("train", "dev"):
        if not files.get(split):
            raise FirthError(
                f"data.{split} is not set: give questions with answers in SQuAD's JSON, "
                f"--config.data.{split}=FILE"
            )
    splits = {}
    for split, path in files.items():
        if not path:
            continue
        found = find_file(directory or ".", path)
        if found is None:
            raise FirthError(f"{Path(directory or '.', path)}: no such file, nor .gz or .xz")
        splits[split] = read_squad(found, unanswerable=unanswerable, misplaced=misplaced)
        if splits[split].answers is None and split != "test":
            raise FirthError(f"{found}: its questions have no answers, which {split} needs")
    task = Task(
        name=name or KIND,
        kind=KIND,
        text_columns=("question", "context"),
        label_column="answers",
        metrics=metrics_of(unanswerable),
        files=dict(files),
    )
    return task, splits


def baselines(splits: Mapping[str, Questions], unanswerable: bool) -> dict[str, Baseline]:
    """The baseline of each split with answers, but train."""
    return {
        name: baseline(questions, unanswerable)
        for name, questions in splits.items()
        if name != "train" and questions.answers is not None
    }


def overview(splits: Mapping[str, Questions], windows: Mapping[str, tuple]) -> list[str]:
    """Lines to read before a run; `windows` are (windows, questions cut, questions held)."""
    lines = [f"answering questions from their texts ({splits['train'].source})"]
    for name, questions in splits.items():
        count, cut, held = windows[name]
        line = f"{name}: {len(questions):,} questions on {len(questions.contexts):,} texts"
        line += f", {count:,} windows"
        if questions.answers is not None:
            some = sum(map(bool, questions.answers))
            line += f"; {len(questions) - some:,} without answer" if some < len(questions) else ""
            line += f"; {some - held:,} longer than a window" if held < some else ""
        line += f"; {cut:,} cut at data.question_length" if cut else ""
        if questions.skipped:
            line += (
                f"; {len(questions.skipped):,} left out, as an answer is not at its place: "
                f"{', '.join(map(repr, questions.skipped[:3]))}"
                f"{', ...' if len(questions.skipped) > 3 else ''}"
            )
        lines.append(line)
    return lines
