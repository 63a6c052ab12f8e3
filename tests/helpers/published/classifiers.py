"""Small fine-tuned models with random weights: of three labels, and of a score."""

import functools

import pytest

import firth
from helpers.published.bert import WORDS, add_tokenizer, make_bert

LABELS = ("bad", "good", "so, so")  # one needs quotes in CSV
POSITIONS = 40


class Made:
    """A model: its folder, its encoder, and transformers' own pipeline, which loads slowly."""

    def __init__(self, folder, **settings):
        sizes = dict(vocab_size=len(WORDS), num_hidden_layers=2)
        make_bert(folder, "BertForSequenceClassification", **sizes, **settings)
        add_tokenizer(folder)
        self.folder, self.encoder = folder, firth.load(folder)

    @functools.cached_property
    def pipeline(self):
        import torch
        import transformers

        torch.set_num_threads(1)  # such small products are slower on many
        options = dict(top_k=None, truncation=True, max_length=POSITIONS)
        return transformers.pipeline("text-classification", str(self.folder), **options)


@pytest.fixture(scope="session")
def labelled(torch, tmp_path_factory):
    """A model of three labels."""
    names = dict(enumerate(LABELS))
    folder = tmp_path_factory.mktemp("labelled") / "m"
    return Made(folder, id2label=names, label2id={name: i for i, name in names.items()})


@pytest.fixture(scope="session")
def scored(torch, tmp_path_factory):
    """A model of one score."""
    folder = tmp_path_factory.mktemp("scored") / "m"
    return Made(folder, num_labels=1, problem_type="regression")
