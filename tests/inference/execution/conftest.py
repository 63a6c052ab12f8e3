"""The model whose programs these tests look at."""

import pytest
from helpers.published.bert import add_tokenizer, make_bert


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The directory of a random BERT of three layers with its tokenizer; nobody writes there."""
    directory = tmp_path_factory.mktemp("made") / "m"
    make_bert(directory, "BertForPreTraining", num_hidden_layers=3)
    add_tokenizer(directory)
    return directory
