"""Labelled texts for tests of fine-tuning, and an encoder that reads their words."""

import csv
from pathlib import Path

import numpy as np

from helpers.published.bert import add_tokenizer, make_bert

WORDS = ("the", "cat", "dog", "sat", "on", "mat", "ate", "fish", "and", "ran", "food")
NAMES = ("feline", "canine")  # a text with a cat in it, or not


def make_labelled(folder: Path, header: tuple[str, ...], num_layers: int, **counts: int) -> Path:
    """Fill a folder: a tiny BERT in `init`, and SPLIT.csv with so many texts for each split.

    `header` names the columns of text and label, and before them that of numbers, if there are
    three. Returns the folder.
    """
    make_bert(folder / "init", "BertForPreTraining", vocab_size=72, num_hidden_layers=num_layers)
    add_tokenizer(folder / "init")
    rng = np.random.default_rng(0)
    for split, count in counts.items():
        texts = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(count)]
        rows = [(i, text, NAMES["cat" not in text]) for i, text in enumerate(texts)]
        with (folder / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *(row[-len(header) :] for row in rows)])
    return folder
