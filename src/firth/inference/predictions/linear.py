"""A logistic regression as a classifier of `firth predict` and `firth evaluate`."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.errors import FirthError
from firth.inference.inputs import Text
from firth.inference.predictions.classifier import parts_of
from firth.inference.predictions.reading import Reading
from firth.models.logistic import files

UNLIKE = "a logistic regression reads whole texts in float64; it has no"


class LinearClassifier:
    """The logistic regression of a folder, as a `TextClassifier` (classifier.py).

    It reads all of a text, so it has no length.
    """

    encoder = length = max_length = None
    multilabel = False

    def __init__(self, source, dtype: str | None = None):
        """Raises FirthError for a damaged model, and for a `dtype`, which it does not have."""
        if dtype is not None:
            raise FirthError(f"{source}: {UNLIKE} dtype; leave it out")
        self.source, self.model = Path(source), files.load(source)
        self.labels = self.model.labels

    def __call__(
        self, texts: Sequence[Text], reading: Reading, names: Sequence[str] | None = None
    ) -> tuple[np.ndarray, int]:
        """(probabilities [N, C] float64, 0: no text is cut).

        Raises FirthError for no texts, a value that is no text, a pair where the model knows single
        texts (and the reverse), and a reading with a length, windows or packed rows.
        """
        options = {
            "max_length": reading.max_length,
            "long": reading.long != "truncate",
            "packed": reading.packed,
        }
        if named := next((name for name, given in options.items() if given), ""):
            raise FirthError(f"{self.source}: {UNLIKE} {named}; leave it out")
        names = names or [f"text {i}" for i in range(len(texts))]
        parts = parts_of(texts, names)
        for name, part in zip(names, parts, strict=True):
            if len(part) != self.model.texts:
                found, wanted = (("a single text", "pairs of texts"), ("a pair", "single texts"))[
                    len(part) - 1
                ]
                raise FirthError(f"{name} is {found}, but {self.source} was trained on {wanted}")
        return self.model.probabilities(parts), 0

    def digest(self) -> str:
        """A digest of everything that decides the predictions."""
        described = (self.source / files.NAME).read_bytes()  # with the sha256 of the weights
        return hashlib.blake2b(described, digest_size=16).hexdigest()
