"""Several labels of a text: what files hold, what is refused, dev splits and constant answers."""

import itertools
import json

import numpy as np
import pytest
from sklearn.metrics import f1_score

from firth.data.labels.multilabel import constant_answer, decided, rarest_labels
from firth.data.submissions.predictions import answers
from firth.data.tasks.buckets import Buckets, Tokenised
from firth.data.tasks.load import custom_task, load_split
from firth.data.tasks.overview import baselines, overview
from firth.data.tasks.split import load_splits
from firth.errors import FirthError

ROWS = [("one", ["b", "a"]), ("two", []), ("three", ["c", "a", "a"]), ("four", ["b"])]
EXPECTED = [[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0]]


def jsonl(tmp_path, *labels, name="train.jsonl"):
    rows = (json.dumps({"text": str(i), "labels": x}) + "\n" for i, x in enumerate(labels))
    (tmp_path / name).write_text("".join(rows))
    return str(tmp_path / name)


def table(tmp_path, mark, name):
    lines = [mark.join((text, " | ".join(labels))) for text, labels in ROWS]
    (tmp_path / name).write_text("\n".join([mark.join(("text", "labels")), *lines, ""]))
    return str(tmp_path / name)


def test_lists_and_separated_labels_are_the_same_task(tmp_path):
    """A list tells its kind; a table says it by data.kind, and then a field is a list."""
    tasks = [custom_task(jsonl(tmp_path, *(labels for _, labels in ROWS)))]
    for mark, name in ((",", "train.csv"), ("\t", "train.tsv")):
        tasks.append(custom_task(table(tmp_path, mark, name), kind="multilabel"))
    for task in tasks:
        assert (task.kind, task.labels) == ("multilabel", ("a", "b", "c"))
        assert task.metrics == ("f1_micro", "f1_macro", "exact_match")
        found = load_split(task, "train")
        np.testing.assert_array_equal(found.labels, EXPECTED)
        assert found.labels.dtype == np.int32
        assert answers(task, found.labels) == ["a|b", "", "a|c", "b"]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ((["a"], "b"), r"train\.jsonl:2: 'labels' is 'b', expected a list of labels"),
        ((["a"], None), r"train\.jsonl:2: 'labels' is None, expected a list"),
        ((["a"], [" "]), r"train\.jsonl:2: 'labels' holds the label ' ', expected a name; .* \[\]"),
        ((["a"], ["b", True]), r"train\.jsonl:2: 'labels' holds the label True"),
        ((["a"], [["b"]]), r"train\.jsonl:2: 'labels' holds the label \['b'\]"),
        (("a", ["b"]), r"train\.jsonl:2: 'labels' is the list \['b'\], and other labels are none"),
        (([], []), "no text has any; expected two or more labels"),
        ((["a"], ["a"]), "every label .* is 'a'; expected two or more labels"),
    ],
)
def test_what_is_no_list_of_labels_is_named_with_its_line(tmp_path, labels, said):
    with pytest.raises(FirthError, match=said):
        custom_task(jsonl(tmp_path, *labels))


def test_a_label_that_train_has_not_is_named_with_its_line(tmp_path):
    train = jsonl(tmp_path, ["a"], ["b"])
    dev = jsonl(tmp_path, ["b"], ["a", "x"], name="dev.jsonl")
    task = custom_task(train, dev)
    said = r"dev\.jsonl:2: label 'x' is not one of 'a', 'b', the labels of the task; correct"
    with pytest.raises(FirthError, match=said):
        load_split(task, "dev")
    empty = custom_task(train, test=table(tmp_path, ",", "t.csv"), kind="multilabel")
    with pytest.raises(FirthError, match=r"t\.csv:4: label 'c' is not one of"):
        load_split(empty, "test")
    (tmp_path / "t.csv").write_text("text,labels\na|b,a||b\n")
    with pytest.raises(FirthError, match=r"t\.csv:2: 'labels' holds the label ''.* an empty field"):
        load_split(empty, "test")


def test_the_dev_split_has_its_share_of_each_label(tmp_path):
    rng = np.random.default_rng(0)
    labels = [
        [n for n, p in zip("abc", (0.5, 0.3, 0.1), strict=True) if rng.random() < p]
        for _ in range(200)
    ]
    splits = load_splits(custom_task(jsonl(tmp_path, *labels)), dev_fraction=0.2)
    assert len(splits["dev"]) == pytest.approx(40, abs=2)
    whole = sum(one.labels.sum(0) for one in splits.values())
    np.testing.assert_allclose(splits["dev"].labels.sum(0) / whole, 0.2, atol=0.08)
    np.testing.assert_array_equal(rarest_labels(np.array(EXPECTED)), [0, 3, 2, 1])


def test_no_constant_answer_is_better_on_train(tmp_path):
    """For micro-F1, of all sets of labels; beside the model's metrics in the report."""
    rng = np.random.default_rng(1)
    for density in (0.08, 0.3, 0.8):
        labels = (rng.random((40, 5)) < density * np.array([1, 0.5, 1.2, 0.1, 0.9])).astype(int)
        answer = constant_answer(labels)

        def f1(answer, labels=labels):
            said = np.tile(answer, (len(labels), 1))
            return f1_score(labels, said, average="micro", zero_division=0)

        best = max(f1(np.array(one)) for one in itertools.product((0, 1), repeat=5))
        assert f1(answer) == pytest.approx(best)
    task = custom_task(jsonl(tmp_path, ["a"], ["a", "b"], ["a"], []), kind="multilabel")
    splits = {name: load_split(task, "train") for name in ("train", "dev")}
    baseline = baselines(task, splits)["dev"]
    assert str(baseline).startswith("constant baseline (always 'a'): f1 micro 0.7500, f1 macro 0.4")
    lines = overview(task, splits, {}, 16, own_dev=True)
    assert "train: 4 examples; 1.00 labels a text, 1 without any; a 3, b 1" in lines


def test_logits_decide_at_one_half_and_must_be_finite():
    np.testing.assert_array_equal(decided(np.array([[0.0, -1e-6], [3.0, -3.0]])), [[1, 0], [1, 0]])
    with pytest.raises(FirthError, match="1 of 2 predictions are not finite, the first at 1"):
        decided(np.array([[0.0, 1.0], [np.nan, 1.0]]))


def test_batches_hold_all_labels_of_each_text():
    labels = np.array(EXPECTED, np.int32)
    texts = [np.arange(1, n + 2) for n in range(4)]
    offsets = np.cumsum([0, *map(len, texts)])
    rows = Tokenised(np.concatenate(texts), offsets, offsets[1:] * 0 + 9, labels, 8, 0, 0, None)
    view = Buckets(rows)
    assert view.fields["labels"] == ((3,), np.dtype(np.int32))
    batch = view.batch(0, 6)
    assert batch["labels"].shape == (6, 3)
    real = batch["weight"] > 0
    np.testing.assert_array_equal(batch["labels"][real], labels[batch["example"][real]])
    assert real.sum() == 4 and not batch["labels"][~real].any()
