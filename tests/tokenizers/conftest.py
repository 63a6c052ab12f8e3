"""Fixtures for the tests of tokenizers."""

import json

import pytest


@pytest.fixture(scope="module")
def articles(shared_data):
    """The paragraphs of the first articles of the Wikipedia sample."""
    import lzma

    path = shared_data("wikipedia_en_sample/articles.jsonl.xz")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(next(lines))["text"] for _ in range(150)]
    return [line for text in texts for line in text.split("\n") if line]
