"""Several labels of a text at once, or none: how files write them, and what a constant answer has.

JSONL has a list of labels. CSV and TSV have them in one field with `|` between; an empty field has
none. N texts, C labels.
"""

from collections.abc import Sequence

import numpy as np

from firth.data.tasks.metrics import check_finite
from firth.data.tasks.rows import format_of
from firth.data.tasks.task import shown
from firth.errors import FirthError

SEPARATOR = "|"
THRESHOLD = 0.5  # the probability from which on a text has a label


def names_in(value, at: str, column: str, separated: bool) -> list[str]:
    """The labels that a field holds, each once, in its order.

    Args:
      value: the field: a list of strings or whole numbers, or a string where it is `separated`.
      at: the file and line, for errors.
      column: the name of the field, for errors.
      separated: whether the file is CSV or TSV.

    Raises FirthError, beginning with `at`, for a field that is no list, and for an empty label.
    """
    if separated and (value is None or isinstance(value, str)):
        value = value.split(SEPARATOR) if value and value.strip() else []
    if not isinstance(value, list):
        raise FirthError(
            f"{at}: {column!r} is {value!r:.40}, expected a list of labels; [] is none of them"
        )
    for label in value:
        named = isinstance(label, str | int) and not isinstance(label, bool)
        if not named or not str(label).strip():
            raise FirthError(
                f"{at}: {column!r} holds the label {label!r:.40}, expected a name; a text without "
                f"labels has {'an empty field' if separated else '[]'}"
            )
    return list(dict.fromkeys(str(label).strip() for label in value))


def is_separated(source: str) -> bool:
    """Whether a file, by its name, has all labels of a text in one string."""
    return format_of(source) != "jsonl"


def lists_of(source: str, column: str, values: Sequence, rows: Sequence) -> list[list[str]]:
    """The labels of each row of a file; `rows` are their lines. FirthError as `names_in`."""
    separated = is_separated(source)
    return [
        names_in(value, f"{source}:{row}", column, separated)
        for row, value in zip(rows, values, strict=True)
    ]


def indicator(names: Sequence[str], known: dict[str, int], at: str, whose: str) -> np.ndarray:
    """int32 [C]: 1 at each label of a text; `known` has the index of every label.

    Raises FirthError, beginning with `at`, for a label that is not known; `whose` ends the message.
    """
    marked = np.zeros(max(known.values()) + 1, np.int32)
    for name in names:
        if name not in known:
            raise FirthError(f"{at}: label {name!r} is not one of {shown(list(known))}, {whose}")
        marked[known[name]] = 1
    return marked


def decided(logits_NC: np.ndarray) -> np.ndarray:
    """int32 [N, C]: 1 where the probability of a label is at least THRESHOLD.

    Raises FirthError for a logit that is not finite.
    """
    check_finite(logits_NC)
    return (logits_NC >= 0).astype(np.int32)


def constant_answer(labels_NC: np.ndarray) -> np.ndarray:
    """int32 [C]: the labels that a constant answer should have, for micro-F1 on these texts.

    It has the k most frequent labels, for the k with the greatest F1: 2 right / (N k + all), where
    right are the labels that it shares with the texts, and all are those of the texts.
    """
    count_C = labels_NC.sum(0)
    order_C = np.argsort(-count_C, kind="stable")
    sizes_C = np.arange(1, len(order_C) + 1)
    f1_C = 2 * np.cumsum(count_C[order_C]) / (len(labels_NC) * sizes_C + count_C.sum())
    answer = np.zeros(len(order_C), np.int32)
    answer[order_C[: f1_C.argmax() + 1]] = 1
    return answer


def rarest_labels(labels_NC: np.ndarray) -> np.ndarray:
    """int64 [N]: of each text the label that fewest texts have, C where it has none."""
    count_C = labels_NC.sum(0)
    cost_NC = np.where(labels_NC > 0, count_C, len(labels_NC) + 1)
    return np.where(labels_NC.any(1), cost_NC.argmin(1), labels_NC.shape[1]).astype(np.int64)


def written(names: Sequence[str], marked: np.ndarray) -> str:
    """The labels of a text as CSV has them."""
    return SEPARATOR.join(names[i] for i in np.flatnonzero(marked))
