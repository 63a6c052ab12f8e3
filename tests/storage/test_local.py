"""Small files."""

import pytest

from firth.errors import FirthError
from firth.storage.local import (
    checksums_text,
    digests,
    read_checksums,
    read_json,
    write_json,
    write_text,
)


def test_writing_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_text(path, "old")
    monkeypatch.setattr("os.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_text(path, "new")
    assert path.read_text() == "old"


def test_json_comes_back(tmp_path):
    write_json(tmp_path / "a.json", {"b": 1, "a": "\u00e9"})
    assert read_json(tmp_path / "a.json") == {"a": "\u00e9", "b": 1}
    assert (tmp_path / "a.json").read_text(encoding="utf-8").index('"a"') == 4


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"a": 1,\n', r"a\.json:2: not valid JSON"),
        (b"\xff\xfe", r"a\.json: not UTF-8 at byte 0"),
        (b"[1]", r"a\.json: expected a JSON object, found list"),
    ],
)
def test_bad_json_names_the_place(tmp_path, content, complaint):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FirthError, match=complaint):
        read_json(tmp_path / "a.json")


def test_missing_json_is_named(tmp_path):
    with pytest.raises(FirthError, match=r"cannot read .*a\.json"):
        read_json(tmp_path / "a.json")


def test_a_digest_a_file(tmp_path):
    (tmp_path / "b").write_bytes(b"abc")
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digests(tmp_path) == {"b": sha256}
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "c").write_bytes(b"abc")
    assert digests(tmp_path) == {"b": sha256, "deep/er/c": sha256}


def test_checksums_have_a_checksum():
    found = {"a": "00", "b/c": "11"}
    text = checksums_text(found)
    assert read_checksums(text) == read_checksums(text.encode()) == found
    assert read_checksums('{"a": "00"}') == {"a": "00"}, (
        "a file from before checksums had one of their own"
    )
    for harmed in (text[:-1], text.replace("c", "d"), text.replace("00", "10"), "[]", ""):
        with pytest.raises(ValueError, match=r"own checksum|Expecting"):
            read_checksums(harmed)
