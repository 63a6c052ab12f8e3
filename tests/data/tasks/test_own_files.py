"""Files of one's own: columns, labels and their kind are found, and what is wrong is named."""

import json

import pytest

from firth.data.tasks.load import custom_task, get_task, load_split
from firth.data.tasks.tables import read_header
from firth.errors import FirthError


def written(tmp_path, text, name="train.csv"):
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


@pytest.mark.parametrize(
    ("header", "text", "label"),
    [
        ("text,label", ("text",), "label"),
        ("id,Review,Stars", ("Review",), "Stars"),
        ("label,sentence1,sentence2", ("sentence1", "sentence2"), "label"),
        ("premise,hypothesis,gold_label", ("premise", "hypothesis"), "gold_label"),
    ],
)
def test_columns_are_found_by_their_names(tmp_path, header, text, label):
    row = ",".join("ab"[i % 2] for i in range(header.count(",") + 1))
    other = ",".join("ba"[i % 2] for i in range(header.count(",") + 1))
    task = custom_task(written(tmp_path, f"{header}\n{row}\n{other}\n"))
    assert (task.text_columns, task.label_column) == (text, label)
    assert (task.name, task.kind, task.labels) == ("custom", "classification", ("a", "b"))


def test_a_named_label_leaves_the_other_column_to_the_text(tmp_path):
    path = written(tmp_path, "text,score,mood\na,1,x\nb,2,y\n")
    task = custom_task(path, label="mood")
    assert (task.text_columns, task.label_column, task.labels) == (("text",), "mood", ("x", "y"))
    assert custom_task(path).label_column == "score"
    task = custom_task(written(tmp_path, "a,b\nx,y\nz,w\n"), label="a")
    assert (task.text_columns, task.label_column) == (("b",), "a")


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        ("0.5 1.25 3", "regression", ()),
        ("-2.5 0 7e-1", "regression", ()),
        ("1 2 10", "classification", ("1", "2", "10")),
        ("1.0 0.0 1.0", "classification", ("0.0", "1.0")),
        ("1.5 none 2.5", "classification", ("1.5", "2.5", "none")),
        ("0.5 nan 1.5", "classification", ("0.5", "1.5", "nan")),
    ],
)
def test_labels_say_whether_they_are_classes_or_scores(tmp_path, labels, kind, names):
    rows = "".join(f"text {i},{label}\n" for i, label in enumerate(labels.split()))
    task = custom_task(written(tmp_path, "text,label\n" + rows))
    assert (task.kind, task.labels) == (kind, names)
    forced = custom_task(written(tmp_path, "text,label\n" + rows), kind="classification")
    assert forced.kind == "classification" and len(forced.labels) == len(set(labels.split()))


def test_values_of_json_are_labels_too(tmp_path):
    def task(*labels):
        rows = [{"text": str(i), "label": label} for i, label in enumerate(labels)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        return custom_task(written(tmp_path, lines, "train.jsonl"))

    assert task(1, -2.5).kind == "regression" and task(1, 2, 1).labels == ("1", "2")
    assert task(True, False).labels == ("False", "True")


def test_spaces_around_a_label_do_not_count(tmp_path):
    task = custom_task(written(tmp_path, "text,label\na, good\nb,bad\nc,good \n"))
    assert task.labels == ("bad", "good")
    assert load_split(task, "train").labels.tolist() == [1, 0, 1]


def test_paths_are_relative_to_the_folder_of_the_data(tmp_path):
    written(tmp_path, "text,label\na,x\nb,y\n")
    task = get_task("custom", train="train.csv", directory=str(tmp_path))
    assert len(load_split(task, "train", str(tmp_path))) == 2


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", {}, r"train\.csv: is empty; expected a header line"),
        ("text,label\n", {}, r"train\.csv: no examples; expected one a row"),
        ("text,label\na,x\nb\n", {}, r"train\.csv:3: row has 1 columns, expected 2"),
        ("text,label\na,x\nb,\nc,y\n", {}, r"train\.csv:3: the label \(column 'label'\) is empty"),
        ("text,label\na,x\nb,  \n", {}, r"train\.csv:3: the label \(column 'label'\) is empty"),
        ("text,label\na,x\nb,x\n", {}, r"every label \(column 'label'\) is 'x'; .* two or more"),
        ("text,label\na,x\n", {"label": "lable"}, r":1: no column 'lable'; .*: 'label', 'text'"),
        ("label,text\na,x\n", {"text": "txt"}, r":1: no column 'txt'; .*: 'text', 'label'"),
        ("id,mood\na,x\nb,y\n", {"text": "a,b"}, r":1: .*choose by --config\.data\.label="),
        ("one,two,mood\na,x\nb,y\n", {"label": "mood"}, r":1: .*by --config\.data\.text="),
        ("text,mood\na,x\nb,y\n", {}, r":1: .*'text', 'mood'.*choose by --config\.data\.label="),
        ("I loved it,positive\n", {}, r":1: no column is known to hold labels"),
        ("text,label\na,1.5\nb,x\n", {"kind": "regression"}, r":3: score 'x' is not a finite"),
        ("text,label\na,1.5\nb,\n", {"kind": "regression"}, r":3: score '' is not a finite"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, text, options, said):
    with pytest.raises(FirthError, match=said):
        load_split(custom_task(written(tmp_path, text), **options), "train")


def test_a_label_of_dev_that_train_lacks_is_named(tmp_path):
    train = written(tmp_path, "text,label\na,good\nb,bad\n")
    dev = written(tmp_path, "text,label\nc,good\nd,Good\n", "dev.csv")
    said = r"dev\.csv:3: label 'Good' is not one of 'bad', 'good', the labels of the task"
    with pytest.raises(FirthError, match=said):
        load_split(custom_task(train, dev), "dev")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "sst-2",
            r"no task 'sst-2'; did you mean 'sst2'\? There are cola, sst2.*--config\.data\.train",
        ),
        ("glue/rte", r"did you mean 'rte'\?"),
        ("custom", r"no task 'custom'; there are cola, .*your own files: --config\.data\.train="),
    ],
)
def test_an_unknown_task_is_refused_with_the_nearest_name(name, said):
    with pytest.raises(FirthError, match=said):
        get_task(name)


def test_the_header_of_every_format(tmp_path):
    for name, text in (
        ("a.csv", 'id,"the, text",label\n1,2,3\n'),
        ("a.tsv", "id\tthe, text\tlabel\n1\n"),
        ("a.jsonl", '\n{"id": 1, "the, text": 2, "label": 3}\n{"other": 1}\n'),
    ):
        assert read_header(written(tmp_path, text, name)) == ["id", "the, text", "label"]
    with pytest.raises(FirthError, match=r"b\.jsonl: is empty"):
        read_header(written(tmp_path, "\n", "b.jsonl"))
