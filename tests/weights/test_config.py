"""config.json: labels and kinds of task, and settings that are refused."""

import dataclasses
import json

import pytest
from helpers.exchange import edit_config
from helpers.published.bert import make_bert

from firth.errors import FirthError
from firth.weights.read import read_model
from firth.weights.write import write_published


@pytest.mark.parametrize(
    ("settings", "labels", "regression"),
    [
        (dict(num_labels=1), None, True),
        (dict(num_labels=3, problem_type="regression"), None, True),
        (dict(num_labels=3), None, False),
        (dict(id2label={0: "a", 1: "b"}), ("a", "b"), False),
    ],
)
def test_labels_and_kind_of_task(tmp_path, settings, labels, regression):
    make_bert(tmp_path / "m", "BertForSequenceClassification", **settings)
    saved = read_model(tmp_path / "m")
    assert (saved.heads, saved.labels, saved.regression) == (("classifier",), labels, regression)
    # Without its original files the model is written anew. It is read back the same.
    write_published(tmp_path / "new", dataclasses.replace(saved, published=None))
    again = read_model(tmp_path / "new")
    for field in ("spec", "heads", "num_labels", "labels", "regression"):
        assert getattr(again, field) == getattr(saved, field), field


def test_the_kind_of_task_and_the_names_of_the_labels_are_written(tmp_path):
    """In the order of the classifier's outputs, for transformers to read."""
    labels = {0: "yes", 1: "perhaps", 2: "no"}
    make_bert(tmp_path / "m", "BertForSequenceClassification", id2label=labels)
    make_bert(tmp_path / "r", "BertForSequenceClassification", num_labels=1)
    written = []
    for name in ("m", "r"):
        saved = dataclasses.replace(read_model(tmp_path / name), published=None)
        write_published(tmp_path / "new" / name, saved)
        written.append(json.loads((tmp_path / "new" / name / "config.json").read_text()))
    assert written[0]["id2label"] == {str(i): label for i, label in labels.items()}
    kinds = ["single_label_classification", "regression"]
    assert [config["problem_type"] for config in written] == kinds


def test_a_classifier_of_the_mean_stays_a_firth_directory(tmp_path):
    """transformers' classes read the first token; a body alone is published as any other."""
    make_bert(tmp_path / "in", "BertForSequenceClassification")
    saved = read_model(tmp_path / "in")
    mean = dataclasses.replace(saved, spec=saved.spec | {"classifier_pooling": "mean"})
    mean = dataclasses.replace(mean, published=None)
    message = "of bert has classifiers of the first token alone, and this model's read the mean"
    with pytest.raises(FirthError, match=message):
        write_published(tmp_path / "out", mean)
    assert not (tmp_path / "out").exists()
    body = dataclasses.replace(mean, heads=(), params={"encoder": saved.params["encoder"]})
    write_published(tmp_path / "body", body)
    assert "classifier_pooling" not in json.loads((tmp_path / "body" / "config.json").read_text())


def test_a_classifier_drops_as_the_layers_where_nothing_else_is_said(tmp_path):
    settings = dict(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    make_bert(tmp_path / "m", "BertForSequenceClassification")
    edit_config(tmp_path / "m", **settings, classifier_dropout=None)
    assert read_model(tmp_path / "m").spec["classifier_dropout"] == 0.3
    edit_config(tmp_path / "m", classifier_dropout=0.0)
    assert read_model(tmp_path / "m").spec["classifier_dropout"] == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(model_type="t5"), r"model_type 't5' is none that Firth reads \(bert"),
        (dict(model_type=None), "model_type None"),
        (dict(is_decoder=True), "is_decoder=True is not supported, only False"),
        (dict(position_embedding_type="relative_key"), "position_embedding_type='relative_key'"),
        (dict(hidden_act="silu"), "hidden_act='silu' is not supported; one of gelu"),
        (dict(hidden_size="36"), "hidden_size='36', expected a positive integer"),
        (dict(num_attention_heads=5), "hidden_size=36 is not a multiple of model.num_heads=5"),
        (dict(vocab_size=2**31 - 1, hidden_size=2**31 - 1, num_attention_heads=1), "expected"),
        (dict(hidden_dropout_prob=-1), "hidden_dropout_prob=-1, expected a number"),
        (dict(id2label={"0": "a", "2": "b"}), "id2label must map 0 .. C-1"),
        (dict(architectures=7), None),
    ],
)
def test_wrong_settings_are_named(tmp_path, changes, message):
    make_bert(tmp_path / "m")
    edit_config(tmp_path / "m", **changes)
    if message is None:
        assert read_model(tmp_path / "m").heads == ()
        return
    with pytest.raises(FirthError, match=message):
        read_model(tmp_path / "m")
