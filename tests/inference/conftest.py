"""Fixtures for the tests of inference."""

import io
import sys
from types import SimpleNamespace

import pytest
from helpers.published.families import make_generator
from helpers.quick import jit

import firth
from firth import cli
from firth.inference import decode
from firth.tokenizers.load import train_tokenizer


@pytest.fixture(scope="module")
def quickly():
    """Compile what generates without optimising it."""
    with pytest.MonkeyPatch.context() as patch:
        prefill, decode_steps = decode._prefill.__wrapped__, decode._decode_steps.__wrapped__
        patch.setattr(decode, "_prefill", jit(prefill, static_argnames=("model", "capacity")))
        options = dict(static_argnames=("model", "size"), donate_argnames="state")
        patch.setattr(decode, "_decode_steps", jit(decode_steps, **options))
        yield


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level BPE of 282 tokens; its end of text is </s>."""
    return train_tokenizer("bpe", ["the cat sat on the mat and the dog ran ."] * 9, 290)


@pytest.fixture(scope="module")
def gpt2(quickly, torch, tokenizer, tmp_path_factory):
    """(directory, encoder) of a model with 9 rows without a token."""
    directory = tmp_path_factory.mktemp("gpt2") / "m"
    make_generator(directory, tokenizer)
    return directory, firth.load(directory)


@pytest.fixture
def stdin(monkeypatch):
    """`stdin(content)` puts these bytes on standard input."""
    return lambda content: monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content))
    )


@pytest.fixture
def printed(capsys):
    """`printed("fill", ...)` runs a verb of the command; returns what it printed."""

    def run(*arguments):
        assert cli.main([*map(str, arguments)]) == 0
        return capsys.readouterr().out

    return run
