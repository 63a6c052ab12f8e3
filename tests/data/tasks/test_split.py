"""A dev split made from train: nothing is lost, nothing is in both, labels keep their share."""

import collections

import numpy as np
import pytest

from firth.data.tasks.load import custom_task
from firth.data.tasks.split import groups_of, load_splits, split_off
from firth.data.tasks.task import Examples, make_task
from firth.errors import FirthError


def made(labels, texts_a=None, texts_b=None, kind="classification"):
    """Examples with these labels (strings or scores) and texts, each different unless given."""
    names = tuple(sorted(set(labels))) if kind == "classification" else ()
    columns = "text" if texts_b is None else ("one", "two")
    task = make_task("mine", kind, columns, "label", names, (), {"train": "train.csv"})
    numbers = [names.index(label) for label in labels] if names else labels
    dtype = np.int32 if names else np.float32
    rows = np.arange(2, len(labels) + 2)
    texts_a = texts_a or [f"text {i}" for i in range(len(labels))]
    return Examples(task, "train.csv", texts_a, texts_b, np.array(numbers, dtype), rows)


def counts(examples):
    return collections.Counter(examples.labels.tolist())


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_every_label_has_its_share_and_every_row_is_in_one_split(fraction):
    rng = np.random.default_rng(0)
    examples = made(rng.choice(list("abc"), 700, p=[0.6, 0.3, 0.1]).tolist())
    train, dev = split_off(examples, fraction)
    rows = np.concatenate([train.rows, dev.rows])
    assert sorted(rows.tolist()) == examples.rows.tolist()
    for label, count in counts(examples).items():
        assert abs(counts(dev)[label] - fraction * count) <= 1
    for part in (train, dev):  # what belongs together stays together, in the order of the file
        assert part.rows.tolist() == sorted(part.rows.tolist())
        assert part.texts_a == [f"text {row - 2}" for row in part.rows]
        assert part.labels.tolist() == examples.labels[part.rows - 2].tolist()


def test_the_split_is_random_and_always_the_same():
    examples = made(["x", "y"] * 200)
    dev = split_off(examples, 0.2)[1].rows
    assert dev.tolist() == split_off(examples, 0.2)[1].rows.tolist()
    thirds = np.histogram(dev, bins=4, range=(2, 402))[0]
    assert len(dev) == 80 and thirds.min() >= 10, "dev is not one end of the file"


def test_no_text_is_in_both_however_it_is_spelled():
    words = ["Good film", "good  film ", "GOOD FILM", "bad film", "so so"]
    rng = np.random.default_rng(1)
    texts = [
        words[i] if i < len(words) else f"t {i}" for i in rng.integers(0, 60, size=400).tolist()
    ]
    train, dev = split_off(made([str(i % 2) for i in range(400)], texts), 0.2)
    spelled = [{" ".join(t.lower().split()) for t in part.texts_a} for part in (train, dev)]
    assert not spelled[0] & spelled[1] and all(spelled)
    assert abs(len(dev) - 80) < 15


def test_pairs_that_share_a_text_stay_together():
    """Three hypotheses a premise, as in SNLI; and a hypothesis that two premises share."""
    premises = [f"premise {i // 3}" for i in range(300)]
    hypotheses = [f"hypothesis {i}" for i in range(300)]
    hypotheses[3] = hypotheses[0]
    examples = made([str(i % 3) for i in range(300)], premises, hypotheses)
    groups = groups_of(examples)
    assert len(set(groups.tolist())) == 99 and len(set(groups[:6].tolist())) == 1
    train, dev = split_off(examples, 0.2)
    texts = [{*part.texts_a, *part.texts_b} for part in (train, dev)]
    assert not texts[0] & texts[1]
    assert 50 < len(dev) < 70 and len(counts(dev)) == 3


def test_where_all_pairs_share_texts_equal_pairs_alone_stay_together(caplog):
    caplog.set_level("INFO", "firth")
    questions = ["Is it true?"] * 100
    answers = [f"answer {i // 2}" for i in range(100)]
    train, dev = split_off(made(["y", "n"] * 50, questions, answers), 0.2)
    assert not set(train.texts_b) & set(dev.texts_b) and len(dev) == 20
    assert "most pairs share texts" in caplog.text


def test_rare_labels_add_up():
    """Fifty labels of four examples: a tenth is less than one of each, but of all it is twenty."""
    labels = [f"{i % 50:02d}" for i in range(200)]
    train, dev = split_off(made(labels), 0.1)
    assert abs(len(dev) - 20) <= 1 and max(counts(dev).values()) == 1
    assert len(counts(train)) == 50, "no label is left to dev alone"


def test_scores_are_alike_in_both():
    rng = np.random.default_rng(2)
    examples = made(rng.exponential(size=1000).tolist(), kind="regression")
    _, dev = split_off(examples, 0.1)
    assert len(dev) == 100
    for share in (0.1, 0.5, 0.9):
        whole, part = (np.quantile(e.labels, share) for e in (examples, dev))
        assert abs((examples.labels < part).mean() - (examples.labels < whole).mean()) < 0.06


@pytest.mark.parametrize(
    ("labels", "texts"),
    [(["a", "b"], None), (["a", "a", "b", "b"], ["same"] * 4), (["a", "b", "c"], None)],
)
def test_what_cannot_be_divided_is_refused(labels, texts):
    """One example of each label stays in train, however large the fraction is."""
    with pytest.raises(FirthError, match=r"train\.csv: no dev split .*--config\.data\.dev=FILE"):
        split_off(made(labels, texts), 0.6)


def test_a_dev_file_of_ones_own_is_left_alone(tmp_path):
    for name, rows in (("train", 20), ("dev", 6)):
        lines = "".join(f"{name} {i},{'xy'[i % 2]}\n" for i in range(rows))
        (tmp_path / f"{name}.csv").write_text("text,label\n" + lines)
    own = custom_task("train.csv", "dev.csv", directory=str(tmp_path))
    splits = load_splits(own, str(tmp_path), 0.5)
    assert [(name, len(e)) for name, e in splits.items()] == [("train", 20), ("dev", 6)]
    task = custom_task("train.csv", test="dev.csv", directory=str(tmp_path))
    splits = load_splits(task, str(tmp_path), 0.2)
    assert [(name, len(e)) for name, e in splits.items()] == [
        ("train", 16),
        ("dev", 4),
        ("test", 6),
    ]
    for fraction in (0.0, 1.0, -0.1):
        with pytest.raises(FirthError, match=r"no dev split and data\.dev_fraction="):
            load_splits(task, str(tmp_path), fraction)
