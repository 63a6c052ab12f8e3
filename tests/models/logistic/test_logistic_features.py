"""The features of texts, against lists by hand and scikit-learn's vectorizers."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from firth.errors import FirthError
from firth.models.logistic.features import (
    PATTERN,
    Features,
    idf_of,
    matrix,
    shape_of,
    vocabulary,
    weighted,
)

TEXTS = (
    "A waste of time, and of talent.",
    "It's not  very good; not good\tat all!",
    "McDONALD's iPhone is NOT A good PHONE, is it?",
    "Ça n'est pas mal. 3.5 stars of 5",
    "of of of of time",
)


def counted(features, text):
    return dict(features.of(text))


def test_the_features_of_a_sentence_by_hand():
    features = Features(order=2, gap=3, capitals=True)
    assert counted(features, "Not a GOOD film, not McCoy") == {
        "word:not": 2,
        "word:a": 1,
        "word:good": 1,
        "word:film": 1,
        "word:,": 1,
        "word:mccoy": 1,
        "word:not a": 1,
        "word:a good": 1,
        "word:good film": 1,
        "word:film ,": 1,
        "word:, not": 1,
        "word:not mccoy": 1,
        "gap:not … good": 1,  # distance 2
        "gap:a … film": 1,
        "gap:good … ,": 1,
        "gap:film … not": 1,
        "gap:, … mccoy": 1,
        "gap:not … film": 1,  # distance 3
        "gap:a … ,": 1,
        "gap:good … not": 1,
        "gap:film … mccoy": 1,
        "capitals:INITIAL not": 1,
        "capitals:INITIAL": 1,
        "capitals:ALL good": 1,
        "capitals:ALL": 1,
        "capitals:MIXED mccoy": 1,
        "capitals:MIXED": 1,
    }


def test_the_order_and_the_distance_of_gappy_bigrams():
    features = Features(order=0, gap=2)
    assert counted(features, "good not good not") == {"gap:good … good": 1, "gap:not … not": 1}
    assert counted(Features(order=0, gap=3), "a b c d") == {
        "gap:a … c": 1,
        "gap:b … d": 1,
        "gap:a … d": 1,
    }


def test_apostrophes_stay_in_words_and_other_characters_stand_alone():
    assert counted(Features(order=1), "it's 3.5 (don\u2019t)") == dict.fromkeys(
        ("word:it's", "word:3", "word:.", "word:5", "word:(", "word:don\u2019t", "word:)"), 1
    )


def test_cased_ngrams_and_lower_capitals():
    features = Features(order=1, capitals=True, lower=False)
    assert counted(features, "Good good GOOD") == {
        "word:Good": 1,
        "word:good": 1,
        "word:GOOD": 1,
        "capitals:INITIAL good": 1,
        "capitals:ALL good": 1,
        "capitals:INITIAL": 1,
        "capitals:ALL": 1,
    }


@pytest.mark.parametrize(
    ("word", "shape"),
    [
        *(("good", ""), ("42", ""), (",", ""), ("Good", "INITIAL"), ("I", "INITIAL")),
        *(("I'm", "INITIAL"), ("USA", "ALL"), ("R2D2", "ALL"), ("iPhone", "MIXED")),
        *(("McCoy", "MIXED"), ("Übel", "INITIAL"), ("PCs", "MIXED"), ("don'T", "MIXED")),
    ],
)
def test_shapes(word, shape):
    assert shape_of(word) == shape


def test_the_features_of_a_pair():
    found = Features(order=1).of_texts(("no no cat", "no cat no no dog"))
    assert found == {
        "a word:no": 2,
        "a word:cat": 1,
        "b word:no": 3,
        "b word:cat": 1,
        "b word:dog": 1,
        "both word:no": 2,
        "both word:cat": 1,
    }
    assert Features(order=1).of_texts(("no",)) == {"word:no": 1}


def table(features, least, weighting="counts"):
    found = [features.of_texts((text,)) for text in TEXTS]
    names = vocabulary(found, least)
    counts_NF = matrix(found, {name: i for i, name in enumerate(names)})
    return names, weighted(counts_NF, weighting, idf_of(counts_NF))


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize(
    ("weighting", "make", "options"),
    [
        ("counts", CountVectorizer, {}),
        ("binary", CountVectorizer, {"binary": True}),
        ("tfidf", TfidfVectorizer, {}),
    ],
)
def test_words_are_those_of_scikit_learn(weighting, make, options, least):
    theirs = make(token_pattern=PATTERN, ngram_range=(1, 3), min_df=least, **options)
    expected_NF = theirs.fit_transform(TEXTS)
    names, found_NF = table(Features(order=3), least, weighting)
    assert names == [f"word:{name}" for name in theirs.get_feature_names_out()]
    np.testing.assert_allclose(found_NF.toarray(), expected_NF.toarray(), rtol=1e-12)


def test_characters_are_those_of_scikit_learn():
    theirs = CountVectorizer(analyzer="char", ngram_range=(2, 4))
    expected_NF = theirs.fit_transform([" ".join(text.split()) for text in TEXTS])
    names, found_NF = table(Features(order=0, characters=4), 1)
    assert names == [f"character:{name}" for name in theirs.get_feature_names_out()]
    np.testing.assert_array_equal(found_NF.toarray(), expected_NF.toarray())


def test_texts_without_known_features_are_rows_of_zeros():
    for weighting in ("counts", "binary", "tfidf"):
        found = weighted(matrix([Features().of("")], {"word:a": 0}), weighting, np.ones(1))
        assert found.toarray().tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": -1}, r"model\.order=-1: expected 0"),
        ({"gap": 1}, r"model\.gap=1: two words side by side are a bigram"),
        ({"characters": 3, "characters_from": 4}, r"characters_from=4 is outside 1 \.\. 3"),
        ({"characters": 3, "characters_from": 0}, r"characters_from=0 is outside 1 \.\. 3"),
        ({"order": 0}, "has no features"),
        ({"pattern": "["}, "is no regular expression"),
        ({"pattern": "(a)b"}, "has a group"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(FirthError, match=message):
        Features(**settings)
