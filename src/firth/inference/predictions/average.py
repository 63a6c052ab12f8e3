"""The mean of several classifiers, such as ULMFiT's forward and backward ones."""

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from firth.errors import FirthError
from firth.inference.inputs import Text
from firth.inference.predictions.classifier import TextClassifier
from firth.inference.predictions.reading import Reading


class Average:
    """Classifiers of the same labels as one: the mean of their probabilities, or of their scores.

    A `TextClassifier`. Attributes: parts; labels, in the order of the first part; length and
    max_length, the least of the parts; source, encoder and multilabel, those of the first part.
    """

    def __init__(self, parts: Sequence[TextClassifier]):
        """Raises FirthError for parts of other labels than the first."""
        first = parts[0]
        self.parts, self.labels = parts, first.labels
        self.source, self.encoder, self.multilabel = first.source, first.encoder, first.multilabel
        known = [part for part in parts if part.length is not None]
        self.length = min((part.length for part in known), default=None)
        self.max_length = min((part.max_length for part in known), default=None)
        for part in parts:
            if sorted(part.labels) != sorted(self.labels):
                raise FirthError(
                    f"{part.source} has the labels {', '.join(part.labels) or 'none'}, "
                    f"{self.source} {', '.join(self.labels) or 'none'}; a mean is of models with "
                    "the same labels"
                )
            if part.multilabel != self.multilabel:
                raise FirthError(
                    f"{part.source} and {self.source}: one gives a text several labels, the other "
                    "one; a mean is of models of one kind"
                )

    def __call__(
        self, texts: Sequence[Text], reading: Reading, names: Sequence[str] | None = None
    ) -> tuple[np.ndarray, int]:
        """(means [N, C] or [N, 1] as float64, the most texts that lost tokens in a part)."""
        outputs, cuts = [], []
        for part in self.parts:
            outputs_NC, cut = part(texts, reading, names)
            order = [part.labels.index(label) for label in self.labels]
            outputs.append(outputs_NC[:, order] if self.labels else outputs_NC)
            cuts.append(cut)
        return np.mean(outputs, axis=0), max(cuts)

    def digest(self) -> str:
        """A digest of those of the parts."""
        parts = [part.digest() for part in self.parts]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
