"""Reading corpora: the same documents from any packing, in bounded memory; bad input is located."""

import gzip
import json
import lzma
import tracemalloc

import pytest

from firth.data.corpus.text import find_sources, read_batches, read_blocks, read_documents
from firth.errors import FirthError

DOCUMENTS = ["One line.", "Two lines,\nof one document.", "Träume\n über Vasen 花瓶.", "The end."]


def documents(patterns, block_bytes=1 << 20, format=None, field="text", document="blank-line"):
    """All documents of the input, the pieces of those that span blocks put together again."""
    found = []
    for source in find_sources([str(p) for p in patterns], format):
        for block in read_blocks(source, field, "strict", block_bytes):
            texts = read_documents(block, field, document, "strict")
            if block.continued:
                found[-1] += texts.pop(0)
            found += texts
    return [text.strip("\r\n") for text in found if text.strip()]


def read(path, errors="strict", field="text", **options):
    (source,) = find_sources([str(path)], options.pop("format", None))
    return [
        text
        for block in read_blocks(source, field, errors, 1 << 20)
        for text in read_documents(block, field, options.get("document", "blank-line"), errors)
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.txt", "\n\n".join(DOCUMENTS)),
        ("c.txt", "\n\n\n \t\n" + "\n \n\n".join(DOCUMENTS) + "\n\n"),
        ("c.txt", "\ufeff" + "\r\n\r\n".join(d.replace("\n", "\r\n") for d in DOCUMENTS)),
        ("c.jsonl", "\n".join(json.dumps({"id": 1, "text": d}) for d in DOCUMENTS) + "\n\n"),
        ("c.jsonl", "\r\n".join(json.dumps({"text": d}, ensure_ascii=False) for d in DOCUMENTS)),
        ("c.csv", "id,text\n" + "".join(f'7,"{d}"\n' for d in DOCUMENTS)),
    ],
)
def test_every_packing_holds_the_same_documents(tmp_path, name, text):
    data = text.encode()
    (tmp_path / name).write_bytes(data)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    (tmp_path / f"{name}.xz").write_bytes(lzma.compress(data))
    for path in tmp_path.iterdir():
        for block_bytes in (1 << 20, *range(12, 70)):
            found = [text.replace("\r\n", "\n") for text in documents([path], block_bytes)]
            assert found == DOCUMENTS, (path, block_bytes)


def test_a_cut_before_a_line_end_divides_no_document(tmp_path):
    text = "a line with a space at its end \nand one without"
    (tmp_path / "c.txt").write_text(text)
    for block_bytes in range(12, 60):
        assert documents([tmp_path / "c.txt"], block_bytes) == [text]


def test_one_document_a_file(tmp_path):
    for n, text in enumerate(["a\n\nb\n", "c"]):
        (tmp_path / f"{n}.txt").write_text(text)
    assert documents([tmp_path / "*.txt"], document="file") == ["a\n\nb", "c"]


def test_small_files_share_a_batch(tmp_path):
    for n in range(60):
        (tmp_path / f"{n:02d}.txt").write_text(f"{n:02d} " + "a word " * 12 + "\n")
    (tmp_path / "30.txt").write_text("30\n" * 2000)
    sources = find_sources([str(tmp_path / "*.txt")])
    batches = list(read_batches(sources, "text", "strict", 1000))
    names = [block.source for batch in batches for block in batch.blocks]
    assert list(dict.fromkeys(names)) == [source.name for source in sources]
    sizes = [sum(len(block.content) for block in batch.blocks) for batch in batches]
    assert sum(sizes) == sum(source.bytes for source in sources) == batches[-1].position
    assert min(sizes[:-1]) >= 500 and max(sizes) < 1600


def test_tsv_has_no_quoting(tmp_path):
    (tmp_path / "c.tsv").write_text('label\ttext\n0\tthe "vase\n1\tbroke"\n')
    assert documents([tmp_path / "c.tsv"]) == ['the "vase', 'broke"']


def test_patterns_are_sorted_and_no_file_comes_twice(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.txt", "d.md"):
        (tmp_path / name).write_text(name)
    found = documents([tmp_path / "b.txt", tmp_path / "**" / "*.txt"])
    assert found == ["b.txt", "a.txt", "sub/c.txt"]
    odd = tmp_path / "odd[1].txt"  # a name that is also a pattern
    odd.write_text("odd")
    assert documents([odd]) == ["odd"]


@pytest.mark.parametrize("text", ["word " * 400, "花瓶" * 400, "x" * 999, "ä" * 500])
def test_long_lines_are_cut_at_spaces_or_between_characters(tmp_path, text):
    (tmp_path / "c.txt").write_text(text, encoding="utf-8")
    (source,) = find_sources([str(tmp_path / "c.txt")])
    blocks = list(read_blocks(source, "text", "strict", 100))
    assert len(blocks) > 5 and max(len(b.content) for b in blocks) <= 200
    texts = [read_documents(b, "text", "blank-line", "strict") for b in blocks]
    assert all(len(t) == 1 for t in texts) and "".join(t[0] for t in texts) == text
    if " " in text:
        assert all(t[0].endswith(" ") for t in texts)


def test_a_huge_document_is_read_in_little_memory(tmp_path):
    path = tmp_path / "c.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(60):
            file.write(b"a line of text\n" * 70_000)
    (source,) = find_sources([str(path)])
    tracemalloc.start()
    size = sum(len(b.content) for b in read_blocks(source, "text", "strict", 1 << 20))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == 60 * 70_000 * 15
    assert peak < 8 << 20


def test_replaced_bytes_and_surrogates(tmp_path):
    (tmp_path / "c.txt").write_bytes(b"caf\xe9 ol\xe9")
    assert read(tmp_path / "c.txt", errors="replace") == ["caf\ufffd ol\ufffd"]
    (tmp_path / "c.jsonl").write_text(r'{"text": "half \ud83d, whole \ud83d\ude00"}')
    assert read(tmp_path / "c.jsonl", errors="replace") == ["half \ufffd, whole 😀"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("c.txt", b"good\nbad \xff here", "c.txt:2: not UTF-8: byte 0xff at offset 9"),
        ("c.jsonl", b'{"text": "a"}\n{"text": "\xe9"}', r"c.jsonl:2: not UTF-8: .* offset 24"),
        ("c.csv", b"text\na\nb\xe9\n", r"c.csv:3: not UTF-8: .* offset 8"),
        ("c.jsonl", b'{"text": "a"}\n\n{"text": "b"', r"c.jsonl:3: not valid JSON: .*column 13"),
        ("c.jsonl", b'["a"]', "c.jsonl:1: expected a JSON object, found list"),
        ("c.jsonl", b'{"title": "a", "id": 1}', r"c.jsonl:1: no field 'text'.*title, id.*--field"),
        ("c.jsonl", b'{"text": 3}', "c.jsonl:1: field 'text' is not text but int"),
        ("c.jsonl", b'{"text": "\\ud800"}', r"c.jsonl:1: half a surrogate pair \(\\ud800\)"),
        ("c.csv", b"id,review\n1,a\n", r"c.csv:1: no column 'text'.*id, review"),
        ("c.csv", b"id,text\n1,a\n2\n", "c.csv:3: 1 columns where the header has 2"),
        ("c.txt.gz", gzip.compress(b"a" * 999, mtime=0)[:-9], "c.txt.gz is damaged"),
        ("c.txt.gz", b"plain", "c.txt.gz is damaged"),
        ("c.txt.xz", lzma.compress(b"a" * 999)[:-9], "c.txt.xz is damaged"),
        ("c.txt.xz", b"plain", "c.txt.xz is damaged"),
    ],
)
def test_bad_input_is_located(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FirthError, match=message) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_offsets_and_lines_count_from_the_file_not_the_block(tmp_path):
    (tmp_path / "c.txt").write_bytes(b"a line\n" * 1000 + b"\xff")
    with pytest.raises(FirthError, match=r"c.txt:1001: .* offset 7,000"):
        documents([tmp_path / "c.txt"], block_bytes=256)
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "a"}\n' * 1000 + b"{")
    with pytest.raises(FirthError, match=r"c.jsonl:1001: not valid JSON"):
        documents([tmp_path / "c.jsonl"], block_bytes=256)


def test_a_record_beyond_all_measure_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("firth.data.corpus.text.LONGEST_RECORD", 1 << 20)
    (tmp_path / "c.jsonl").write_text('{"text": "' + "a" * (3 << 20))
    with pytest.raises(FirthError, match=r"c.jsonl:1: a line of more than 1 MiB"):
        documents([tmp_path / "c.jsonl"], block_bytes=1 << 16)


def test_missing_input(tmp_path):
    with pytest.raises(FirthError, match="no such file, and the pattern matches none"):
        find_sources([str(tmp_path / "*.txt")])
    with pytest.raises(FirthError, match=r"is a directory; write '.*/\*'"):
        find_sources([str(tmp_path)])
