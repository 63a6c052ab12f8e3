"""A store as one stream of tokens, with the ends of its sentences or documents as tokens.

This is what language models are compared on. T tokens.
"""

from dataclasses import dataclass

import numpy as np

from firth.data.corpus.store import Store
from firth.errors import FirthError
from firth.tokenizers.base import Tokenizer

ENDS = ("sentence", "document", "none")


@dataclass(frozen=True)
class Stream:
    """tokens: int32 [T], each an event to predict. starts: bool [T], the first of each text."""

    tokens: np.ndarray
    starts: np.ndarray

    def __len__(self):
        return len(self.tokens)


def read_stream(store: Store, tokenizer: Tokenizer, ends: str) -> Stream:
    """The whole text of a store in its order.

    An end token follows each sentence (`ends="sentence"`: the <eos> that stands for PTB's newlines)
    or each document ("document"), and what comes after it is a start. With "none", for a store with
    line ends as tokens, no token is added, and documents are starts. Takes 9 bytes a token. Raises
    FirthError for another value of `ends`, for a tokenizer without end token and an empty store.
    """
    if ends not in ENDS:
        raise FirthError(f"data.ends={ends!r}: expected one of {', '.join(ENDS)}")
    if ends != "none" and tokenizer.end_id is None:
        raise FirthError(
            f"the tokenizer of {store.path} has no end token, which ends each {ends}; prepare the "
            "text with --train-tokenizer word, or a tokenizer that has <eos> or </s>"
        )
    if not store.num_tokens:
        raise FirthError(f"{store.path} holds no tokens")
    borders = store.sentences if ends == "sentence" else store.sentences[store.documents]
    borders = np.asarray(borders)
    if ends == "none":
        starts = np.zeros(store.num_tokens, bool)
        starts[borders[:-1]] = True
        return Stream(np.asarray(store.tokens, np.int32), starts)
    tokens = np.insert(np.asarray(store.tokens, np.int32), borders[1:], tokenizer.end_id)
    starts = np.zeros(len(tokens), bool)
    starts[borders[:-1] + np.arange(len(borders) - 1)] = True
    return Stream(tokens, starts)


def characters(stream: Stream, tokenizer: Tokenizer) -> int:
    """How many characters the text of a stream has.

    Words have a space or a line end after each of them; an unknown one counts as its token. In a
    vocabulary of characters every token is one, also the unknown one and an end. Of other
    tokenizers each text is decoded, and its end, if it has one, counts as a character.
    """
    if tokenizer.kind == "char":
        return len(stream)
    if tokenizer.kind == "word":
        lengths = np.array([len(token) + 1 for token in tokenizer.vocab])
        lengths[tokenizer.end_id] = 0  # its line end is the space of the word before it
        return int(lengths[stream.tokens].sum())
    texts = np.split(stream.tokens, np.flatnonzero(stream.starts)[1:])
    ended = [int(text[-1] == tokenizer.end_id) for text in texts]
    return sum(
        len(tokenizer.decode(text[: len(text) - end].tolist(), skip_special=False)) + end
        for text, end in zip(texts, ended, strict=True)
    )
