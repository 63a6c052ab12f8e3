"""Weights for a vocabulary of another text: words keep their rows, new words get the mean row.

As ULMFiT moves a language model to its target (Howard and Ruder 2018; their released code). V words
of the weights, W of the new vocabulary.
"""

import dataclasses
import logging

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from firth.errors import FirthError
from firth.tokenizers.base import Tokenizer
from firth.weights.read import Saved

log = logging.getLogger("firth")

# The parameters with an entry a word, and the axis of the words.
AXES = {"encoder/word/embedding": 0, "lm/bias": 0, "mlm/bias": 0, "lm/softmax": 1}


def transfer_vocabulary(saved: Saved, tokenizer: Tokenizer) -> Saved:
    """The same model with the words of `tokenizer`, found in its own vocabulary as strings.

    A special token of another name is found by its role. A word that the weights lack gets the mean
    of all rows, in the embeddings, in a softmax of its own and in the biases. A tied softmax is the
    embeddings. Raises FirthError for weights without a tokenizer, for a softmax with classes of
    words, for a model that spells its words, and where no word is in both.
    """
    own = saved.tokenizer()
    if own is None:
        raise FirthError(f"{saved.source} holds no tokenizer, so its words are not known")
    if saved.spec.get("class_sizes"):
        raise FirthError(
            f"{saved.source} divides its words into classes by frequency, which are no other "
            "vocabulary's; set transfer_vocabulary=False"
        )
    if saved.spec.get("words"):
        raise FirthError(
            f"{saved.source} spells the words of its own vocabulary and has no rows for them to "
            "move; set transfer_vocabulary=False"
        )
    rows_W = np.array([_find(own, tokenizer, token) for token in tokenizer.vocab])
    known_W = rows_W >= 0
    if not known_W.any():
        raise FirthError(f"no word of the new vocabulary is one of {saved.source}")
    message = "%s of %s words are in %s too; the others begin as the mean word"
    log.info(message, f"{known_W.sum():,}", f"{len(rows_W):,}", saved.source)
    flat = flatten_dict(saved.params, sep="/")
    for name, axis in AXES.items():
        if name in flat:
            flat[name] = _taken(np.asarray(flat[name]), rows_W, axis, own.vocab_size)
    return dataclasses.replace(
        saved,
        spec=saved.spec | {"vocab_size": tokenizer.vocab_size},
        params=unflatten_dict(flat, sep="/"),
    )


def _find(own: Tokenizer, tokenizer: Tokenizer, token: str) -> int:
    """The id in `own` of a token of `tokenizer`, or -1."""
    found = own.id(token)
    for role, name in tokenizer.special_tokens.items():
        if found is None and name == token:
            found = own.id(own.special_tokens.get(role))
    return -1 if found is None else found


def _taken(array, rows_W, axis: int, size: int):
    """The entries of an array along `axis`, the mean of the first `size` for -1.

    A table may have more rows than there are words.
    """
    mean = array.take(np.arange(size), axis).mean(axis, keepdims=True, dtype=np.float64)
    with_mean = np.concatenate([array, mean.astype(array.dtype)], axis)
    return with_mean.take(np.where(rows_W < 0, array.shape[axis], rows_W), axis)
