"""`firth prepare --tfds` against the same documents in a JSONL file."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers import datasets
from helpers.cases import nightly
from helpers.corpora import make_documents
from helpers.datasets import tfds

from firth.cli import main
from firth.data.corpus.store import open_store
from firth.data.corpus.text import find_sources, read_batches
from firth.errors import FirthError

DOCUMENTS = ["\n".join(" ".join(line) for line in d) for d in make_documents(60, seed=3)]
ARRAYS = ("tokens.npy", "sentences.npy", "documents.npy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data_dir that holds `made_texts`, in three shards, with an empty document and odd ones."""
    folder = tmp_path_factory.mktemp("tfds")
    texts = [*DOCUMENTS, "", "Café\n\nblank line inside", "\ufeffmarked"]
    raw = tfds.features.Tensor(shape=(), dtype=np.str_)
    features = {"body": tfds.features.Text(), "number": np.int32, "raw": raw}
    rows = [{"body": text, "number": n, "raw": text.encode()} for n, text in enumerate(texts)]
    rows[7]["raw"] = b"caf\xe9"
    builder = datasets.make_builder("MadeTexts", features, {"train": rows, "test": rows[:9]})
    config = tfds.download.DownloadConfig(num_shards=3)
    builder(data_dir=str(folder)).download_and_prepare(download_config=config)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder, tmp_path_factory):
    """A vocabulary that was trained on the dataset by the command."""
    place = tmp_path_factory.mktemp("tokenizer")
    assert prepare(folder, place / "tok", place / "store", "--train-tokenizer", "wordpiece") == 0
    return place / "tok"


def prepare(folder, tokenizer, output, *options, name="made_texts"):
    command = ["prepare", "--tfds", name, "--text-field", "body", "--tfds-dir", folder]
    command += ["--tokenizer", tokenizer, "--output", output, "--vocab-size", 200, *options]
    return main([str(argument) for argument in command])


def as_jsonl(folder, split, path):
    """The documents of a split, file after file as they lie there, read by TFDS alone."""
    builder = tfds.builder("made_texts", data_dir=str(folder))
    config = tfds.ReadConfig(interleave_cycle_length=1, shuffle_seed=None)
    examples = tfds.as_numpy(builder.as_dataset(split=split, read_config=config))
    records = [json.dumps({"body": example["body"].decode()}) for example in examples]
    path.write_text("\n".join(records))
    return len(records)


def same_arrays(one, other):
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in ARRAYS)


@pytest.mark.parametrize(
    ("split", "options"),
    [
        nightly("train", ()),
        ("train[25%:75%]", ("--workers", "1")),
        ("test", ("--runner", "direct")),
    ],
)
def test_the_store_is_that_of_the_same_documents_in_a_file(
    folder, tokenizer, tmp_path, split, options
):
    name = f"made_texts:{split}"
    assert prepare(folder, tokenizer, tmp_path / "one", *options, name=name) == 0
    count = as_jsonl(folder, split, tmp_path / "c.jsonl")
    command = f"prepare --input {tmp_path}/c.jsonl --field body --tokenizer {tokenizer}"
    assert main([*command.split(), "--output", str(tmp_path / "other")]) == 0
    assert same_arrays(tmp_path / "one", tmp_path / "other")
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert [source["name"] for source in manifest["input"]] == [f"tfds:made_texts:1.0.0:{split}"]
    assert manifest["input"][0]["bytes"] > 0
    assert str(folder) not in json.dumps(manifest)
    assert open_store(tmp_path / "one").num_documents <= count


def test_a_new_process_says_nothing_but_its_result(folder, tokenizer, tmp_path):
    """It knows the dataset by its name and folder alone, as it lies there."""
    command = [sys.executable, "-m", "firth", "prepare", "--tfds", "made_texts:test"]
    command += ["--text-field", "body", "--tfds-dir", folder, "--tokenizer", tokenizer]
    command += ["--workers", "1", "--output", tmp_path / "store"]
    run = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    assert run.stdout.startswith(f"{tmp_path}/store: ") and len(run.stdout.splitlines()) == 1
    assert prepare(folder, tokenizer, tmp_path / "here", name="made_texts:test") == 0
    assert same_arrays(tmp_path / "store", tmp_path / "here")


def test_texts_are_read_a_block_at_a_time_and_their_bytes_counted(folder):
    (source,) = find_sources(["tfds:made_texts"], tfds_dir=str(folder))
    batches = list(read_batches([source], "body", "strict", block_bytes=500))
    assert len(batches) > 5
    assert max(sum(len(t) for t in block.content) for b in batches for block in b.blocks) < 2000
    positions = [batch.position for batch in batches]
    assert positions == sorted(positions) and positions[0] > 0 and positions[-1] == source.bytes
    half, _ = find_sources(
        ["tfds:made_texts:train[:50%]", "tfds:made_texts:test"], None, str(folder)
    )
    assert abs(half.bytes / source.bytes - 0.5) < 0.02


def test_a_dataset_that_was_made_again_is_read_again(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (before,) = find_sources(["tfds:made_texts"], tfds_dir=str(copy))
    (same,) = find_sources(["tfds:made_texts"], tfds_dir=str(copy))
    assert before.fingerprint() == same.fingerprint()
    info = copy / "made_texts" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace('"numBytes": "', '"numBytes": "1'))
    (after,) = find_sources(["tfds:made_texts"], tfds_dir=str(copy))
    assert before.fingerprint() != after.fingerprint() and before.name == after.name


def test_bytes_that_are_no_utf8(folder, tokenizer, tmp_path, capsys):
    assert prepare(folder, tokenizer, tmp_path / "store", "--text-field", "raw") == 2
    said = capsys.readouterr().err
    assert "tfds:made_texts:1.0.0:train: example " in said
    assert "not UTF-8: byte 0xe9 at offset 3; replace such bytes with --errors=replace" in said
    replaced = ("--text-field", "raw", "--errors", "replace")
    assert prepare(folder, tokenizer, tmp_path / "store", *replaced) == 0


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "made_texts",
            ("--text-field", "text"),
            "no feature 'text'; the features are body, number,",
        ),
        ("made_texts", ("--text-field", "number"), "feature 'number' is not text but "),
        ("made_texts:nope", (), "no split 'nope'; there are: 'train', 'test'"),
        ("none_such", (), "TFDS knows no such dataset, and none lies prepared in .*--tfds-dir"),
        (
            "imdb_reviews",
            (),
            r"`tfds build imdb_reviews --data_dir .*` first, or .*--tfds-download",
        ),
    ],
)
def test_bad_requests(folder, tokenizer, tmp_path, capsys, name, options, said):
    assert prepare(folder, tokenizer, tmp_path / "store", *options, name=name) == 2
    err = capsys.readouterr().err
    note, error = err.splitlines()
    assert note.startswith("note: the text gave a vocabulary of")
    assert re.search(said, error), err
    assert not (tmp_path / "store").exists() and not (folder / "imdb_reviews").exists()


def test_a_download_is_made_where_it_is_allowed(tokenizer, tmp_path):
    features, rows = {"body": tfds.features.Text()}, {"train": [{"body": "the vase broke ."}]}
    datasets.make_builder("MadeLater", features, rows, registered=True)
    output = tmp_path / "store"
    assert prepare(tmp_path, tokenizer, output, name="made_later") == 2
    assert not (tmp_path / "made_later").exists()
    assert prepare(tmp_path, tokenizer, output, "--tfds-download", name="made_later") == 0
    assert open_store(output).num_documents == 1


def test_nothing_to_prepare(tmp_path, capsys):
    assert main(["prepare", "--tokenizer", str(tmp_path), "--output", str(tmp_path / "s")]) == 2
    assert "name files with --input, or a dataset with --tfds" in capsys.readouterr().err


def test_without_tfds(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(FirthError, match=r"needs TensorFlow Datasets.*firth\[tf\]"):
        find_sources(["tfds:made_texts"])
