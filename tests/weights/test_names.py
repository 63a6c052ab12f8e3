"""Published tensor names: old and tied ones, other heads, and wrong tensors."""

import logging

import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from helpers.exchange import assert_same_files, edit_config, rewrite, round_trip
from helpers.published.bert import make_bert

from firth.errors import FirthError
from firth.weights import buffers, names
from firth.weights.names import check_params
from firth.weights.read import read_model
from firth.weights.write import write_published


def old_spelling(tensors):
    """A file as it was published in 2019: gamma and beta, position ids, the decoder's copies."""
    tensors = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in tensors.items()
    }
    tensors["bert.embeddings.position_ids"] = np.arange(40)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    return tensors


def only_the_decoders_copies(tensors):
    tensors["cls.predictions.decoder.weight"] = tensors.pop(
        "bert.embeddings.word_embeddings.weight"
    )
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    return tensors


@pytest.mark.parametrize("change", [old_spelling, only_the_decoders_copies])
def test_old_and_tied_names_are_read_and_written_back(tmp_path, change):
    make_bert(tmp_path / "m", "BertForPreTraining")
    expected = flatten_dict(read_model(tmp_path / "m").params)
    rewrite(tmp_path / "m", change, metadata={"made": "by hand"})
    found = flatten_dict(read_model(tmp_path / "m").params)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[k], expected[k]) for k in expected)
    assert_same_files(tmp_path / "m", round_trip(tmp_path / "m", tmp_path))


def drop(name):
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


def change(name, function):
    return lambda tensors: tensors | {name: function(tensors[name])}


WORD = "bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (drop(WORD), f"lacks 1 of its tensors: {WORD}"),
        (
            drop("bert.encoder.layer.1.output.dense.bias"),
            r"lacks 1 of its tensors: bert\.encoder\.layer\.1\.output\.dense\.bias",
        ),
        (drop("cls.predictions.bias"), r"lacks 1 of its tensors: cls\.predictions\.bias"),
        (drop("bert.pooler.dense.bias"), r"lacks 1 of its tensors: bert\.pooler\.dense\.bias"),
        (change(WORD, lambda x: x[:-2]), rf"{WORD} is \[95, 36\], expected \[97, 36\]"),
        (change(WORD, lambda x: x.astype(np.int8)), f"{WORD} is int8; expected float32"),
        (change(WORD, lambda x: x.astype(np.float64)), f"{WORD} is float64; expected float32"),
        (
            lambda t: t | {"cls.predictions.decoder.weight": t[WORD] + 1},
            "word_embeddings.weight differs from cls.predictions.decoder.weight|"
            "decoder.weight differs from bert.embeddings.word_embeddings.weight",
        ),
        (lambda t: t | {"bert.embeddings.position_ids": np.ones((1, 40), int)}, "is not 0 .. 39"),
    ],
)
def test_wrong_tensors_are_named(tmp_path, edit, message):
    make_bert(tmp_path / "m", "BertForPreTraining")
    rewrite(tmp_path / "m", edit)
    with pytest.raises(FirthError, match=message):
        read_model(tmp_path / "m")


def test_tensors_that_the_model_has_not_are_named(tmp_path):
    make_bert(tmp_path / "m")
    saved = read_model(tmp_path / "m")
    flat = flatten_dict(saved.params, sep="/")
    check_params(flat, saved, "here")
    with pytest.raises(FirthError, match="here holds tensors that the model has not: encoder/more"):
        check_params(flat | {"encoder/more": np.zeros(2)}, saved, "here")


def test_positions_too_many_for_memory_are_refused_before_they_are_made(tmp_path, monkeypatch):
    make_bert(tmp_path / "m")
    rewrite(tmp_path / "m", lambda t: t | {"embeddings.position_ids": np.arange(40)[None]})
    edit_config(tmp_path / "m", max_position_embeddings=2**31 - 1)
    monkeypatch.setattr(buffers, "value", lambda *_: pytest.fail("this would take 16 GB"))
    with pytest.raises(FirthError, match=r"position_ids is not 0 \.\. 2147483646"):
        read_model(tmp_path / "m")


def test_more_layers_than_tensors_are_refused_before_they_are_named(tmp_path, monkeypatch):
    make_bert(tmp_path / "m")
    edit_config(tmp_path / "m", num_hidden_layers=10**9)
    monkeypatch.setattr(names, "name_table", lambda *_: pytest.fail("this would take 100 GB"))
    with pytest.raises(FirthError, match="tensors, too few for num_layers=1000000000"):
        read_model(tmp_path / "m")


def test_other_heads_are_left_out_with_a_warning(tmp_path, caplog):
    make_bert(tmp_path / "m", "BertForTokenClassification")
    with caplog.at_level(logging.WARNING, "firth"):
        saved = read_model(tmp_path / "m")
    assert saved.heads == () and saved.spec["pooler"] is False
    assert "no place for 2 tensors, left out: classifier" in caplog.text
    # What is written back is an encoder that transformers takes, without the head.
    write_published(tmp_path / "out", saved)
    assert read_model(tmp_path / "out").heads == ()
