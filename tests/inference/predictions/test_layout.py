"""What is written, read back by the csv and json modules."""

import csv
import io
import json

import numpy as np
import pytest

from firth.data.tasks.rows import Rows
from firth.errors import FirthError
from firth.inference.predictions.layout import Layout, output_format

OUTPUTS = np.array([[0.25, 0.7, 0.05], [1 / 3, 1 / 3, 1 / 3 - 1e-9]])
LABELS = ("bad", "good", "so, so")
CSV = 'id,text,label\n7,"a ""b"", c",x\n8,"two\nlines",y\n'


def written(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return Rows(tmp_path / name)


def laid(rows, format, labels=LABELS, outputs=OUTPUTS):
    layout = Layout(format, rows, labels)
    return (layout.head() + layout.text(list(rows), outputs)).decode()


def test_csv_keeps_the_columns_and_adds_label_and_probabilities(tmp_path):
    text = laid(written(tmp_path, "a.csv", CSV), "csv")
    head, *records = csv.reader(io.StringIO(text), strict=True)
    assert head == ["id", "text", "label", "predicted_label", "p_bad", "p_good", "p_so, so"]
    assert records == [
        ["7", 'a "b", c', "x", "good", "0.250000", "0.700000", "0.050000"],
        ["8", "two\nlines", "y", "bad", "0.333333", "0.333333", "0.333333"],
    ]
    assert Layout("csv", written(tmp_path, "b.csv", "text\na\n"), LABELS).new[0] == "label"


def test_jsonl_keeps_every_field_and_its_kind(tmp_path):
    lines = (
        '{"text": "ü", "id": 7, "more": [1, null]}\n{"id": null, "text": "b", "odd": "\\ud800"}\n'
    )
    rows = written(tmp_path, "a.jsonl", lines)
    text = laid(rows, "jsonl")
    assert "ü" in text
    records = [json.loads(line) for line in text.splitlines()]
    p = {"bad": 0.25, "good": 0.7, "so, so": 0.05}
    said = {"label": "good", "probabilities": p}
    assert records[0] == {"text": "ü", "id": 7, "more": [1, None]} | said
    assert records[1]["odd"] == "\ud800" and records[1]["id"] is None
    assert list(records[0]) == ["text", "id", "more", "label", "probabilities"]


def test_a_regression_gives_a_score(tmp_path):
    rows, scores = written(tmp_path, "a.tsv", "text\tscore\na\t1\nb\t2\n"), np.array([[2.5], [-1]])
    assert laid(rows, "tsv", (), scores) == (
        "text\tscore\tpredicted_score\na\t1\t2.500000\nb\t2\t-1.000000\n"
    )
    records = [json.loads(line) for line in laid(rows, "jsonl", (), scores).splitlines()]
    assert records[1] == {"text": "b", "score": "2", "predicted_score": -1.0}


def test_several_labels_are_those_from_the_threshold_on(tmp_path):
    """At it, too; a list in JSONL, one field in tables, which no label may divide."""
    rows, outputs = written(tmp_path, "a.csv", CSV), np.array([[0.25, 0.7, 0.5], [0.1, 0.2, 0.3]])
    layout = Layout("jsonl", rows, LABELS, threshold=0.5)
    records = [json.loads(line) for line in layout.text(list(rows), outputs).splitlines()]
    assert [record["labels"] for record in records] == [["good", "so, so"], []]
    assert records[0]["probabilities"] == {"bad": 0.25, "good": 0.7, "so, so": 0.5}
    layout = Layout("csv", rows, LABELS, threshold=0.25)
    text = (layout.head() + layout.text(list(rows), outputs)).decode()
    head, *records = csv.reader(io.StringIO(text), strict=True)
    assert head[3:] == ["labels", "p_bad", "p_good", "p_so, so"]
    assert [record[3] for record in records] == ["bad|good|so, so", "so, so"]
    with pytest.raises(FirthError, match=r"the label 'a\|b' holds '\|', .* write \.jsonl"):
        Layout("csv", rows, ("a|b", "c"), threshold=0.5)
    Layout("jsonl", rows, ("a|b", "c"), threshold=0.5)


def test_fields_of_json_in_a_table(tmp_path):
    rows = written(tmp_path, "a.jsonl", '{"text": "a", "n": 1.5, "l": ["x"]}\n{"text": "b"}\n')
    first, second = [*csv.reader(io.StringIO(laid(rows, "csv")))][1:]
    assert first[:4] == ["a", "1.5", '["x"]', "good"] and second[:4] == ["b", "", "", "bad"]


@pytest.mark.parametrize(
    ("name", "text", "format", "said"),
    [
        ("a.csv", CSV, "tsv", r"a\.csv:3: a tab or an end of line fits no TSV; write \.csv or"),
        ("a.csv", '"te\txt",label\na,b\n', "tsv", r"a\.csv: a tab or an end of line fits no TSV"),
        ("a.csv", "text,label,predicted_label\na,b,c\n", "csv", "has a column 'predicted_label'"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": "b", "x": 1}\n',
            "csv",
            r":2: has a field 'x', unlike",
        ),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": "b", "label": 1}\n',
            "jsonl",
            r":2: has a field 'label'",
        ),
    ],
)
def test_what_cannot_be_written_is_named_before_anything_is(tmp_path, name, text, format, said):
    rows = written(tmp_path, name, text)
    with pytest.raises(FirthError, match=said):
        rows.count(Layout(format, rows, LABELS).check)


def test_the_format_of_an_output(tmp_path):
    rows = written(tmp_path, "a.txt", "a\n")
    assert output_format("x.CSV", rows) == "csv" and output_format("x.tsv", rows) == "tsv"
    assert output_format("-", rows) == "jsonl"
    assert output_format("-", written(tmp_path, "a.tsv", "text\na\n")) == "tsv"
    with pytest.raises(FirthError, match=r"--output x\.txt: expected a \.csv, \.tsv or \.jsonl"):
        output_format("x.txt", rows)
