"""Word vectors of Firth as a file of word2vec or GloVe, and such a file as a folder of Firth."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.models.word_vectors import files, formats
from firth.models.word_vectors.files import WordVectors
from firth.tokenizers.base import Tokenizer
from firth.tokenizers.load import load_tokenizer
from firth.tokenizers.train_words import END, UNKNOWN, word_vocabulary
from firth.weights.write import new_directory


def to_file(folder: str | os.PathLike, path: str | os.PathLike) -> WordVectors:
    """Write the word vectors of a folder to a file, whose ending chooses the format; returns them.

    See `firth.models.word_vectors.formats`. Raises FirthError for a word with white space.
    """
    words, _ = files.load(folder)
    vocab = load_tokenizer(Path(folder) / "tokenizer").vocab
    formats.write(Path(path), [vocab[number] for number in words.ids], words.vectors)
    return words


def from_file(path, folder: str | os.PathLike, overwrite: bool = False) -> WordVectors:
    """Make a folder of a file of word vectors: these, and a tokenizer of the words; returns them.

    Raises FirthError for a file that cannot be read and for a folder that is not empty.
    """
    names, vectors = formats.read(Path(path))
    tokenizer, words = with_tokenizer(names, vectors)
    with new_directory(folder, overwrite) as target:
        tokenizer.save(target / "tokenizer")
        files.save(words, target, source=Path(path).name)
    return words


def with_tokenizer(names: Sequence[str], vectors: np.ndarray) -> tuple[Tokenizer, WordVectors]:
    """A tokenizer that cuts text at white space and knows these words, and their vectors.

    `<unk>` and `<eos>` are its special tokens, whether or not they are among the words.
    """
    tokenizer = word_vocabulary([UNKNOWN, END, *(n for n in names if n not in (UNKNOWN, END))])
    return tokenizer, WordVectors(np.array([tokenizer.id(n) for n in names], np.int32), vectors)
