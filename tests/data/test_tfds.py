"""TFDS is not a test dependency: a small module with its interface stands in for it.

The names, feature names, class names and the -1 of hidden labels are those of TFDS's own `glue`,
`imdb_reviews` builders (tensorflow_datasets/text/glue.py and imdb.py).
"""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from firth.data.tasks import get_task, load_split
from firth.errors import FirthError


def classes(*names):
    return SimpleNamespace(names=list(names))


TEXT, NUMBER = SimpleNamespace(), SimpleNamespace()  # features without names
PAIR = {"sentence1": TEXT, "sentence2": TEXT, "idx": NUMBER}


def pair(idx, label, a="sentence1", b="sentence2"):
    kind = np.float32 if isinstance(label, float) else np.int64
    return {a: b"a%d" % idx, b: b"b%d" % idx, "idx": np.int32(idx), "label": kind(label)}


DATASETS = {  # name -> (features, supervised keys, split -> records as tfds.as_numpy gives them)
    "glue/rte": (
        {**PAIR, "label": classes("entailment", "not_entailment")},
        None,
        {
            "train": [pair(2, 1), pair(0, 0), pair(1, 1)],  # stored in shuffled order
            "validation": [pair(0, 1)],
            "test": [pair(1, -1), pair(0, -1)],
        },
    ),
    "glue/mnli": (
        {
            **{"premise": TEXT, "hypothesis": TEXT, "idx": NUMBER},
            "label": classes("entailment", "neutral", "contradiction"),
        },
        None,
        {
            "train": [pair(0, 2, "premise", "hypothesis")],
            "validation_matched": [pair(0, 1, "premise", "hypothesis")],
            "validation_mismatched": [pair(0, 0, "premise", "hypothesis")],
            "test_matched": [pair(0, -1, "premise", "hypothesis")],
        },
    ),
    "glue/mrpc": (
        {**PAIR, "label": classes("equivalent", "not_equivalent")},  # order changed on purpose
        None,
        {"train": [pair(0, 0), pair(1, 1)]},
    ),
    "glue/stsb": (
        {**PAIR, "label": NUMBER},
        None,
        {"train": [pair(0, 3.25)], "test": [pair(0, -1.0)]},
    ),
    "imdb_reviews": (
        {"text": TEXT, "label": classes("neg", "pos")},
        ("text", "label"),
        {
            "train": [
                {"text": "Café".encode(), "label": np.int64(1)},
                {"text": b"bad", "label": np.int64(0)},
            ],
            "test": [{"text": b"ok", "label": np.int64(1)}],
            "unsupervised": [{"text": b"hm", "label": np.int64(-1)}],
        },
    ),
}


@pytest.fixture
def tfds(monkeypatch):
    class DatasetNotFoundError(ValueError):
        pass

    class Builder:
        def __init__(self, name, data_dir):
            if name not in DATASETS:
                raise DatasetNotFoundError(f"\nDataset {name} not found.\nSee ...")
            features, keys, self.splits = DATASETS[name]
            self.info = SimpleNamespace(
                features=features, supervised_keys=keys, splits=dict.fromkeys(self.splits)
            )
            self.prepared = False
            module.data_dirs.append(data_dir)

        def download_and_prepare(self):
            self.prepared = True

        def as_dataset(self, split):
            assert self.prepared
            return SimpleNamespace(records=self.splits[split.split("[")[0]])

    module = ModuleType("tensorflow_datasets")
    module.builder = lambda name, data_dir=None: Builder(name, data_dir)
    module.as_numpy = lambda dataset: iter(dataset.records)
    module.core = SimpleNamespace(DatasetNotFoundError=DatasetNotFoundError)
    module.data_dirs = []
    tensorflow = ModuleType("tensorflow")
    tensorflow.hidden = []
    tensorflow.config = SimpleNamespace(
        set_visible_devices=lambda devices, kind: tensorflow.hidden.append((devices, kind))
    )
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    return module


def test_glue_comes_in_the_order_of_its_index(tfds):
    task = get_task("tfds:glue/rte")
    assert task.labels == ("entailment", "not_entailment")
    assert task.files == {"train": "train", "dev": "validation", "test": "test"}
    examples = load_split(task, "train", "/somewhere")
    assert examples.texts_a == ["a0", "a1", "a2"] and examples.texts_b == ["b0", "b1", "b2"]
    assert examples.labels.tolist() == [0, 1, 1] and examples.rows.tolist() == [0, 1, 2]
    assert tfds.data_dirs == [None, "/somewhere"]
    assert load_split(task, "test").labels is None


def test_mnli_has_two_dev_splits_and_its_own_feature_names(tfds):
    task = get_task("tfds:glue/mnli")
    assert task.dev_splits == ("dev_matched", "dev_mismatched")
    labels = [load_split(task, s).labels.tolist() for s in ("train", *task.dev_splits)]
    assert labels == [[2], [1], [0]]
    assert load_split(task, "train").texts_b == ["b0"]


def test_labels_are_mapped_by_name_not_by_index(tfds):
    task = get_task("tfds:glue/mrpc")
    assert task.labels == ("0", "1") and task.metrics == ("f1", "accuracy")
    assert load_split(task, "train").labels.tolist() == [1, 0]


def test_stsb_is_regression(tfds):
    task = get_task("tfds:glue/stsb")
    assert (task.kind, task.limits, task.main_metric) == ("regression", (0.0, 5.0), "pearson")
    labels = load_split(task, "train").labels
    assert labels.dtype == np.float32 and labels.tolist() == [3.25]
    assert load_split(task, "test").labels is None


def test_any_dataset_with_supervised_keys(tfds):
    files = {"train": "train[:50%]", "dev": "test"}
    task = get_task("tfds:imdb_reviews", files=files)
    assert (task.text_columns, task.labels) == (("text",), ("neg", "pos"))
    examples = load_split(task, "train")
    assert examples.texts_a == ["Café", "bad"] and examples.labels.tolist() == [1, 0]
    assert load_split(task, "dev").labels.tolist() == [1]
    assert set(get_task("tfds:imdb_reviews").files) == {"train", "test"}


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("tfds:glue/none", {}, "tfds:glue/none: TFDS knows no such dataset .*not found"),
        ("tfds:imdb_reviews", {"label": "stars"}, "no column 'stars'; there are: 'text', 'label'"),
    ],
)
def test_unknown_names(tfds, name, options, said):
    with pytest.raises(FirthError, match=said):
        get_task(name, **options)


def test_unknown_splits_and_features(tfds):
    task = get_task("tfds:imdb_reviews", files={"dev": "validation"}, text="review")
    with pytest.raises(FirthError, match="no split 'validation'; there are: 'train', 'test'"):
        load_split(task, "dev")
    task = get_task("tfds:imdb_reviews", text="review")
    with pytest.raises(FirthError, match="no column 'review'; there are: 'text', 'label'"):
        load_split(task, "train")


def test_without_tfds_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(FirthError, match=r'tfds:glue/sst2 needs .*pip install "firth\[tf\]"'):
        get_task("tfds:glue/sst2")


def test_tensorflow_leaves_the_accelerator_to_jax(tfds):
    get_task("tfds:imdb_reviews")
    assert sys.modules["tensorflow"].hidden == [([], "GPU")]
