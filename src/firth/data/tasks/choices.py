"""Questions with choices, one of which is right: their texts, their labels and their rows.

A question has a row for each choice: the context as first text, and the choice as second text,
after the question if there is one. Files are tables (`firth.data.tasks.tables`) or folders of
RACE's passages. N questions, C choices, R = N C rows, T tokens.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from firth.data.tasks.buckets import CHUNK_TEXTS, Tokenised, join, starts_of
from firth.data.tasks.tables import checked_text, listed, read_table
from firth.data.tasks.task import Examples, Task
from firth.data.views.selection import ranges
from firth.errors import FirthError
from firth.tokenizers.special_tokens import BERT, build_template

RACE = ("article", "question", "options", "answer")  # columns of a folder of passages
HIDDEN = (None, "", -1)  # labels of a test set that has none
# A run of "_", unless letters stand on both its sides, as in the name max_length.
_BLANK = re.compile(r"(?<!\w)_++|(?<!_)_++(?![^\W_])")


def beside(question: str | None, choice: str) -> str:
    """The text to read beside the context: the question, then the choice.

    A choice fills the blank of a question that has one ("_"), as in the code of XLNet for RACE.
    """
    if not question:
        return choice
    filled = _BLANK.sub(lambda _: choice, question)
    return f"{question} {choice}" if filled == question else filled


def texts_of(
    at: str, fields: dict, texts: Sequence[str], columns: Sequence[str], count: int | None = None
) -> tuple[str, tuple[str, ...]]:
    """(context, the text beside it for each choice) of one question.

    Args:
      at: where the question is, for errors.
      fields: {column: value}.
      texts: the columns of the context and the question, or of one alone.
      columns: the column that lists the choices, or a column for each.
      count: how many choices there must be.

    Raises FirthError for a text that is no string, and as `choices_of` does.
    """
    for name in texts:
        checked_text(at, name, fields[name])
    context, question = fields[texts[0]], fields[texts[1]] if len(texts) > 1 else None
    choices = choices_of(at, fields, columns, count)
    return context, tuple(beside(question, choice) for choice in choices)


def choices_of(
    at: str, fields: dict, columns: Sequence[str], count: int | None = None
) -> list[str]:
    """The choices of one question; see `texts_of`.

    Raises FirthError for an empty choice and for another number of choices than `count`.
    """
    choices = [fields[name] for name in columns]
    if len(columns) == 1:
        choices = choices[0]
        if not isinstance(choices, list):
            raise FirthError(
                f"{at}: {columns[0]!r} is {choices!r:.40}, expected a list of choices; a table has "
                "a column for each choice"
            )
    if len(choices) < 2 or len(choices) != (count or len(choices)):
        raise FirthError(
            f"{at}: has {len(choices)} choices, expected {count or 'two or more'}; every question "
            "of a task has as many"
        )
    for number, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice.strip():
            raise FirthError(f"{at}: choice {number} is {choice!r:.40}, expected a text")
        checked_text(at, f"choice {number}", choice)
    return choices


def label_of(at: str, column: str, value, count: int) -> int:
    """The number of the right choice, from 0: a number or a letter from A.

    Raises FirthError, beginning with `at`, for any other value.
    """
    said = str(value).strip().upper()
    number = int(said) if re.fullmatch(r"\d{1,9}", said) else -1
    if re.fullmatch("[A-Z]", said):
        number = ord(said) - ord("A")
    if not 0 <= number < count:
        last = f"{count - 1}, or A to {chr(ord('A') + count - 1)}" if count <= 26 else count - 1
        raise FirthError(
            f"{at}: label {value!r} (column {column!r}) is none of the {count} choices; expected "
            f"0 to {last}"
        )
    return number


def load_choices(task: Task, split: str, path: Path, may_hide: bool) -> Examples:
    """The questions of a file or of a folder of passages; see `firth.data.tasks.load.load_split`.

    `may_hide` says that labels may be missing.
    """
    if path.is_dir():
        records = list(_passages(path))
    else:
        columns = [*task.text_columns, *task.choices]
        label = [task.label_column]
        required, optional = (columns, label) if may_hide else (columns + label, [])
        table = read_table(path, required, optional, task.headers.get(split, ()))
        values = zip(*table.columns.values(), strict=True)
        records = [
            (f"{path}:{row}", dict(zip(table.columns, record, strict=True)))
            for row, record in zip(table.rows, values, strict=True)
        ]
    if not records:
        raise FirthError(f"{path}: no examples; expected a question a row")
    count = len(task.labels)
    texts = [texts_of(at, row, task.text_columns, task.choices, count) for at, row in records]
    labels = [row.get(task.label_column) for _, row in records]
    if may_hide and all(label in HIDDEN for label in labels):
        labels = None
    else:
        labels = np.array(
            [
                label_of(at, task.label_column, label, count)
                for (at, _), label in zip(records, labels, strict=True)
            ],
            np.int32,
        )
    contexts, choices = zip(*texts, strict=True)
    groups = np.array([row.get("level", "") for _, row in records])
    return Examples(
        task,
        str(path),
        list(contexts),
        None,
        labels,
        np.arange(len(records)) + 1,
        choices=list(choices),
        groups=groups if len(np.unique(groups)) > 1 else None,
        places=[at for at, _ in records],
    )


def first_count(path: Path, column: str) -> int:
    """How many choices the first question of a file lists; FirthError if it lists none."""
    if path.is_dir():
        at, fields = next(_passages(path))
        return len(choices_of(at, fields, (column,)))
    table = read_table(path, [column])
    if not len(table.rows):
        raise FirthError(f"{path}: no examples; expected a question a row")
    fields = {column: table.columns[column][0]}
    return len(choices_of(f"{path}:{table.rows[0]}", fields, (column,)))


def _passages(folder: Path) -> Iterator[tuple[str, dict]]:
    """(place, fields) of the questions on the passages in a folder, or in folders in it.

    A passage is a .txt file of JSON: article, questions, options and answers (Lai et al. 2017). Its
    level is the name of its folder, "middle" or "high".
    """
    paths, found = sorted(folder.rglob("*.txt")), 0
    for path in paths:
        try:
            passage = json.loads(path.read_bytes().decode())
        except (ValueError, RecursionError) as error:
            raise FirthError(f"{path}: not a JSON value: {error}") from None
        names = ("article", "questions", "options")
        if not isinstance(passage, dict) or (lacking := [n for n in names if n not in passage]):
            found = "no object" if not isinstance(passage, dict) else f"no {lacking[0]!r}"
            raise FirthError(f"{path}: has {found}; expected {listed([*names, 'answers'])}")
        questions, options = passage["questions"], passage["options"]
        answers = passage.get("answers")
        for name, value in (("questions", questions), ("options", options), ("answers", answers)):
            if not isinstance(value, list) and not (name == "answers" and value is None):
                raise FirthError(f"{path}: {name!r} is {value!r:.40}, expected a list")
        answers = [None] * len(questions) if answers is None else answers
        if not len(questions) == len(options) == len(answers):
            raise FirthError(
                f"{path}: has {len(questions)} questions, {len(options)} lists of options and "
                f"{len(answers)} answers; expected as many of each"
            )
        for number, (question, choices, answer) in enumerate(
            zip(questions, options, answers, strict=True), 1
        ):
            values = (passage["article"], question, choices, answer)
            fields = dict(zip(RACE, values, strict=True)) | {"level": path.parent.name}
            found += 1
            yield f"{path}: question {number}", fields
    if not found:
        raise FirthError(f"{folder}: no questions; expected RACE's .txt files, here or in folders")


def tokenise_choices(
    contexts: Sequence[str],
    choices: Sequence[tuple[str, ...]],
    places: Sequence[str],
    tokenizer,
    length: int,
    roles: tuple = BERT,
    labels: np.ndarray | None = None,
) -> Tokenised:
    """The rows of questions, C of each after one another, cut to `length` tokens.

    A row loses tokens at the end of its context. Question and choice stay whole, unless they leave
    no room for a token of the context; then their beginning is cut, so that the choice stays.

    Args:
      contexts: a text a question.
      choices: the texts beside it, C of each question.
      places: where the questions are, for errors.
      roles: the family's SPECIAL_TOKENS.
      labels: the numbers of the right choices.

    Raises FirthError for a text without tokens and a length without room for two of them.
    """
    template, C = build_template(roles, tokenizer), len(choices[0])
    room = length - template.size(2)
    if room < 2:
        raise FirthError(f"length={length}: expected at least {template.size(2) + 2} for choices")
    parts = []
    for begin in range(0, len(contexts), CHUNK_TEXTS):
        chunk = slice(begin, begin + CHUNK_TEXTS)
        a_tokens, a_sizes = tokenizer.encode_flat(list(contexts[chunk]))
        b_tokens, b_sizes = tokenizer.encode_flat([one for own in choices[chunk] for one in own])
        for sizes, rows, kind in ((a_sizes, 1, "the context"), (b_sizes, C, "a choice")):
            if len(empty := np.flatnonzero(sizes == 0)):
                at = places[begin + empty[0] // rows]
                raise FirthError(f"{at}: {kind} has no token; expected a text")
        owner = np.repeat(np.arange(len(a_sizes)), C)
        a = _taken(a_tokens, a_sizes, owner, np.zeros(len(owner), np.int64))
        lost = np.maximum(b_sizes - (room - 1), 0)
        b = _taken(b_tokens, b_sizes, np.arange(len(b_sizes)), lost)
        tokens, sizes, second, cut = join(a, b, length, template, cut=_of_context)
        parts.append((tokens, sizes, second, cut + lost))
    tokens, sizes, second, cut = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Tokenised(
        tokens=tokens,
        offsets=starts_of(sizes),
        second=second.astype(np.int32),
        labels=labels,
        length=length,
        pad_id=template.pad,
        last_segment=template.last_segment,
        truncated=int(np.count_nonzero(cut.reshape(-1, C).any(1))),
        choices=C,
    )


def _taken(tokens, sizes, chosen, lost) -> tuple[np.ndarray, np.ndarray]:
    """(ids, sizes) of the chosen texts, each without its first `lost` tokens."""
    begin = starts_of(sizes)[:-1][chosen] + lost
    sizes = sizes[chosen] - lost
    return tokens[ranges(begin, begin + sizes)], sizes


def _of_context(a_sizes, b_sizes, limit: int):
    """(tokens that contexts lose, tokens that choices lose: none)."""
    return np.maximum(a_sizes + b_sizes - limit, 0), np.zeros_like(b_sizes)


def longest_choice(choices: Sequence[tuple[str, ...]]) -> np.ndarray:
    """int [N]: the choice with the most characters, the first of several; a baseline."""
    return np.array([np.argmax([len(one) for one in own]) for own in choices])
