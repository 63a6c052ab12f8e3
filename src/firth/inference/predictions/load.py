"""Any model that labels texts, by its name."""

from pathlib import Path

from firth.data.tasks.choice_rows import ChoiceRows
from firth.data.tasks.rows import Rows
from firth.errors import FirthError
from firth.inference.predictions.average import Average
from firth.inference.predictions.chooser import Chooser, is_chooser
from firth.inference.predictions.classifier import TextClassifier
from firth.inference.predictions.linear import LinearClassifier
from firth.models.logistic.files import is_logistic
from firth.storage.remote import is_url


def open_rows(model: str, path: str, args) -> Rows:
    """The rows of a file as the model reads them: texts, or questions with choices.

    `args` are those of `firth.commands.arguments.add_texts`. Raises FirthError as `Rows` does, and
    for --choices of a model that labels texts.
    """
    options = dict(format=args.format, errors=args.errors)
    if is_chooser(names_of(model)[0]):
        return ChoiceRows(path, args.text, args.choices, **options)
    if args.choices:
        raise FirthError("--choices: only models that choose have it (finetune.py, data.choices)")
    return Rows(path, args.text, **options)


def load_classifier(
    model: str, dtype: str | None = None, choices: int = 0, task: str | None = None
) -> TextClassifier:
    """The classifier of a model, or the mean of several, "A,B"; for so many choices a question.

    `task` picks the head of a model of several tasks. Raises FirthError for a model that cannot
    label texts, for several of other labels, and for a task that is missing or unknown.
    """
    parts = [_load(name, dtype, choices, task) for name in names_of(model)]
    return parts[0] if len(parts) == 1 else Average(parts)


def names_of(model: str) -> list[str]:
    """The models of "A,B"; what is there by the whole name is one."""
    whole = is_url(model) or Path(model).exists()
    return [model] if whole else [name.strip() for name in model.split(",")]


def _load(name: str, dtype: str | None, choices: int, task: str | None) -> TextClassifier:
    if is_logistic(name):
        if task is not None:
            raise FirthError(f"{name}: a logistic regression is of one task; leave --task out")
        return LinearClassifier(name, dtype)
    from firth.inference.encoder import load

    encoder = load(name, dtype=dtype, task=task)
    return Chooser(encoder, choices) if choices else encoder.classifier
