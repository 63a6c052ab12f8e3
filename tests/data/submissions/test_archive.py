"""The archive for GLUE's server: its names, rows, order and labels, and what is refused."""

import gzip
import io
import zipfile

import pytest

from firth.data.submissions.glue import FILES, check, constant, write_archive
from firth.errors import FirthError

# What the server wants, by the sizes of the test sets that GLUE's paper and TFDS state.
ROWS = {
    "CoLA.tsv": 1063,
    "SST-2.tsv": 1821,
    "MRPC.tsv": 1725,
    "STS-B.tsv": 1379,
    "QQP.tsv": 390965,
    "MNLI-m.tsv": 9796,
    "MNLI-mm.tsv": 9847,
    "QNLI.tsv": 5463,
    "RTE.tsv": 3000,
    "WNLI.tsv": 146,
    "AX.tsv": 1104,
}
LABELS = {name: {"0", "1"} for name in ("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv", "WNLI.tsv")}
LABELS |= {name: {"entailment", "not_entailment"} for name in ("QNLI.tsv", "RTE.tsv")}
LABELS |= {
    name: {"entailment", "neutral", "contradiction"}
    for name in ("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv")
}


@pytest.fixture(scope="module")
def texts():
    return {name: constant(name) for name in FILES}


@pytest.fixture(scope="module")
def whole(texts, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "submission.zip"
    return path, write_archive(path, texts)


def test_the_files_are_those_of_the_server(whole):
    path, counted = whole
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == sorted(ROWS)  # none in a folder
        for name in archive.namelist():
            head, *rows = archive.read(name).decode().splitlines()
            assert head == "index\tprediction" and len(rows) == ROWS[name]
            numbers, answers = zip(*(row.split("\t") for row in rows), strict=True)
            assert list(numbers) == [str(i) for i in range(ROWS[name])]
            if name == "STS-B.tsv":
                assert set(answers) == {"2.5000"}
            else:
                assert set(answers) < LABELS[name] and len(set(answers)) == 1
    assert check(path) == counted
    said = {one.name: str(one) for one in counted}
    assert said["RTE.tsv"] == "entailment 3,000, not_entailment 0"
    assert said["STS-B.tsv"] == "2.5000 to 2.5000"


def test_the_labels_of_each_file():
    for name, entry in FILES.items():
        assert set(entry.answers.labels) == LABELS.get(name, set())
        assert entry.split in entry.answers.files
    assert FILES["AX.tsv"].model == "mnli"


def test_rows_are_those_of_the_test_files(shared_data):
    """Of all test sets at hand; their own column of numbers is the order of a submission."""
    folder = shared_data("glue")
    for name, entry in FILES.items():
        path = folder / f"{entry.answers.files[entry.split]}.gz"
        if not path.exists():  # MNLI and QQP are not at hand
            assert entry.task in ("mnli", "qqp")
            continue
        with gzip.open(path, "rt", encoding="utf-8") as file:
            head, *rows = file.read().removesuffix("\n").split("\n")
        assert head.removeprefix("\ufeff").split("\t")[0] == "index"
        assert [row.split("\t")[0] for row in rows] == [str(i) for i in range(ROWS[name])]


def test_equal_answers_are_equal_bytes(whole, texts, tmp_path):
    write_archive(tmp_path / "again.zip", dict(reversed(texts.items())))
    assert (tmp_path / "again.zip").read_bytes() == whole[0].read_bytes()


def replaced(text, line, new):
    """A text with another line; of number 0 that is the header."""
    lines = text.split("\n")
    lines[line : line + 1] = new
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "line", "new", "said"),
    [
        ("RTE.tsv", 0, ["id\tlabel"], r"RTE.tsv:1: the header is 'id\\tlabel', expected 'index"),
        ("RTE.tsv", 7, [], "RTE.tsv:8: index '7', expected 6: rows in test order"),
        ("RTE.tsv", 7, ["7\tentailment", "6\tentailment"], "RTE.tsv:8: index '7', expected 6"),
        ("RTE.tsv", 3000, [], "RTE.tsv has 2,999 rows, expected 3,000"),
        ("RTE.tsv", 3001, ["3000\tentailment", ""], "RTE.tsv has 3,001 rows, expected 3,000"),
        ("RTE.tsv", 3, ["2\t1"], "RTE.tsv:4: '1' is not one of entailment, not_entailment"),
        ("RTE.tsv", 3, ["2\tneutral"], "RTE.tsv:4: 'neutral' is not one of entailment, not_ent"),
        ("AX.tsv", 1, ["0\tnot_entailment"], "AX.tsv:2: 'not_entailment' is not one of entailm"),
        ("CoLA.tsv", 1, ["0\t2"], "CoLA.tsv:2: '2' is not one of 0, 1"),
        ("CoLA.tsv", 1, ["0\t1.0"], "CoLA.tsv:2: '1.0' is not one of 0, 1"),
        ("CoLA.tsv", 1, ["0 1"], "CoLA.tsv:2: 1 columns, expected index and prediction"),
        ("CoLA.tsv", 1, ["0\t1\t0.9"], "CoLA.tsv:2: 3 columns, expected index and prediction"),
        ("STS-B.tsv", 2, ["1\t5.01"], "STS-B.tsv:3: '5.01' is not a number from 0 to 5"),
        ("STS-B.tsv", 2, ["1\t-0.1"], "STS-B.tsv:3: '-0.1' is not a number from 0 to 5"),
        ("STS-B.tsv", 2, ["1\tnan"], "STS-B.tsv:3: 'nan' is not a number from 0 to 5"),
        ("STS-B.tsv", 2, ["1\thigh"], "STS-B.tsv:3: 'high' is not a number from 0 to 5"),
    ],
)
def test_a_wrong_file_is_refused(texts, tmp_path, name, line, new, said):
    texts = texts | {"QQP.tsv": "", name: replaced(texts[name], line, new)}  # QQP's takes time
    path = tmp_path / "wrong.zip"
    with pytest.raises(FirthError, match=f"wrong.zip is no submission: .*{said}"):
        write_archive(path, texts)
    assert not path.exists()
    with zipfile.ZipFile(path, "w") as archive:
        for other, text in texts.items():
            archive.writestr(other, text)
    with pytest.raises(FirthError, match=said):
        check(path)


def test_all_that_is_wrong_is_said_at_once(texts, tmp_path):
    path = tmp_path / "wrong.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in texts.items():
            if name == "WNLI.tsv":
                archive.writestr(f"submission/{name}", text)
            elif name == "RTE.tsv":
                archive.writestr(name, b"\xff")
            elif name != "QQP.tsv":
                archive.writestr(name, text)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("AX.tsv", texts["AX.tsv"])
    with pytest.raises(FirthError) as error:
        check(path)
    for said in (
        "'submission/WNLI.tsv' is no file of a submission",
        "AX.tsv is there 2 times",
        "QQP.tsv is missing",
        "RTE.tsv is not UTF-8",
        "WNLI.tsv is missing",
        "expected at the top of the zip: CoLA.tsv, ",
    ):
        assert said in str(error.value)
    assert "CoLA.tsv is" not in str(error.value)


def test_what_is_no_zip(tmp_path, whole):
    (tmp_path / "text.zip").write_text("CoLA.tsv")
    data = bytearray(whole[0].read_bytes())
    at = data.index(b"CoLA.tsv") + 20
    data[at : at + 20] = bytes(20)
    (tmp_path / "damaged.zip").write_bytes(data)
    for name in ("text.zip", "damaged.zip", "gone.zip"):
        with pytest.raises(FirthError, match=f"{name} is no zip that can be read"):
            check(tmp_path / name)
    assert zipfile.is_zipfile(io.BytesIO(data))
