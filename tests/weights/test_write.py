"""Writing models: transformers loads them, and nothing else is overwritten."""

import dataclasses
import errno
import json
import os

import numpy as np
import pytest
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict
from helpers.cases import nightly
from helpers.exchange import contents
from helpers.published.bert import add_tokenizer, make_bert

from firth.errors import FirthError
from firth.weights.read import read_model
from firth.weights.write import new_directory, write_firth, write_published


@pytest.mark.parametrize(
    ("made_as", "heads", "pooler", "published_as"),
    [
        ("BertForPreTraining", ("mlm", "nsp"), True, "BertForPreTraining"),
        ("BertForPreTraining", ("mlm",), False, "BertForMaskedLM"),
        nightly("BertForPreTraining", ("nsp",), True, "BertForNextSentencePrediction"),
        nightly("BertForPreTraining", (), True, "BertModel"),
        ("BertForSequenceClassification", ("classifier",), True, "BertForSequenceClassification"),
    ],
)
def test_a_trained_model_loads_in_transformers(tmp_path, made_as, heads, pooler, published_as):
    """No key is missing or left over, and the outputs are ours."""
    import torch
    import transformers

    make_bert(tmp_path / "m", made_as, "gelu_tanh", num_labels=3)
    tokenizer = add_tokenizer(tmp_path / "m")
    read = read_model(tmp_path / "m")
    params = {name: read.params[name] for name in ("encoder", *heads)}
    if not pooler:
        params["encoder"] = {k: v for k, v in params["encoder"].items() if k != "pooler"}
    labels = ("no", "perhaps", "yes") if heads == ("classifier",) else None
    saved = dataclasses.replace(
        read,
        spec=read.spec | {"pooler": pooler},
        heads=heads,
        params=params,
        labels=labels,
        published=None,
    )
    write_published(tmp_path / "out", saved)

    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [published_as]
    loader = getattr(transformers, published_as)
    model, report = loader.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values()), report
    auto = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert auto.hidden_act == "gelu_new" and auto.pad_token_id == tokenizer.pad_token_id
    if labels:
        assert auto.id2label == dict(enumerate(labels)) and auto.label2id["yes"] == 2
        assert auto.problem_type == "single_label_classification"
    assert (tmp_path / "out" / "README.md").read_text().startswith("---\nlibrary_name:")

    text = ["the cat sat on the mat", "a dog ran"]
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    batch = again(text, padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == tokenizer(text, padding=True)["input_ids"]
    with torch.no_grad():
        theirs = model.eval()(**batch, output_hidden_states=True)
    args = (batch[k].numpy() for k in ("input_ids", "token_type_ids", "attention_mask"))
    tokens, segments, mask = args
    out, logits = saved.model().apply({"params": params}, tokens, segments, mask.astype(bool))
    for ours, hidden in zip(out.hidden, theirs.hidden_states, strict=True):
        np.testing.assert_allclose(ours, hidden.numpy(), rtol=0, atol=1e-5)
    for head, name in (("mlm", "prediction_logits"), ("nsp", "seq_relationship_logits")):
        if heads == ("mlm", "nsp"):
            np.testing.assert_allclose(logits[head], theirs[name].numpy(), rtol=0, atol=1e-5)
    if len(heads) == 1:
        np.testing.assert_allclose(logits[heads[0]], theirs.logits.numpy(), rtol=0, atol=1e-5)


def test_changed_weights_are_written_as_they_are(tmp_path):
    """A half-precision source does not round what was trained on in float32."""
    import torch

    make_bert(tmp_path / "x").to(torch.float16).save_pretrained(tmp_path / "m")
    saved = read_model(tmp_path / "m")
    flat = {k: v + np.float32(1e-6) for k, v in flatten_dict(saved.params).items()}
    write_published(tmp_path / "out", dataclasses.replace(saved, params=unflatten_dict(flat)))
    again = read_model(tmp_path / "out")
    assert again.dtypes == ("float32",)
    found = flatten_dict(again.params)
    assert all(np.array_equal(found[k], flat[k]) for k in flat)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


def test_new_names_of_the_labels_are_written_though_the_weights_are_the_same(tmp_path):
    make_bert(tmp_path / "m", "BertForSequenceClassification", num_labels=2)
    named = dataclasses.replace(read_model(tmp_path / "m"), labels=("bad", "good"))
    write_published(tmp_path / "out", named)
    assert read_model(tmp_path / "out").labels == ("bad", "good")


def test_who_may_read_a_file_may_read_the_weights(tmp_path):
    """safetensors gives its files to the owner alone."""
    make_bert(tmp_path / "m")
    write_published(
        tmp_path / "out", dataclasses.replace(read_model(tmp_path / "m"), published=None)
    )
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


def test_a_damaged_original_section_is_named_and_escapes_nowhere(tmp_path):
    make_bert(tmp_path / "m")
    write_firth(tmp_path / "f", read_model(tmp_path / "m"))
    file = tmp_path / "f" / "model.json"
    whole = json.loads(file.read_text())
    header = whole["published"]["files"]["model.safetensors"]
    for files in ({"../m/model.safetensors": header}, {"x": "{"}, {"x": '{"a": 1}'}, [1]):
        whole["published"]["files"] = files
        file.write_text(json.dumps(whole))
        with pytest.raises(FirthError, match="the section `published` is damaged"):
            write_published(tmp_path / "out", read_model(tmp_path / "f"))
        assert not (tmp_path / "out").exists()


def test_only_a_model_directory_is_overwritten_and_only_when_asked(tmp_path):
    make_bert(tmp_path / "m")
    saved = read_model(tmp_path / "m")
    (tmp_path / "empty").mkdir()
    write_firth(tmp_path / "empty", saved)
    with pytest.raises(FirthError, match="is not empty; choose another, or overwrite"):
        write_firth(tmp_path / "empty", saved)
    write_published(tmp_path / "empty", saved, overwrite=True)
    assert not (tmp_path / "empty" / "model.json").exists()

    work = tmp_path / "work"
    (work / "checkpoints").mkdir(parents=True)
    (work / "config.json").write_text("{}")
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "thesis.txt").write_text("years of work")
    for precious in (work, notes):
        before = contents(precious)
        with pytest.raises(FirthError, match="it is not overwritten"):
            write_firth(precious, saved, overwrite=True)
        assert contents(precious) == before
    with pytest.raises(FirthError, match="is a file"):
        write_firth(notes / "thesis.txt", saved, overwrite=True)


@pytest.mark.parametrize("write", [write_firth, write_published])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, write):
    make_bert(tmp_path / "m", "BertForMaskedLM")
    saved = dataclasses.replace(read_model(tmp_path / "m"), published=None)
    write(tmp_path / "out", saved)
    before = contents(tmp_path)

    def full(*_):
        raise safetensors.SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    for target in ("out", "other"):
        with pytest.raises(FirthError, match="cannot be written: No space left on device"):
            write(tmp_path / target, saved, overwrite=True)
    assert contents(tmp_path) == before and not (tmp_path / "other").exists()


def test_a_failed_exchange_of_directories_brings_the_old_one_back(tmp_path, monkeypatch):
    target = tmp_path / "d"
    target.mkdir()
    (target / "config.json").write_text("old")
    real, calls = os.rename, []

    def failing(source, destination):
        calls.append(source)
        if len(calls) == 2:
            raise OSError(errno.EIO, "input/output error")
        real(source, destination)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(FirthError, match="cannot be written"), new_directory(target, True) as new:
        (new / "config.json").write_text("new")
    assert contents(tmp_path) == {(target / "config.json").relative_to(tmp_path): b"old"}
