"""Weights of classes: scikit-learn's balance, those given by name, and what makes none."""

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from firth.data.labels.class_weights import class_weights
from firth.data.tasks.task import make_task
from firth.errors import FirthError

NAMES = ("bad", "fair", "good")
TASK = make_task("t", "classification", "text", "label", NAMES, (), {"train": "t.csv"})
LABELS = np.random.default_rng(0).choice(3, 70, p=(0.1, 0.2, 0.7))


def test_balanced_is_scikit_learns_formula():
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS)
    np.testing.assert_allclose(class_weights("balanced", TASK, LABELS), expected)
    assert expected[0] > 2 * expected[2]


def test_weights_are_given_by_the_names_of_labels():
    assert class_weights("", TASK, LABELS) == ()
    assert class_weights("good=0.5, bad=3", TASK, None) == (3.0, 1.0, 0.5)
    odd = make_task("t", "classification", "text", "label", ("a=b", "c"), (), {"train": "t.csv"})
    assert class_weights("a=b=2", odd, None) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("god=2", r"'god=2' should read LABEL=WEIGHT, with a label of 'bad', 'fair', 'good'; or"),
        ("balance", "'balance' should read LABEL=WEIGHT"),
        ("bad=0", "'bad=0': expected a weight above 0"),
        ("bad=x", "'bad=x': expected a weight above 0"),
        ("bad=2,good=1,bad=5", "'bad=2,good=1,bad=5': expected each label once"),
        ("bad=inf", "'bad=inf': expected a weight above 0"),
    ],
)
def test_what_is_no_weight_is_refused(written, said):
    with pytest.raises(FirthError, match=said):
        class_weights(written, TASK, LABELS)


def test_a_balance_needs_every_label_and_a_classification():
    with pytest.raises(FirthError, match="train has no example of 'fair'"):
        class_weights("balanced", TASK, [0, 2, 2])
    scores = make_task("s", "regression", "text", "label", (), (), {"train": "t.csv"})
    with pytest.raises(FirthError, match=r"'balanced': task 's' is of kind regression; only"):
        class_weights("balanced", scores, None)
