"""Texts for small fine-tuned models, and the models."""

import numpy as np
import pytest
from helpers.published.bert import WORDS
from helpers.published.classifiers import LABELS, POSITIONS, Made, labelled, scored

__all__ = ["LABELS", "POSITIONS", "Made", "labelled", "scored"]


@pytest.fixture(scope="session")
def texts():
    """Texts of 1 to 30 words, in an order that no sorting gives; none is cut."""
    rng = np.random.default_rng(0)
    sizes = rng.permutation(np.arange(1, 31))
    return [" ".join(rng.choice(WORDS[5:16], size)) for size in sizes]
