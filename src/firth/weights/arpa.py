"""An n-gram model of Firth as an ARPA file, and an ARPA file of any toolkit as a model of Firth."""

import os
from pathlib import Path

from firth.errors import FirthError
from firth.models.ngram import arpa, files
from firth.models.ngram.model import Ngram
from firth.tokenizers.load import load_tokenizer
from firth.tokenizers.train_words import END, UNKNOWN, word_vocabulary
from firth.weights.write import new_directory

SUFFIX = ".arpa"


def is_arpa(path: str | os.PathLike) -> bool:
    """Whether a path names an ARPA file."""
    return str(path).endswith(SUFFIX)


def check_file(path: str | os.PathLike, overwrite: bool = False) -> None:
    """Raise FirthError unless an ARPA file may be written here."""
    path = Path(path)
    if path.exists() and not (path.is_file() and overwrite):
        raise FirthError(f"{path} exists already; choose another, or overwrite it (--overwrite)")
    if not path.absolute().parent.is_dir():
        raise FirthError(f"{path} cannot be written: {path.parent} is no folder")


def to_arpa(folder: str | os.PathLike, path: str | os.PathLike) -> Ngram:
    """Write the n-gram model of a folder as an ARPA file; returns the model.

    The token that ends a sentence becomes `</s>`, the unknown word `<unk>`. Raises FirthError for a
    token with white space, and for a vocabulary that has another word of these names.
    """
    model, _ = files.load(folder)
    tokenizer = load_tokenizer(Path(folder) / "tokenizer")
    words = list(tokenizer.vocab)
    named = {tokenizer.end_id: arpa.END, tokenizer.unk_id: arpa.UNKNOWN}
    for number, name in named.items():
        if number is not None:
            words[number] = name
    if len(set(words)) != len(words):
        twice = next(word for word in words if words.count(word) > 1)
        raise FirthError(
            f"{folder}: the vocabulary has {twice!r} twice, once as a word of the text"
        )
    arpa.write(model, words, Path(path))
    return model


def from_arpa(path: str | os.PathLike, folder: str | os.PathLike, overwrite: bool = False) -> Ngram:
    """Make a folder of an ARPA file: the model, and a tokenizer of its words; returns the model.

    Raises FirthError for a file that cannot be read, see `firth.models.ngram.arpa.read`, and for a
    folder that is not empty.
    """
    model, words = arpa.read(path)
    tokenizer = word_vocabulary([UNKNOWN, END, *words[2:]])
    with new_directory(folder, overwrite) as target:
        tokenizer.save(target / "tokenizer")
        files.save(model, target, ends="sentence", source=Path(path).name)
    return model
