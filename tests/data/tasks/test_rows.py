import gzip
import io
import sys
from types import SimpleNamespace

import pytest

from firth.data.tasks.rows import Rows
from firth.errors import FirthError


def written(tmp_path, name, text):
    path = tmp_path / name
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


FILES = {
    "a.txt": "one\ttwo\r\nthree\t\n",
    "b.csv": 'n,sentence1,sentence2\n7,one,two\n8,three,""\n',
    "c.tsv.gz": "\ufeffn\tsentence1\tsentence2\n7\tone\ttwo\n8\tthree\t\n",
    "d.jsonl": '{"n": 7, "sentence1": "one", "sentence2": "two"}\n\n'
    '{"sentence2": "", "sentence1": "three", "more": [1]}\n',
}
LINES = {"a.txt": (1, 2), "b.csv": (2, 3), "c.tsv.gz": (2, 3), "d.jsonl": (1, 3)}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_its_rows_again_and_again(tmp_path, name):
    path = written(tmp_path, name, FILES[name])
    rows = Rows(path)
    assert rows.texts == (("text", "text_pair") if name == "a.txt" else ("sentence1", "sentence2"))
    for _ in range(2):
        first, second = rows
        assert (first.text, second.text) == (("one", "two"), ("three", ""))
        assert [first.at, second.at] == [f"{path}:{line}" for line in LINES[name]]
    assert rows.count() == 2
    if name != "a.txt":
        assert rows.columns == tuple(first.fields) == ("n", "sentence1", "sentence2")
        assert str(first.fields["n"]) == "7"
    if name == "d.jsonl":
        assert second.fields == {"sentence2": "", "sentence1": "three", "more": [1]}


def test_columns_are_chosen_by_name(tmp_path):
    path = written(tmp_path, "a.csv", "text,other\none,two\n")
    assert [row.text for row in Rows(path)] == ["one"]
    assert [row.text for row in Rows(path, ["other"])] == ["two"]
    assert [row.text for row in Rows(path, ["other", "text"])] == [("two", "one")]
    assert Rows(path).label("other") == "other"
    with pytest.raises(FirthError, match=r"a\.csv:1: no column 'gone'; there are: 'text', 'other'"):
        Rows(path).label("gone")


def test_standard_input_comes_once(monkeypatch):
    content = io.BytesIO(b"text,label\none,1\ntwo,0\n")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=content))
    rows = Rows("-", format="csv")
    assert rows.count() is None and rows.label() == "label"
    assert [(row.at, row.text) for row in rows] == [
        ("standard input:2", "one"),
        ("standard input:3", "two"),
    ]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a line, with a comma")))
    assert [row.text for row in Rows("-")] == ["a line, with a comma"]


def test_undecodable_bytes_may_be_replaced(tmp_path):
    path = written(tmp_path, "a.txt", b"sm\xf8r\n")
    with pytest.raises(FirthError, match=r"a\.txt:1: byte 2 is not UTF-8"):
        Rows(path)
    assert [row.text for row in Rows(path, errors="replace")] == ["sm\ufffdr"]


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        ("a.txt", "", {}, r"a\.txt has no rows; expected a text a line"),
        ("a.csv", "text\n", {}, r"a\.csv has no rows; expected a line with the names"),
        ("a.txt", "a\nb\tc\n", {}, r"a\.txt:2: 2 texts between tabs, expected 1, as in line 1"),
        ("a.txt", "a\tb\nc\n", {}, r"a\.txt:2: 1 texts between tabs, expected 2, as in line 1"),
        ("a.txt", "a\tb\tc\n", {}, r"a\.txt:1: 3 texts between tabs, expected one or two"),
        (
            "a.txt",
            "a\n",
            {"texts": ["text"]},
            "has no columns, but --text reads text; give a .jsonl, .csv or",
        ),
        ("a.csv", "text,n\na,1\nb\n", {}, r"a\.csv:3: row has 1 columns, expected 2 \('text', 'n'"),
        ("a.csv", "text,n,n\na,1,2\n", {}, r"a\.csv:1: several columns are called 'n'"),
        ("a.csv", "x,y\na,1\n", {}, r"a\.csv:1: no column is known to hold texts; there are: 'x'"),
        ("a.csv", "text\na\n", {"texts": ["x"]}, r"a\.csv:1: no column 'x'; there are: 'text'"),
        (
            "a.csv",
            "a,b,c\n1,2,3\n",
            {"texts": ["a", "b", "c"]},
            "--text=a,b,c: expected one ",
        ),
        ("a.jsonl", '{"text": "a"}\n{"t": "b"}\n', {}, r"a\.jsonl:2: no column 'text'; there are:"),
        ("a.jsonl", '{"text": 3}\n', {}, r"a\.jsonl:1: 'text' is 3, expected a string"),
        ("a.jsonl", '{"text": "\\ud800"}\n', {}, r"a\.jsonl:1: 'text' holds '\\ud800', which is"),
        ("a.jsonl", "[" * 99_999, {}, r"a\.jsonl:1: not a JSON value"),
        ("a.json", "{}", {}, r"a\.json: the format of '\.json' is unknown; expected \.txt, \.csv"),
        ("a.csv.gz", b"", {}, r"a\.csv\.gz has no rows"),
    ],
)
def test_bad_files_are_refused_with_their_place(tmp_path, name, text, options, said):
    with pytest.raises(FirthError, match=said):
        list(Rows(written(tmp_path, name, text), **options))


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(FirthError, match=r"gone\.csv: cannot be read: No such file"):
        Rows(tmp_path / "gone.csv")
    with pytest.raises(FirthError, match="cannot be read: Is a directory"):
        Rows(tmp_path)
