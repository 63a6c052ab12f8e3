"""`convert --push`: the hub's own library uploads to a hub on this machine."""

import json

import huggingface_hub
import pytest
from helpers.hub import Hub
from helpers.published.bert import add_tokenizer, make_bert

from firth import cli
from firth.errors import FirthError
from firth.weights.hub import check_push, push


@pytest.fixture
def model(tmp_path):
    """A Firth directory with a tokenizer."""
    make_bert(tmp_path / "bert")
    add_tokenizer(tmp_path / "bert")
    command = ["convert", "--from", str(tmp_path / "bert"), "--to", str(tmp_path / "firth")]
    assert cli.main(command) == 0
    return tmp_path / "firth"


@pytest.fixture
def use(monkeypatch):
    """`use(hub)`: the library's own client speaks to this one, with a token."""

    def point(hub: Hub):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")

    return point


def convert(model, *more):
    return cli.main(["convert", "--from", str(model), "--to", str(model.parent / "out"), *more])


def test_a_model_is_uploaded_as_it_is_written(model, use, capsys):
    """Once private, and a second time over it, as public as it was."""
    with Hub() as hub:
        use(hub)
        assert convert(model, "--push=me/mine", "--private", "--license=mit") == 0
        assert f"{hub.address}/me/mine" in capsys.readouterr().out
        written = {p.name: p.read_bytes() for p in (model.parent / "out").iterdir()}
        assert hub.files == {"me/mine": written} and "model.safetensors" in written
        assert hub.made == {"me/mine": True} and hub.tokens >= {"Bearer hf_secret"}
        assert hub.cards[0]["license"] == "mit"
        assert convert(model, "--push=me/mine", "--overwrite") == 0
        assert hub.made == {"me/mine": True}
        again = hub.files["me/mine"]["README.md"].decode()
        assert "license" not in again.split("---")[1]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "the hub does not know the token"),
        (403, "the token may not write to me/mine"),
        (500, "500 Internal Server Error"),
    ],
)
def test_a_hub_that_refuses_is_named_in_one_line(model, use, capsys, status, message):
    """What was written stays, since it is whole."""
    with Hub(refuses=status) as hub:
        use(hub)
        assert convert(model, "--push=me/mine") == 2
    error = capsys.readouterr().err
    assert "firth convert: error: --push me/mine: " in error and message in error
    assert error.count("\n") == 2 and "is written, but not uploaded" in error
    config = json.loads((model.parent / "out" / "config.json").read_text())
    assert config["model_type"] == "bert"


def test_no_network_is_named_in_one_line(model, use):
    with Hub() as hub:
        use(hub)
    with pytest.raises(FirthError, match=r"not uploaded: .*(refused|connect)"):
        push(model, "me/mine")


def test_without_a_token_nothing_is_written(model, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert convert(model, "--push=me/mine") == 2
    assert "no token of the hub is at hand; run `hf auth login`" in capsys.readouterr().err
    assert not (model.parent / "out").exists()


@pytest.mark.parametrize("name", ["mine", "me/mine/more", "me/-mine", "me/mi ne", ""])
def test_names_that_no_model_can_have(name, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(FirthError, match=r"expected ORG/NAME"):
        check_push(name)
