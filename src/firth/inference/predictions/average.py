"""The mean of several classifiers, such as ULMFiT's forward and backward ones."""

from collections.abc import Sequence

import numpy as np

from firth.errors import FirthError
from firth.inference.encoder import load
from firth.inference.inputs import Text
from firth.inference.predictions.classifier import Classifier
from firth.inference.predictions.reading import Reading
from firth.storage.remote import is_url


class Average:
    """Classifiers of the same labels as one: the mean of their probabilities, or of their scores.

    It is used as a `Classifier`. Attributes: parts; labels, in the order of the first part; length,
    the least of the parts; encoder, that of the first part.
    """

    def __init__(self, parts: Sequence[Classifier]):
        """Raises FirthError for parts of other labels than the first."""
        self.parts, self.labels, self.encoder = parts, parts[0].labels, parts[0].encoder
        self.length = min(part.length for part in parts)
        for part in parts:
            if sorted(part.labels) != sorted(self.labels):
                raise FirthError(
                    f"{part.encoder.saved.source} has the labels {', '.join(part.labels) or 'none'}"
                    f", {self.encoder.saved.source} {', '.join(self.labels) or 'none'}; a mean is "
                    "of models with the same labels"
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


def load_classifier(model: str, dtype: str | None = None) -> Classifier | Average:
    """The classifier of a model, or the mean of several, "A,B"; raises FirthError as they do."""
    names = [model] if is_url(model) else model.split(",")
    parts = [load(name.strip(), dtype=dtype).classifier for name in names]
    return parts[0] if len(parts) == 1 else Average(parts)
