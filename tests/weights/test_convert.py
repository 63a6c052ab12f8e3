"""`firth convert`: published files come back byte for byte."""

import json

import numpy as np
import pytest
import safetensors.numpy
from helpers.exchange import assert_same_files, edit_config, round_trip
from helpers.published.bert import CLASSES, add_tokenizer, make_bert, minilm

from firth import cli
from firth.errors import FirthError
from firth.weights.read import read_model


@pytest.mark.parametrize("name", CLASSES)
def test_round_trip_is_byte_identical(tmp_path, name):
    labels = dict(
        id2label={0: "bad", 1: "good", 2: "odd"}, label2id={"bad": 0, "good": 1, "odd": 2}
    )
    make_bert(tmp_path / "m", name, "gelu_tanh", **labels)
    add_tokenizer(tmp_path / "m")
    edit_config(tmp_path / "m", my_own_key={"kept": [1, 2]})
    back = round_trip(tmp_path / "m", tmp_path)
    assert_same_files(tmp_path / "m", back)
    assert {f.name for f in back.iterdir()} == {f.name for f in (tmp_path / "m").iterdir()} | {
        "README.md"
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_round_trip_of_half_precision_shards(tmp_path, dtype):
    import torch

    model = make_bert(tmp_path / "x", "BertForMaskedLM").to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "m", max_shard_size="20KB")
    assert len(list((tmp_path / "m").glob("model-*.safetensors"))) > 2
    saved = read_model(tmp_path / "m")
    assert saved.dtypes == (dtype,)
    table = saved.params["encoder"]["word"]["embedding"]
    theirs = model.bert.embeddings.word_embeddings.weight.detach().float().numpy()
    assert table.dtype == np.float32 and np.array_equal(table, theirs)
    assert_same_files(tmp_path / "m", round_trip(tmp_path / "m", tmp_path))


def test_round_trip_of_a_file_in_another_order(tmp_path):
    """Headers other writers lay out differently come back too: unsorted names, no padding."""
    make_bert(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    header, data = {}, b""
    for name in reversed(sorted(tensors)):
        size = tensors[name].nbytes
        header[name] = {
            "shape": list(tensors[name].shape),
            "data_offsets": [len(data), len(data) + size],
            "dtype": "F32",
        }
        data += tensors[name].tobytes()
    text = json.dumps(header, indent=1).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    assert_same_files(tmp_path / "m", round_trip(tmp_path / "m", tmp_path))


def test_round_trip_of_minilm(tmp_path):
    back = round_trip(minilm(), tmp_path)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt", "README.md"):
        assert (back / name).read_bytes() == (minilm() / name).read_bytes(), name


def test_what_is_no_model_is_named(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, message in (
        ("empty", "holds no model"),
        ("file", "is a file; expected a directory"),
        ("gone", "does not exist"),
    ):
        with pytest.raises(FirthError, match=message):
            read_model(tmp_path / name)
    assert cli.main(["convert", "--from", str(tmp_path / "gone"), "--to", "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
