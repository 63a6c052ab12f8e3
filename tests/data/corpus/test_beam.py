"""`firth prepare --runner`: the bytes of the local path, whatever runs it and however it is cut."""

import gzip
import json
import lzma

import pytest
from helpers.corpora import as_text, make_documents, same_files

from firth.commands.prepare import main
from firth.data.corpus.parts import Options
from firth.data.corpus.prepare import prepare
from firth.errors import FirthError
from firth.tokenizers.load import load_tokenizer, train_tokenizer

TWO = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with the sources of every format, large, small and empty, and a tokenizer."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = make_documents(150, seed=2)
    lines = [" ".join(line) for d in documents for line in d]
    train_tokenizer("wordpiece", lines, 200).save(folder / "tok")
    (folder / "a.txt").write_text(as_text(documents[:60]), encoding="utf-8")
    with lzma.open(folder / "b.jsonl.xz", "wt", encoding="utf-8") as file:
        for document in documents[60:110]:
            text = "\n".join(" ".join(line) for line in document)
            file.write(json.dumps({"text": text}) + "\n")
    (folder / "c.txt").touch()
    for number, document in enumerate(documents[110:120]):
        (folder / f"d{number}.txt").write_text(as_text([document]), encoding="utf-8")
    with gzip.open(folder / "e.txt.gz", "wt", encoding="utf-8") as file:
        file.write(as_text(documents[120:]))
    return folder


def inputs(corpus):
    return [str(corpus / "[a-e]*.*")]


@pytest.mark.parametrize("block_bytes", [2 << 20, 3000, 500])
def test_the_bytes_are_those_of_the_local_path(tmp_path, corpus, block_bytes):
    tokenizer = load_tokenizer(corpus / "tok")
    local = prepare(inputs(corpus), tokenizer, tmp_path / "local", workers=1)
    made = prepare(
        inputs(corpus), tokenizer, tmp_path / "beam", runner="direct", block_bytes=block_bytes
    )
    assert made.num_documents == 150
    assert same_files(local.path, made.path)
    assert not (tmp_path / "beam.partial").exists()


def test_options_reach_the_workers(tmp_path, corpus):
    tokenizer = load_tokenizer(corpus / "tok")
    options = Options(sentences="line", document="file")
    local = prepare(inputs(corpus), tokenizer, tmp_path / "local", options, workers=1)
    made = prepare(inputs(corpus), tokenizer, tmp_path / "beam", options, runner="direct")
    assert same_files(local.path, made.path)
    assert made.num_documents == 62  # files, and rows of JSONL


@pytest.mark.slow
def test_two_processes_give_the_same_bytes(tmp_path, corpus):
    common = ["--input", *inputs(corpus), "--tokenizer", str(corpus / "tok"), "--output"]
    main([*common, str(tmp_path / "local"), "--workers=1"])
    main([*common, str(tmp_path / "beam"), "--runner=direct", "--", *TWO])
    assert same_files(tmp_path / "local", tmp_path / "beam")


def test_a_remote_store_is_made_at_its_url(tmp_path, corpus, monkeypatch):
    monkeypatch.setenv("FIRTH_CACHE", str(tmp_path / "cache"))
    tokenizer = load_tokenizer(corpus / "tok")
    remote = [f"file://{corpus}/[a-e]*.*"]
    local = prepare(inputs(corpus), tokenizer, tmp_path / "local", workers=1)
    url = f"file://{tmp_path}/bucket/store"
    made = prepare(remote, tokenizer, url, runner="direct", block_bytes=3000)
    assert same_files(local.path, tmp_path / "bucket" / "store")
    assert not (tmp_path / "bucket" / "store.partial").exists()
    assert made.path.is_relative_to(tmp_path / "cache") and made.digest == local.digest


def test_a_failed_pipeline_keeps_its_parts(tmp_path, corpus, monkeypatch):
    """The next one finds them, makes the rest, and the bytes are the same."""
    from firth.data.corpus import beam

    tokenizer = load_tokenizer(corpus / "tok")
    local = prepare(inputs(corpus), tokenizer, tmp_path / "local", workers=1)
    encode, made = beam.encode_blocks, []

    def counted(fail_at):
        def encode_some(*arguments):
            if len(made) == fail_at:
                raise MemoryError("the machine went away")
            made.append(arguments)
            return encode(*arguments)

        return encode_some

    arguments = dict(runner="direct", block_bytes=3000)
    monkeypatch.setattr(beam, "encode_blocks", counted(fail_at=9))
    with pytest.raises(FirthError, match=r"pipeline failed: .*the machine went away.* again"):
        prepare(inputs(corpus), tokenizer, tmp_path / "beam", **arguments)
    assert not (tmp_path / "beam").exists()
    parts = len(list((tmp_path / "beam.partial" / "parts").glob("*.npz")))
    assert parts == len(made) == 9
    monkeypatch.setattr(beam, "encode_blocks", counted(fail_at=-1))
    store = prepare(inputs(corpus), tokenizer, tmp_path / "beam", **arguments)
    assert same_files(local.path, store.path)
    total = len(made)
    made.clear()
    prepare(inputs(corpus), tokenizer, tmp_path / "undisturbed", **arguments)
    assert total == len(made)  # no part was made twice


def test_bad_input_is_one_line_and_leaves_no_store(tmp_path, corpus):
    (tmp_path / "bad.txt").write_bytes(b"a\nb \xff")
    tokenizer = load_tokenizer(corpus / "tok")
    with pytest.raises(FirthError, match=r"bad\.txt:2: not UTF-8: byte 0xff at offset 4") as caught:
        prepare(
            [*inputs(corpus), str(tmp_path / "bad.txt")],
            tokenizer,
            tmp_path / "store",
            runner="direct",
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists()
    (tmp_path / "empty.txt").touch()
    with pytest.raises(FirthError, match="the input holds no text"):
        prepare([str(tmp_path / "empty.txt")], tokenizer, tmp_path / "none", runner="direct")
    with pytest.raises(FirthError, match="--runner dirct: Unexpected pipeline runner"):
        prepare(inputs(corpus), tokenizer, tmp_path / "store", runner="dirct")
