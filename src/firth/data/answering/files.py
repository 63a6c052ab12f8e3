"""Files of questions in the JSON of SQuAD 1.1 and 2.0, plain, .gz or .xz. N questions.

    {"data": [{"paragraphs": [{"context": "...", "qas": [
        {"id": "...", "question": "...", "answers": [{"text": "...", "answer_start": 3}]}]}]}]}

A question without answers has none in its context (Rajpurkar et al. 2018). What else a file holds
(titles, plausible answers) is not read.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from firth.data.tasks.rows import Rows
from firth.data.tasks.tables import shown_path, text_lines
from firth.errors import FirthError

MISPLACED = ("refuse", "skip")
NONE = (-1, -1)  # the characters of no answer
COLUMNS = ("question", "context")


@dataclasses.dataclass(frozen=True)
class Questions:
    """Questions in the order of their file.

    source: its name. contexts: the texts, each once. texts: the questions. ids: theirs.
    context: int64 [N], the number of each question's context.
    answers: the accepted answers of each, () where there is none; None for a file without answers.
    spans: int64 [N, 2], characters [begin, end) of the first answer in its context, NONE where
      there is none; None for a file without answers, or whose places were not read.
    skipped: the ids of questions that were left out, because an answer is not at its place.
    """

    source: str
    contexts: list[str]
    texts: list[str]
    ids: list[str]
    context: np.ndarray
    answers: list[tuple[str, ...]] | None
    spans: np.ndarray | None
    skipped: tuple[str, ...] = ()

    def __len__(self):
        return len(self.texts)

    def part(self, begin: int, end: int) -> "Questions":
        """The questions from `begin` up to `end`, with their contexts alone."""
        numbers, context = np.unique(self.context[begin:end], return_inverse=True)
        return dataclasses.replace(
            self,
            contexts=[self.contexts[n] for n in numbers],
            texts=self.texts[begin:end],
            ids=self.ids[begin:end],
            context=context,
            answers=self.answers and self.answers[begin:end],
            spans=None if self.spans is None else self.spans[begin:end],
        )


def read_squad(
    path: str | Path,
    *,
    unanswerable: bool = True,
    misplaced: str = "refuse",
    places: bool = True,
    errors: str = "strict",
) -> Questions:
    """Read a file of SQuAD's JSON; "-" is standard input.

    Args:
      path: the file.
      unanswerable: whether a question may have no answer, as in version 2.0.
      misplaced: "refuse" or "skip" (and count) a question with an answer that is not where its
        `answer_start` says.
      places: whether to read `answer_start`; scores need the texts of answers alone.
      errors: "strict" or "replace", for bytes that are not UTF-8.

    Raises FirthError, naming the file and the question, for a field that is missing or of another
    type, an id that comes twice, a question without answers where each must have one, some
    questions with a field `answers` and some without, an answer that is not at its place, and a
    file without questions.
    """
    if misplaced not in MISPLACED:
        raise FirthError(f"misplaced={misplaced!r}; expected one of {', '.join(MISPLACED)}")
    shown = shown_path(path)
    contexts, rows, skipped = [], [], []
    for context, at, entry in _entries(_whole(path, errors), shown):
        if context is not None:
            contexts.append(context)
            continue
        number = _id(entry, at)
        at = f"{shown}: question {number!r}"
        text = _field(entry, "question", str, at)
        answers = None if "answers" not in entry else _field(entry, "answers", list, at)
        found, wrong = _answers(answers or [], contexts[-1], at, places)
        if answers == [] and not unanswerable:
            raise FirthError(
                f"{at} has no answer, and this task takes each question to have one; give "
                "squad.py:v2, or leave the question out"
            )
        if found and entry.get("is_impossible"):
            raise FirthError(
                f"{at}: is_impossible is true, but it has answers; correct one of both"
            )
        if wrong and misplaced == "refuse":
            raise FirthError(
                f"{wrong}; correct answer_start (characters, from 0), or set "
                "--config.data.misplaced=skip to leave such questions out"
            )
        if wrong:
            skipped.append(number)
            continue
        rows.append((text, number, len(contexts) - 1, None if answers is None else found))
    return _questions(shown, contexts, rows, places, skipped)


def read_pairs(path, columns: Sequence[str], *, kind: str | None, errors: str) -> Questions:
    """Questions of a .jsonl, .csv or .tsv file, or of standard input: one and its text a row.

    `columns` are those of the two, () for "question" and "context"; a column `id` names the
    question, else its line does. Raises FirthError as `firth.data.tasks.rows.Rows` does.
    """
    rows = Rows(path, tuple(columns) or COLUMNS, format=kind, errors=errors)
    if len(rows.texts) != 2:
        raise FirthError(
            f"{rows.name}: the model answers questions on texts; name the columns of both, "
            "--text=QUESTION,CONTEXT"
        )
    numbers, found = {}, []
    for row in rows:
        question, context = row.text
        number = numbers.setdefault(context, len(numbers))
        name = row.fields.get("id")
        name = row.at.rpartition(":")[2] if name in (None, "") else str(name)
        found.append((question, name, number, None))
    return _questions(rows.name, list(numbers), found, False, [])


def _questions(source: str, contexts: list, rows: list, places: bool, skipped: list) -> Questions:
    if not rows:
        left = (
            f"; {len(skipped):,} were left out, as their answers are misplaced" if skipped else ""
        )
        raise FirthError(f"{source} has no questions{left}")
    texts, ids, context, answers = map(list, zip(*rows, strict=True))
    if len(set(ids)) < len(ids):
        twice = next(name for name, count in Counter(ids).items() if count > 1)
        raise FirthError(f"{source}: the question id {twice!r} comes twice; predictions go by id")
    without = [name for name, own in zip(ids, answers, strict=True) if own is None]
    if 0 < len(without) < len(ids):
        raise FirthError(
            f"{source}: question {without[0]!r} has no field 'answers', but others have; an empty "
            "list stands for no answer"
        )
    if without:
        answers = spans = None
    else:
        spans = np.array([own[0][1] if own else NONE for own in answers], np.int64)
        answers = [tuple(text for text, _ in own) for own in answers]
    return Questions(
        source,
        contexts,
        texts,
        ids,
        np.array(context, np.int64),
        answers,
        spans if places else None,
        tuple(skipped),
    )


def _whole(path, errors: str) -> dict:
    """The JSON object of a file."""
    shown = shown_path(path)
    text = "\n".join(line for _, line in text_lines(path, errors, blank=True))
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        raise FirthError(f"{shown}:{error.lineno}: not valid JSON ({error.msg})") from None
    except RecursionError:
        raise FirthError(f"{shown}: nested too deeply for SQuAD's JSON") from None
    if not isinstance(whole, dict) or "data" not in whole:
        raise FirthError(f"{shown}: expected SQuAD's JSON, an object with 'data'")
    return whole


def _entries(whole: dict, shown: str) -> Iterator[tuple]:
    """(context, where, None) of each paragraph, then (None, where, entry) of its questions."""
    for a, article in enumerate(_field(whole, "data", list, shown)):
        at = f"{shown}: data[{a}]"
        for p, paragraph in enumerate(_field(article, "paragraphs", list, at)):
            where = f"{at}.paragraphs[{p}]"
            yield _field(paragraph, "context", str, where), where, None
            for q, entry in enumerate(_field(paragraph, "qas", list, where)):
                yield None, f"{where}.qas[{q}]", entry


def _id(entry, at: str) -> str:
    if isinstance(entry, dict) and type(entry.get("id")) is int:
        return str(entry["id"])
    return _field(entry, "id", str, at)


def _answers(answers: list, context: str, at: str, places: bool) -> tuple[list, str]:
    """([(text, (begin, end))], what is wrong with a place) of the answers of a question."""
    found, wrong = [], ""
    for n, answer in enumerate(answers):
        text = _field(answer, "text", str, f"{at}: answers[{n}]")
        if not text.strip():
            raise FirthError(f"{at}: answers[{n}] is empty; a question without answer has none: []")
        begin = _field(answer, "answer_start", int, f"{at}: answers[{n}]") if places else 0
        there = context[max(begin, 0) : max(begin, 0) + len(text)]
        if places and (begin < 0 or there != text):
            wrong = f"{at}: answer {text!r:.60} is not at {begin}, where {there!r:.60} stands"
        found.append((text, (begin, begin + len(text))))
    return found, wrong


def _field(entry, name: str, kind: type, at: str):
    """The field of an object; FirthError where it is missing or of another type."""
    if not isinstance(entry, dict) or name not in entry:
        raise FirthError(f"{at} has no field {name!r}; expected SQuAD's JSON")
    if type(entry[name]) is not kind:
        names = {str: "a string", list: "a list", int: "a whole number"}
        raise FirthError(f"{at}: {name} is {entry[name]!r:.40}, expected {names[kind]}")
    if kind is str:
        try:
            entry[name].encode()
        except UnicodeEncodeError as error:
            half = entry[name][error.start]
            raise FirthError(f"{at}: {name} holds {half!r}, which is no character") from None
    return entry[name]
