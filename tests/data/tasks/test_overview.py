"""What is said of labelled examples before a run, against scikit-learn and a count by hand."""

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import f1_score, mean_squared_error

from firth.data.tasks.overview import baselines, overview
from firth.data.tasks.task import Examples, make_task


def made(task, labels, source="train.csv"):
    texts = ["text"] * (3 if labels is None else len(labels))
    dtype = np.float32 if task.kind == "regression" else np.int32
    labels = None if labels is None else np.array(labels, dtype)
    return Examples(task, source, texts, None, labels, np.arange(len(texts)))


def test_the_baseline_is_that_of_a_dummy_classifier():
    metrics = ("accuracy", "f1_macro")
    task = make_task("mine", "classification", "text", "label", ("a", "b", "c"), metrics, {})
    rng = np.random.default_rng(0)
    labels = {"train": rng.choice(3, 90, p=[0.2, 0.5, 0.3]), "dev": rng.choice(3, 40), "test": None}
    found = baselines(task, {name: made(task, y) for name, y in labels.items()})
    dummy = DummyClassifier(strategy="most_frequent").fit(np.zeros((90, 1)), labels["train"])
    guess = dummy.predict(np.zeros((40, 1)))
    assert found.keys() == {"dev"}
    assert str(found["dev"]).startswith("majority baseline (always 'b'): accuracy 0.")
    assert found["dev"].metrics["accuracy"] == dummy.score(np.zeros((40, 1)), labels["dev"])
    f1 = f1_score(labels["dev"], guess, average="macro")
    assert found["dev"].metrics["f1_macro"] == pytest.approx(f1)


def test_that_of_scores_is_the_error_of_the_mean():
    task = make_task("mine", "regression", "text", "score", (), (), {})
    rng = np.random.default_rng(0)
    train, dev = (rng.normal(2, 1, size=size).astype(np.float32) for size in (50, 20))
    found = baselines(task, {"train": made(task, train), "dev": made(task, dev)})["dev"]
    dummy = DummyRegressor().fit(np.zeros((50, 1)), train)
    error = mean_squared_error(dev, dummy.predict(np.zeros((20, 1))))
    assert found.metrics == {"task_loss": pytest.approx(error, rel=1e-5)}


def test_the_lines_are_a_count_by_hand():
    task = make_task("mine", "classification", ("one", "two"), "label", ("no", "yes"), (), {})
    splits = {
        "train": made(task, [0, 1, 1, 1], "mine.csv"),
        "dev": made(task, [0, 1], "mine.csv"),
        "test": made(task, None, "test.csv"),
    }
    lines = overview(task, splits, {"train": 1, "dev": 0, "test": 3}, 32, own_dev=False)
    assert lines == [
        "classification of 'one' and 'two' by 'label' (mine.csv)",
        "train: 4 examples; yes 3, no 1",
        "dev: 2 examples, split off train; no 1, yes 1",
        "test: 3 examples; without labels",
        "dev: majority baseline (always 'yes'): accuracy 0.5000",
        "longer than 32 tokens, so truncated: 25.0% of train, 0.0% of dev, 100.0% of test",
    ]
    assert overview(task, splits, {}, 32, own_dev=True)[2] == "dev: 2 examples; no 1, yes 1"


def test_many_labels_are_not_all_listed_and_numbers_may_be_scores():
    names = tuple(map(str, range(30)))
    task = make_task("mine", "classification", "text", "label", names, (), {})
    lines = overview(task, {"train": made(task, [7, 7, *range(30)])}, {"train": 0}, 8, True)
    assert lines[1].endswith("7 3, 0 1, 1 1, 2 1, 3 1, 4 1, 5 1, 6 1 and 22 more with 22")
    assert "--config.data.kind=regression" in lines[2]


def test_scores_are_told_by_their_range():
    task = make_task("mine", "regression", "text", "label", (), (), {})
    lines = overview(task, {"train": made(task, [0.5, 2.5])}, {"train": 0}, 8, True)
    assert lines[:2] == [
        "regression of 'text' by 'label' (train.csv)",
        "train: 2 examples; scores from 0.5 to 2.5, mean 1.5",
    ]
