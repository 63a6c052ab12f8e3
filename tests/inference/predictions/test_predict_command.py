"""`firth predict` and `firth evaluate --data`, as commands."""

import csv
import functools
import io
import json
import os
import re

import pytest

from firth import cli
from firth.commands import predict as verb
from firth.inference import encoder

TEXTS = ["the cat sat", "a dog ran , and sat", "fish"]
once = functools.cache(lambda source, dtype, load=encoder.load: load(source, dtype=dtype))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder, and models that stay loaded and compiled."""
    monkeypatch.setattr(encoder, "load", lambda source, dtype=None, task=None: once(source, dtype))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def files(tmp_path):
    """The same texts in every format, with a label that the model knows."""
    rows = [dict(id=i, text=text, label="good") for i, text in enumerate(TEXTS)]
    with (tmp_path / "in.csv").open("w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["id\ttext\tlabel", *("\t".join(map(str, row.values())) for row in rows)]
    (tmp_path / "in.tsv").write_text("\n".join(lines) + "\n")


def read(path):
    """([label, ...], [probability of "good", ...]) of the rows of an output."""
    text = path.read_text() if hasattr(path, "read_text") else path
    if text.startswith("{"):
        rows = [json.loads(line) for line in text.splitlines()]
        p = [row["probabilities"]["good"] for row in rows]
    else:
        dialect = dict(delimiter="\t", quoting=csv.QUOTE_NONE) if "\t" in text else {}
        rows = [*csv.DictReader(io.StringIO(text), **dialect)]
        p = [float(row["p_good"]) for row in rows]
    return [row.get("predicted_label") or row["label"] for row in rows], p


def assert_says(path, predictions):
    """Whether an output holds these predictions, up to its last digit."""
    labels, p = read(path)
    assert labels == [one.label for one in predictions]
    assert p == pytest.approx([one.probabilities["good"] for one in predictions], abs=2e-6)


def test_every_format_in_and_out_says_the_same(labelled, files, printed, tmp_path):
    expected, model = labelled.encoder.predict(TEXTS), f"--model={labelled.folder}"
    for kind in ("txt", "csv", "tsv", "jsonl"):
        for other in ("csv", "tsv", "jsonl"):
            output = f"{kind}.{other}"
            said = printed("predict", model, f"--input=in.{kind}", f"--output={output}")
            assert_says(tmp_path / output, expected)
            new = "label" if kind == "txt" else "predicted_label"
            assert said.startswith(f"{output}: 3 texts, {new}, p")
    assert json.loads((tmp_path / "jsonl.jsonl").read_text().splitlines()[2])["id"] == 2
    assert not [name for name in os.listdir() if "partial" in name]


def test_a_complete_output_is_replaced_where_one_asks_for_it(labelled, files, printed, tmp_path):
    (tmp_path / "out.csv").write_text("what was there before")
    files = ("--input=in.csv", "--output=out.csv", "--overwrite")
    printed("predict", f"--model={labelled.folder}", *files)
    assert_says(tmp_path / "out.csv", labelled.encoder.predict(TEXTS))


def test_standard_input_and_output(labelled, files, printed, stdin, tmp_path):
    expected, model = labelled.encoder.predict(TEXTS), ("predict", f"--model={labelled.folder}")
    assert_says(printed(*model, "--input=in.txt", "--output=-"), expected)
    assert_says(printed(*model, "--input=in.csv", "--output=-"), expected)
    stdin((tmp_path / "in.csv").read_bytes())
    options = ("--format=csv", "--batch-size=1")
    assert_says(printed(*model, "--input=-", "--output=-", *options), expected)
    stdin((tmp_path / "in.txt").read_bytes())
    printed(*model, "--input=-", "--output=piped.jsonl")
    assert_says(tmp_path / "piped.jsonl", expected)


def test_lines_are_answered_as_they_come(labelled, monkeypatch):
    """Each answer is there before the next line is read."""
    lines, answers = [], []

    class Slow(io.BytesIO):
        def __next__(self):
            lines.append(super().readline())
            assert len(answers) == len(lines) - 1
            if not lines[-1]:
                raise StopIteration
            return lines[-1]

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Slow(b"one\ntwo\nthree\n")))
    monkeypatch.setattr("firth.inference.predictions.output.Stream", lambda file: Sink())

    class Sink:
        rows = cut = 0

        def remaining(self, rows, said):
            return iter(rows)

        def append(self, data, rows, cut):
            answers.append(data)

        def finish(self):
            pass

    arguments = ["--input=-", "--output=-", "--batch-size=1"]
    assert verb.main(["--model", str(labelled.folder), *arguments]) == 0
    assert len(answers) == 3


def test_options_reach_the_model(labelled, printed, tmp_path, caplog):
    long = "the cat sat on the mat and the dog ate the fish . " * 5
    (tmp_path / "in.csv").write_text(f"body,other\nfish,cat\n{long},dog\n")
    model = ("predict", "--model", labelled.folder, "--input=in.csv")
    cases = {
        ("--text=other",): labelled.encoder.predict(["cat", "dog"]),
        ("--text=other, body", "--batch-size=1"): labelled.encoder.predict(
            [("cat", "fish"), ("dog", long)]
        ),
        ("--text=body", "--max-length=9"): labelled.encoder.predict(["fish", long], max_length=9),
        ("--text=body", "--long=average", "--stride=7"): labelled.encoder.predict(
            ["fish", long], long="average", stride=7
        ),
    }
    caplog.clear()
    for number, (options, expected) in enumerate(cases.items()):
        printed(*model, f"--output={number}.csv", *options)
        assert_says(tmp_path / f"{number}.csv", expected)
    assert len({(tmp_path / f"{number}.csv").read_text() for number in range(4)}) == 4
    advice = "; --max-length=40 keeps more; --long=average reads all of a text"
    assert f"1 of 2 texts have more than 9 tokens and were cut{advice}" in caplog.text
    printed(*model, "--output=half.csv", "--text=other", "--dtype=bfloat16")
    assert (tmp_path / "half.csv").read_text() != (tmp_path / "0.csv").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--input=gone.csv",), r"gone\.csv: cannot be read: No such file"),
        (
            ("--input=in.csv", "--text=body"),
            r"in\.csv:1: no column 'body'; there are: 'id', 'text'",
        ),
        (
            ("--input=in.csv", "--output=in.csv"),
            "--output in.csv is also the input, which it would replace",
        ),
        (("--input=in.csv", "--output=out.txt"), r"out\.txt: expected a \.csv, \.tsv or \.jsonl"),
        (("--input=in.csv", "--output=gone/out.csv"), "expected a file in a directory that exists"),
        (("--input=in.csv", "--stride=3"), "stride is that of windows; it needs long=average"),
        (("--input=in.csv", "--max-length=99"), r"max_length=99 is outside 3 \.\. 40"),
        (("--input=in.csv", "--model=gone"), "gone does not exist"),
        (("--input=bad.csv",), r"bad\.csv:3: row has 3 columns, expected 2"),
        (
            ("--input=in.csv", "--output=there.csv"),
            r"there\.csv is there already; give --overwrite",
        ),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    labelled, files, tmp_path, capsys, options, message
):
    (tmp_path / "bad.csv").write_text("id,text\n1,a\n2,b,c\n")
    (tmp_path / "there.csv").write_text("what was there before")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    arguments = ["--model", str(labelled.folder), "--output=out.csv"]
    assert cli.main(["predict", *arguments, *options]) == 2
    assert re.fullmatch(f"firth predict: error: .*{message}.*\n", capsys.readouterr().err)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# ------------------------------------------------------------------------------------ evaluate


def test_a_labelled_file_is_measured(labelled, files, printed, tmp_path):
    arguments = ("evaluate", "--model", labelled.folder, "--data=in.csv")
    said = printed(*arguments, "--output=said.csv")
    assert said.startswith("in.csv: texts in text, labels in label\n\nexamples             3\n")
    measured = json.loads(printed(*arguments, "--json", "--label=label"))
    right = read(tmp_path / "said.csv")[0].count("good")
    assert measured["metrics"]["accuracy"] == pytest.approx(right / 3)
    assert measured["baseline"] == {"label": "good", "accuracy": 1.0}
    assert sum(map(sum, measured["confusion"])) == measured["examples"] == 3
    printed("predict", "--model", labelled.folder, "--input=in.csv", "--output=same.csv")
    assert (tmp_path / "said.csv").read_text() == (tmp_path / "same.csv").read_text()


def test_scores_are_measured(scored, printed, tmp_path):
    (tmp_path / "in.csv").write_text("sentence1,sentence2,score\nthe cat,a dog,1.5\nfish,fish,4\n")
    said = printed("evaluate", "--model", scored.folder, "--data=in.csv")
    assert said.splitlines()[0] == "in.csv: texts in sentence1, sentence2, labels in score"
    names = [line.split()[0] for line in said.splitlines()[2:]]
    assert names == ["examples", "pearson", "spearman", "rmse", "mae", "baseline"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--data=in.csv", "--label=gone"),
            r"in\.csv:1: no column 'gone'; there are: 'id', 'text'",
        ),
        (("--data=in.txt",), r"in\.txt:1: no column is known to hold labels"),
        (
            ("--data=odd.csv",),
            r"odd\.csv:3: label 'great' is none of the model's: 'bad', 'good', 's",
        ),
        ((), "expected --workdir, with --step and fields, or --model and --data"),
        (
            ("--data=in.csv", "--workdir=."),
            "expected --workdir, with --step and fields, or --model",
        ),
        (
            ("--data=in.csv", "--output=out.xls"),
            r"out\.xls: expected a \.csv, \.tsv or \.jsonl file",
        ),
        (("--data=in.csv", "--output=-"), "the measures are printed there; give a file"),
    ],
)
def test_what_cannot_be_measured_is_named(labelled, files, tmp_path, capsys, options, message):
    (tmp_path / "odd.csv").write_text("text,label\na,good\nb,great\n")
    before = os.listdir()
    assert cli.main(["evaluate", "--model", str(labelled.folder), *options]) == 2
    assert re.fullmatch(f"firth evaluate: error: .*{message}.*\n", capsys.readouterr().err)
    assert os.listdir() == before


def test_a_workdir_and_a_file_exclude_each_other(labelled, files, capsys):
    assert cli.main(["evaluate", "--workdir=.", "--text=body"]) == 2
    assert "expected --workdir, with --step and fields, or" in capsys.readouterr().err
    for odd in ("--step=3", "--txt=body"):
        try:
            status = cli.main(["evaluate", f"--model={labelled.folder}", "--data=in.csv", odd])
        except SystemExit as end:
            status = end.code
        assert status == 2 and odd[:5] in capsys.readouterr().err
