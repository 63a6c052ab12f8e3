"""model.json: defaults, and wrong content."""

import json

import pytest
from helpers.published.bert import make_bert

from firth.errors import FirthError
from firth.weights.read import read_model
from firth.weights.write import write_firth


def test_a_description_may_leave_defaults_out(tmp_path):
    make_bert(tmp_path / "m")
    saved = read_model(tmp_path / "m")
    write_firth(tmp_path / "f", saved)
    file = tmp_path / "f" / "model.json"
    whole = json.loads(file.read_text())
    for field in ("norm_epsilon", "dropout", "classifier_dropout", "type_vocab_size", "pooler"):
        del whole["model"][field]
    file.write_text(json.dumps(whole))
    assert read_model(tmp_path / "f").spec == saved.spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(firth=2), "firth=2; this Firth reads version 1"),
        (dict(model={"family": "gpt9"}), "model.family='gpt9'; Firth knows bert"),
        (dict(model=[]), "is damaged"),
        (dict(heads="mlm"), "is damaged"),
        (dict(num_labels=-1), "num_labels=-1, expected a positive integer"),
        (dict(heads=["mlm"]), "lacks 5 of its tensors"),
        (dict(heads=["pooh"]), "there is no head 'pooh'"),
    ],
)
def test_a_wrong_description_is_named(tmp_path, changes, message):
    make_bert(tmp_path / "m")
    write_firth(tmp_path / "f", read_model(tmp_path / "m"))
    file = tmp_path / "f" / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(FirthError, match=message):
        read_model(tmp_path / "f")


def test_an_unknown_field_of_the_description_is_named(tmp_path):
    make_bert(tmp_path / "m")
    write_firth(tmp_path / "f", read_model(tmp_path / "m"))
    file = tmp_path / "f" / "model.json"
    whole = json.loads(file.read_text())
    whole["model"]["hiden_size"] = 36
    file.write_text(json.dumps(whole))
    with pytest.raises(FirthError, match="model has no field hiden_size"):
        read_model(tmp_path / "f")
