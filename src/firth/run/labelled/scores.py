"""What the logits of a labelled task say of its examples. N examples, C labels."""

import numpy as np

from firth.data.labels.multilabel import decided
from firth.data.tasks.task import Task


def predictions_of(task: Task, logits_NC: np.ndarray) -> np.ndarray:
    """Classes int [N], scores float [N], or, where a text has several labels, int [N, C].

    Raises FirthError for logits of several labels that are not finite.
    """
    if task.kind == "regression":
        return logits_NC[:, 0]
    return decided(logits_NC) if task.kind == "multilabel" else logits_NC.argmax(axis=1)
