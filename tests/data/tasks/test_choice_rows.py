"""Questions with choices for predictions, one row after another."""

import pytest
from helpers.choosing import towns, write_csv, write_jsonl

from firth.data.tasks.choice_rows import ChoiceRows
from firth.data.tasks.load import custom_task, load_split
from firth.errors import FirthError


def test_rows_are_read_as_in_training(tmp_path):
    for path in (
        write_jsonl(tmp_path / "a.jsonl", towns()),
        write_csv(tmp_path / "a.csv", towns()),
    ):
        rows, learned = ChoiceRows(path), load_split(custom_task(str(path)), "train")
        assert rows.size == 3 and rows.count() == 10 and rows.label() == "label"
        for row, context, choices, label, at in zip(
            *(rows, learned.texts_a, learned.choices, learned.labels, learned.places), strict=True
        ):
            assert row.text == (context, choices) and row.at == at
            assert rows.number(row, "label") == label
            assert rows.chosen(row, 1) in choices[1]


def test_columns_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("q,x,y,answer\nWho?,Ann,Bob,b\n")
    rows = ChoiceRows(tmp_path / "a.csv", ("q",), ("y", "x"))
    (row,) = rows
    assert row.text == ("Who?", ("Bob", "Ann")) and rows.label() == "answer"
    assert rows.number(row, "answer") == 1 and rows.chosen(row, 0) == "Bob"


def test_every_question_has_as_many_choices(tmp_path):
    many = towns(2)
    many[1]["choices"] = many[1]["choices"][:2]
    with pytest.raises(FirthError, match=r"a\.jsonl:2: has 2 choices, expected 3"):
        ChoiceRows(write_jsonl(tmp_path / "a.jsonl", many)).count()
    del many[1]["choices"]
    with pytest.raises(FirthError, match=r"a\.jsonl:2: no column 'choices'"):
        ChoiceRows(write_jsonl(tmp_path / "a.jsonl", many)).count()


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        ("a.csv", "text,b\nx,y\n", {}, r"no columns are known to hold choices; .*--choices="),
        ("a.csv", "text,b\nx,y\n", {"choices": ("b", "c")}, "no column 'c'"),
        ("a.txt", "a text\n", {}, "plain text has no columns of choices"),
        ("a.csv", "b,choice0,choice1\nx,y,z\n", {}, "no column is known to hold a context"),
        ("a.jsonl", '{"text": "a", "choices": ["b"]}\n', {}, ":1: has 1 choices, expected two"),
    ],
)
def test_files_that_are_refused(tmp_path, name, text, options, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(FirthError, match=said):
        ChoiceRows(tmp_path / name, **options)
