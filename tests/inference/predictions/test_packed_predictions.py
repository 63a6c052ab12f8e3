"""Predictions in packed rows: the same, in their order, by one compiled shape."""

import copy
import dataclasses

import numpy as np
import pytest

import firth
from firth.errors import FirthError
from firth.inference.predictions.classifier import Classifier
from firth.inference.predictions.reading import Reading

PLAIN = Reading(batch_size=7)
PACKED = dataclasses.replace(PLAIN, packed=True)


def close(model, texts, **changes):
    classifier = model.encoder.classifier
    plain, packed = (dataclasses.replace(each, **changes) for each in (PLAIN, PACKED))
    expected, cut = classifier(texts, plain)
    found, lost = classifier(texts, packed)
    assert np.ptp(expected, axis=0).min() > 1e-3 and cut == lost
    np.testing.assert_allclose(found, expected, atol=1e-5)
    return cut


def test_labels_scores_and_pairs_are_the_same_in_their_order(labelled, scored, texts):
    close(labelled, texts)
    close(labelled, list(zip(texts[:9], reversed(texts[:9]), strict=True)))
    close(scored, texts)


def test_long_texts_are_cut_or_read_in_windows_alike(labelled, texts):
    assert close(labelled, texts, max_length=12) > 5
    close(labelled, texts, max_length=12, long="average", stride=4)


def test_a_single_and_an_empty_text_are_read(labelled):
    encoder = labelled.encoder
    alone = [encoder.predict(["the cat", ""], packed=each) for each in (False, True)]
    for one, other in zip(*alone, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


def test_one_shape_is_compiled_whatever_the_texts(labelled, texts):
    classifier = Classifier(firth.load(labelled.encoder.saved.source))
    for some in (texts, texts[:11], texts[:1]):
        classifier(some, PACKED)
    program = classifier._packed()
    assert program.made + program.read == 1


def test_models_that_cannot_say_so(labelled):
    """A family that mixes the texts of a row, and pairs that are read in both orders."""
    encoder, classifier = copy.copy(labelled.encoder), copy.copy(labelled.encoder.classifier)
    classifier._objective = dataclasses.replace(classifier._objective, both_orders=True)
    with pytest.raises(
        FirthError, match="packed rows cannot be read in both orders of their pairs"
    ):
        classifier(["the cat"], PACKED)
    spec = encoder.saved.spec | {"family": "gpt"}
    encoder.saved = dataclasses.replace(encoder.saved, spec=spec)
    classifier.encoder = encoder
    with pytest.raises(FirthError, match=r"model\.family='gpt' cannot read packed rows"):
        classifier(["the cat"], PACKED)
