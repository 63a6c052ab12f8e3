import csv
import gzip
import io
import lzma

import pytest

from firth.data.tasks.tables import read_table
from firth.errors import FirthError


def written(tmp_path, name, text):
    path = tmp_path / name
    data = text if isinstance(text, bytes) else text.encode()
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(data))
    return path


@pytest.mark.parametrize("name", ["MRPC/train", "SST-2/dev", "STS-B/train", "RTE/test"])
def test_tsv_equals_csv_module_without_quoting(shared_data, name):
    path = shared_data(f"glue/{name}.tsv.gz")
    text = gzip.decompress(path.read_bytes()).decode("utf-8-sig")
    header, *records = csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
    table = read_table(path, header)
    assert [list(row) for row in zip(*table.columns.values(), strict=True)] == records
    assert table.rows.tolist() == list(range(2, len(records) + 2))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_csv_quoting_and_line_numbers(tmp_path, suffix):
    text = 'id,text,label\r\n1,"a ""b"", c",x\r\n\r\n2,"two\r\nlines",y\r\n3,"",z\r\n'
    table = read_table(written(tmp_path, f"a.csv{suffix}", text), ["text"], ["label", "none"])
    assert table.columns == {"text": ['a "b", c', "two\nlines", ""], "label": ["x", "y", "z"]}
    assert table.rows.tolist() == [2, 4, 6]


def test_csv_holds_long_documents(tmp_path):
    document = "word " * 100_000
    table = read_table(written(tmp_path, "a.csv", f'text\n"{document}"\n'), ["text"])
    assert table.columns["text"] == [document]


def test_tsv_takes_quotation_marks_and_spaces_as_they_are(tmp_path):
    path = written(tmp_path, "a.tsv", '\ufefftext\tlabel\n"open\t0\n he said "" \t1')
    table = read_table(path, ["text", "label"])
    assert table.columns == {"text": ['"open', ' he said "" '], "label": ["0", "1"]}


def test_jsonl(tmp_path):
    path = written(tmp_path, "a.jsonl.xz", '{"t": "a\\nb", "n": 1}\n\n{"n": null, "t": "ü"}\n')
    table = read_table(path, ["t"], ["n", "absent"])
    assert table.columns == {"t": ["a\nb", "ü"], "n": [1, None]}
    assert table.rows.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.tsv", "text\tlabel\na\t0\nb\n", r"a\.tsv:3: row has 1 columns, expected 2 \('text', "),
        ("a.tsv", "text\tlabel\na\tb\t0\n", r"a\.tsv:2: row has 3 columns, expected 2"),
        ("a.csv", 'text,label\n"a\nb",0\nc\n', r"a\.csv:4: row has 1 columns, expected 2"),
        ("a.csv", 'text,label\na,0\n"b,0\nc,0\n', r"a\.csv:3: malformed CSV: unexpected end"),
        ("a.csv", 'text,label\n"a"b,0\n', r"a\.csv:2: malformed CSV: ',' expected after"),
        ("a.tsv", "Text\tlabel\na\t0\n", r"a\.tsv:1: no column 'text'; there are: 'Text', 'label'"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', r":2: no column 'label'; there"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text":\n', r"a\.jsonl:2: not a JSON value"),
        ("a.jsonl", "[1, 2]\n", r"a\.jsonl:1: expected a JSON object"),
        ("a.tsv", b"text\tlabel\na\t0\n\xff\t1\n", r"a\.tsv:3: byte 15 is not UTF-8"),
        ("a.csv", b"\xef\xbb\xbftext,label\n\xe9,1\n", r"a\.csv:2: byte 14 is not UTF-8"),
        ("a.tsv", "", r"a\.tsv: is empty"),
        ("a.tsv", "text\ttext\tlabel\na\tb\t0\n", r"a\.tsv:1: several columns are called 'text'"),
        ("a.parquet", "x", r"expected \.csv, \.tsv or \.jsonl"),
    ],
)
def test_bad_files_are_refused_with_their_place(tmp_path, name, text, said):
    with pytest.raises(FirthError, match=said):
        read_table(written(tmp_path, name, text), ["text", "label"])


def test_a_column_of_some_rows_alone_is_refused(tmp_path):
    path = written(tmp_path, "a.jsonl", '{"text": "a"}\n\n{"text": "b", "label": 1}\n')
    said = r"a\.jsonl:3: has 'label', which .*a\.jsonl:1 lacks; expected it in every row or in none"
    with pytest.raises(FirthError, match=said):
        read_table(path, ["text"], ["label"])
    assert list(read_table(path, ["text"]).columns) == ["text"]


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "no archive"])
def test_damaged_archives_are_named(tmp_path, suffix, damage):
    path = written(tmp_path, f"a.tsv{suffix}", "text\n" + "".join(f"row {i}\n" for i in range(999)))
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    path.write_bytes(
        {"truncated": data[: len(data) // 2], "no archive": b"text\n"}.get(damage, data)
    )
    with pytest.raises(FirthError, match=rf"a\.tsv\{suffix}"):
        read_table(path, ["text"])


def test_known_malformed_rows_are_skipped_and_counted_up_to_the_limit(tmp_path):
    path = written(tmp_path, "a.tsv", "text\tlabel\na\t0\nb\nc\t1\td\ne\t1\n")
    table = read_table(path, ["text"], ragged_allowed=2)
    assert (table.columns["text"], table.rows.tolist(), table.skipped) == (["a", "e"], [2, 5], 2)
    with pytest.raises(FirthError, match=":4: row has 3"):
        read_table(path, ["text"], ragged_allowed=1)


def test_a_file_without_a_header_line(tmp_path):
    table = read_table(written(tmp_path, "a.tsv", "x\t1\ny\t0\n"), ["t"], header=("t", "l"))
    assert table.columns == {"t": ["x", "y"]} and table.rows.tolist() == [1, 2]
