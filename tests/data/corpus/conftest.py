"""Fixtures for the tests of corpora."""

import pytest

from firth.tokenizers.load import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("wordpiece", ["the vase broke when it fell off the table"] * 3, 100)
