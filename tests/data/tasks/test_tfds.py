"""Tasks from real datasets of TFDS, prepared here without a network.

GLUE's are written by TFDS's own builder from TSV files as GLUE distributes them, and compared with
what Firth reads from the same files itself.
"""

import re
import sys

import numpy as np
import pytest
from helpers import datasets
from helpers.datasets import REVIEWS, SCORES, tfds

from firth.data.tasks.load import get_task, load_split
from firth.data.tasks.task import GLUE
from firth.errors import FirthError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    datasets.prepare_reviews(folder)
    datasets.prepare_scores(folder)
    return str(folder)


def loaded(task, split, folder):
    """{texts: label} of a split, None for a hidden label; TFDS stores examples in its own order."""
    examples = load_split(task, split, folder)
    texts = zip(examples.texts_a, examples.texts_b or examples.texts_a, strict=True)
    labels = [None] * len(examples) if examples.labels is None else examples.labels.tolist()
    assert examples.rows.tolist() == list(range(len(examples)))
    return sorted(zip(texts, labels, strict=True), key=str)


def test_classification_by_supervised_keys(folder):
    task = get_task("tfds:made_reviews", directory=folder)
    assert (task.text_columns, task.label_column) == (("text",), "label")
    assert (task.kind, task.labels, task.metrics) == (
        "classification",
        ("neg", "pos"),
        ("accuracy",),
    )
    assert task.files == {"train": "train", "test": "test"}
    written = sorted((((text, text), label) for text, label in REVIEWS["train"]), key=str)
    assert loaded(task, "train", folder) == written
    assert load_split(task, "train", folder).labels.dtype == np.int32
    assert [label for _, label in loaded(task, "test", folder)] == [None] * 3


def test_pairs_and_regression(folder):
    task = get_task("tfds:made_scores", text=("first", "second"), label="score", directory=folder)
    assert (task.kind, task.labels, task.metrics) == ("regression", (), ("pearson", "spearman"))
    assert task.files == {"train": "train", "dev": "validation", "test": "test"}
    for ours, theirs in task.files.items():
        hidden = theirs == "test"  # a score of -1
        written = (((a, b), None if hidden else float(score)) for a, b, score in SCORES[theirs])
        assert loaded(task, ours, folder) == sorted(written, key=str)
    assert load_split(task, "train", folder).labels.dtype == np.float32


def test_slices_of_splits(folder):
    files = {"train": "train[:50%]", "dev": "train[50%:]"}
    task = get_task("tfds:made_reviews", files=files, directory=folder)
    assert task.files == {"train": "train[:50%]", "dev": "train[50%:]", "test": "test"}
    halves = [loaded(task, split, folder) for split in ("train", "dev")]
    whole = loaded(get_task("tfds:made_reviews", directory=folder), "train", folder)
    assert [len(half) for half in halves] == [6, 6]
    assert sorted(halves[0] + halves[1], key=str) == whole


def row(task, split, n):
    """Row n of a GLUE table; texts and labels tell rows, columns and splits apart."""
    values = {column: f'{column} {split} "{n}' for column in task.headers.get(split, ())}
    if not values:
        values = {"index": n} | {column: f'{column} {split} "{n}' for column in task.text_columns}
    if not split.startswith("test"):
        score = f"{n * 0.75:.2f}"
        values[task.label_column] = task.labels[n * n % len(task.labels)] if task.labels else score
    elif task.name == "cola":  # the only test file whose text column has another place
        values = {"index": n, "sentence": values["sentence"]}
    return values


@pytest.mark.parametrize("name", ["cola", "sst2", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"])
def test_glue_is_what_its_own_files_say(name, tmp_path):
    """Texts, labels and the order of rows; test sets hide their labels as -1."""
    task = GLUE[name]
    datasets.write_tables(tmp_path, task, lambda split, n: row(task, split, n))
    datasets.prepare_glue(tmp_path / "tfds", name, tmp_path)
    ours = get_task(f"tfds:glue/{name}", directory=str(tmp_path / "tfds"))
    same = ("kind", "metrics", "labels", "names", "limits")
    assert [getattr(ours, field) for field in same] == [getattr(task, field) for field in same]
    assert ours.dev_splits == task.dev_splits and ours.files.keys() == task.files.keys()
    for split in task.files:
        one = load_split(task, split, str(tmp_path))
        other = load_split(ours, split, str(tmp_path / "tfds"))
        assert one.texts_a == other.texts_a and one.texts_b == other.texts_b
        assert other.rows.tolist() == list(range(5))
        if split.startswith("test"):
            assert one.labels is None and other.labels is None
        else:
            assert one.labels.tolist() == other.labels.tolist()
            assert one.labels.dtype == other.labels.dtype


def test_glue_builders_call_features_and_labels_as_tasks_expect(tmp_path):
    """MRPC too, which TFDS makes from other files than GLUE's."""
    features = tfds.features.FeaturesDict
    for name, task in GLUE.items():
        info = datasets.Glue(config=name, data_dir=str(tmp_path)).info
        assert isinstance(info.features, features) and "idx" in info.features
        label = info.features["label"]
        assert tuple(getattr(label, "names", ())) == (task.names or task.labels)


def test_mrpc_comes_from_the_files_that_it_is_made_of(tmp_path):
    """TFDS draws its development set from the training file, by a list of numbers."""
    rows = [(n % 2, f"{n}0", f"{n}1", f"a {n}", f"b {n}") for n in range(6)]
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    lines = ["\ufeff" + header, *("\t".join(map(str, row)) for row in rows)]
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "MRPC" / "dev_ids.tsv").write_text("10\t11\n40\t41\n")
    (tmp_path / "MRPC" / "test.txt").write_text("\n".join([header, *lines[3:5]]))
    datasets.prepare_glue(tmp_path / "tfds", "mrpc", tmp_path)
    folder = str(tmp_path / "tfds")
    task = get_task("tfds:glue/mrpc", directory=folder)
    assert task.labels == ("0", "1") and task.metrics == ("f1", "accuracy")
    for split, numbers in (("train", [0, 2, 3, 5]), ("dev", [1, 4]), ("test", [2, 3])):
        examples = load_split(task, split, folder)
        assert examples.texts_a == [f"a {n}" for n in numbers]
        assert examples.texts_b == [f"b {n}" for n in numbers]
        if split == "test":
            assert examples.labels is None
        else:
            assert examples.labels.tolist() == [n % 2 for n in numbers]
            assert examples.rows.tolist() == numbers


def test_an_idx_that_is_no_number_is_no_row(tmp_path):
    features = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(num_classes=2)}
    features["idx"] = {"paragraph": np.int32}
    rows = [dict(text=f"t{n}", label=n % 2, idx=dict(paragraph=9 - n)) for n in range(4)]
    datasets.prepare(tmp_path, "MadeIndexed", features, {"train": rows}, ("text", "label"))
    task = get_task("tfds:made_indexed", directory=str(tmp_path))
    assert task.labels == ("0", "1"), "classes without names are called by their numbers"
    assert [texts[0] for texts, _ in loaded(task, "train", str(tmp_path))] == [
        "t0",
        "t1",
        "t2",
        "t3",
    ]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("none_such", {}, "TFDS knows no such dataset, and none lies prepared in .*data.dir"),
        ("made_reviews:9.0.0", {}, "TFDS knows no such dataset"),
        ("glue/none", {}, "tfds:glue/none: .*none"),
        ("made_reviews", {"label": "stars"}, "no column 'stars'; there are: 'label', 'text'"),
        ("made_scores", {}, "give text= and label=; there are: 'first', 'score', 'second'"),
    ],
)
def test_unknown_names(folder, name, options, said):
    with pytest.raises(FirthError, match=said):
        get_task(f"tfds:{name}", directory=folder, **options)


@pytest.mark.parametrize("split", ["validation", "train[:50", "train[9%"])
def test_unknown_splits(folder, split):
    task = get_task("tfds:made_reviews", files={"dev": split}, directory=folder)
    said = f"no split {re.escape(repr(split))}; there are: 'train', 'test'"
    with pytest.raises(FirthError, match=said):
        load_split(task, "dev", folder)


def test_unknown_features(folder):
    task = get_task("tfds:made_reviews", text="review", directory=folder)
    with pytest.raises(FirthError, match="no column 'review'; there are: 'label', 'text'"):
        load_split(task, "train", folder)


def test_what_is_not_there_is_made_and_else_the_error_says_how(tmp_path, caplog):
    """By builders that TFDS knows, of which one finds no network. Both say what they begin."""
    caplog.set_level("INFO", "firth")
    features = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=["n", "p"])}
    rows = {"train": [dict(text="t", label="p")]}
    datasets.make_builder("MadeNow", features, rows, ("text", "label"), registered=True)
    task = get_task("tfds:made_now", directory=str(tmp_path))
    assert loaded(task, "train", str(tmp_path)) == [(("t", "t"), 1)]
    far = datasets.make_builder("MadeFar", features, rows, ("text", "label"), registered=True)

    def download(self, downloads):
        raise ConnectionError("no route to host\nretried 9 times")

    far._split_generators = download
    with pytest.raises(FirthError) as caught:
        get_task("tfds:made_far", directory=str(tmp_path))
    said = str(caught.value)
    assert f"could not be downloaded into {tmp_path} (no route to host); " in said
    begun = [line for line in caplog.messages if "downloading it" in line]
    assert [line.split()[0] for line in begun] == ["tfds:made_now", "tfds:made_far"]
    assert f"`tfds build made_far --data_dir {tmp_path}`" in said and "data.dir" in said


@pytest.mark.parametrize("missing", ["tensorflow", "tensorflow_datasets"])
def test_without_tfds_the_error_says_what_to_install(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(FirthError, match=r'tfds:glue/sst2 needs .*pip install "firth\[tf\]"'):
        get_task("tfds:glue/sst2")
