"""The model against scikit-learn's pipeline and numpy, and its files."""

import itertools
import json
import logging

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from firth.errors import FirthError
from firth.models.logistic import files
from firth.models.logistic.features import PATTERN, Features, matrix, vocabulary
from firth.models.logistic.model import Logistic, check_weighting, fit

WORDS = ["a", "waste", "joy", "of", "time", "film", "not", "good", "bad", "plot", "the", "actors"]


def made(classes, seed=0):
    """(texts, labels int [N]) whose label is in some of the words."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, 60)
    texts = [" ".join([*rng.choice(WORDS, rng.integers(2, 9)), WORDS[label]]) for label in labels]
    return texts, labels


def fitted(texts, labels, classes, l2=0.5):
    features = Features(order=2)
    found = [features.of_texts((text,)) for text in texts]
    names = vocabulary(found, 2)
    inputs_NF = matrix(found, {name: i for i, name in enumerate(names)})
    weights_CF, biases_C = fit(inputs_NF, labels, classes, l2, 1000)
    labelled = tuple(f"label {c}" for c in range(classes))
    return Logistic(features, 1, "counts", names, labelled, weights_CF, biases_C)


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_those_of_scikit_learns_pipeline(classes):
    texts, labels = made(classes)
    theirs = make_pipeline(
        CountVectorizer(token_pattern=PATTERN, ngram_range=(1, 2), min_df=2),
        LogisticRegression(C=2.0, max_iter=1000),
    ).fit(texts, labels)
    new, _ = made(classes, seed=1)
    new.append("nothing known here")
    found_NC = fitted(texts, labels, classes).probabilities([(text,) for text in new])
    np.testing.assert_allclose(found_NC, theirs.predict_proba(new), rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_minimum_has_no_gradient(classes):
    """Of the sum of log losses plus l2 / 2 times the squares, without the biases; by hand."""
    texts, labels = made(classes)
    model = fitted(texts, labels, classes, l2=0.5)
    inputs_NF = model.inputs([(text,) for text in texts]).toarray()
    errors_NC = model.probabilities([(text,) for text in texts]) - np.eye(classes)[labels]
    # One weight decides between two labels; half of it each has twice the penalty's gradient.
    penalty = 0.5 * model.weights * (2 if classes == 2 else 1)
    np.testing.assert_allclose(errors_NC.T @ inputs_NF, -penalty, atol=1e-2)
    np.testing.assert_allclose(errors_NC.sum(0), 0, atol=1e-2)


def test_a_label_without_texts_has_no_probability():
    texts, labels = made(2)
    model = fitted(texts, 2 * labels, 3)  # labels 0 and 2
    found_NC = model.probabilities([(text,) for text in texts])
    expected_NC = fitted(texts, labels, 2).probabilities([(text,) for text in texts])
    assert (found_NC[:, 1] == 0).all()
    np.testing.assert_allclose(found_NC[:, [0, 2]], expected_NC, rtol=1e-9)


def test_too_few_iterations_are_said(caplog):
    texts, labels = made(3)
    with caplog.at_level(logging.WARNING, "firth"):
        fit(matrix([Features().of(t) for t in texts], {"word:a": 0}), labels, 3, 1e-3, 1)
    assert "l2=0.001: 1 iterations end before the minimum" in caplog.text


def test_the_heaviest_features():
    weights = np.array([[0.5, 2.0, -1.0], [0.0, -3.0, 0.25]])
    model = Logistic(Features(), 1, "counts", ["x", "y", "z"], ("no", "yes"), weights, np.zeros(2))
    assert model.heaviest(2) == {"no": [("y", 2.0), ("x", 0.5)], "yes": [("z", 0.25)]}
    assert model.heaviest(1)["no"] == [("y", 2.0)]


def test_a_saved_model_is_the_softmax_of_its_weights(tmp_path):
    texts, labels = made(3)
    model = fitted(texts, labels, 3)
    files.save(model, tmp_path, l2=0.5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "logistic.safetensors",
        "model.json",
    ]
    tensors = load_file(tmp_path / "logistic.safetensors")
    names = tensors["names"].tobytes().decode().split("\n")
    text = "the film not good a joy"
    words = text.split()
    has = {f"word:{w}" for w in words}
    has |= {f"word:{a} {b}" for a, b in itertools.pairwise(words)}
    z_C = tensors["weights"] @ np.array([float(name in has) for name in names]) + tensors["biases"]
    expected_C = np.exp(z_C) / np.exp(z_C).sum()
    loaded = files.load(tmp_path)
    assert loaded.labels == ("label 0", "label 1", "label 2")
    np.testing.assert_allclose(loaded.probabilities([(text,)])[0], expected_C, rtol=1e-12)
    assert (loaded.probabilities([(text,)]) == model.probabilities([(text,)])).all()
    assert json.loads((tmp_path / "model.json").read_text())["model"]["l2"] == 0.5


def test_idf_and_settings_come_back(tmp_path):
    features = Features(order=1, gap=2, capitals=True, characters=3, lower=False)
    arrays = np.ones((2, 1)), np.zeros(2), np.array([1.5])
    files.save(Logistic(features, 2, "tfidf", ["word:… é"], ("a", "b"), *arrays), tmp_path)
    found = files.load(tmp_path)
    assert (found.features, found.texts, found.weighting) == (features, 2, "tfidf")
    assert found.names == ["word:… é"] and found.idf.tolist() == [1.5]


def test_damaged_files(tmp_path):
    texts, labels = made(2)
    files.save(fitted(texts, labels, 2), tmp_path)
    described = (tmp_path / "model.json").read_text()
    for text, message in (
        (described.replace('"logistic"', '"ngram"'), "does not describe a logistic regression"),
        (described.replace('"firth": 1', '"firth": 9'), "of version 1"),
        (described.replace('"gap"', '"gup"'), "model.json is damaged"),
        (described.replace('"labels"', '"lables"'), "model.json is damaged"),
    ):
        (tmp_path / "model.json").write_text(text)
        with pytest.raises(FirthError, match=message):
            files.load(tmp_path)
    (tmp_path / "model.json").write_text(described)
    data = bytearray((tmp_path / "logistic.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "logistic.safetensors").write_bytes(data)
    with pytest.raises(FirthError, match=r"its sha256 is not that in model\.json"):
        files.load(tmp_path)


def test_an_unknown_weighting():
    check_weighting("tfidf")
    with pytest.raises(FirthError, match=r"model\.weighting='idf' is unknown; choose counts"):
        check_weighting("idf")
