"""A store as the text that word vectors are trained on, in pieces of one size. T tokens."""

import logging
from dataclasses import dataclass

import numpy as np

from firth.data.corpus.store import Store
from firth.errors import FirthError
from firth.models.word_vectors.vocabulary import Vocabulary, choose
from firth.tokenizers.base import Tokenizer

log = logging.getLogger("firth")
UNITS = ("sentence", "document")
PIECE = 1 << 19  # tokens, at most


@dataclass(frozen=True)
class Corpus:
    """words: the vocabulary. rows: int32, the number of each token's word, -1 for none.

    tokens: [T], as stored. borders: int64, where each sentence or document begins. pieces: how many
    pieces there are. size: tokens of a piece, the last one filled up.
    """

    words: Vocabulary
    rows: np.ndarray
    tokens: np.ndarray
    borders: np.ndarray
    pieces: int
    size: int

    def __len__(self):
        return len(self.tokens)

    def piece(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(numbers of words int32 [size], -1 for no word; the number of each one's sentence)."""
        begin = number * self.size
        words = self.rows[np.asarray(self.tokens[begin : begin + self.size])]
        words = np.pad(words, (0, self.size - len(words)), constant_values=-1)
        return words, np.searchsorted(self.borders, np.arange(begin, begin + self.size), "right")


def read_corpus(store: Store, tokenizer: Tokenizer, within: str, min_count: int, max_words: int):
    """The Corpus of a store, whose windows stay `within` a "sentence" or "document".

    Special tokens and the unknown word get no vector. Raises FirthError for another unit, and for a
    store with too few words that occur `min_count` times.
    """
    if within not in UNITS:
        raise FirthError(f"data.within={within!r}: expected one of {', '.join(UNITS)}")
    if tokenizer.kind != "word":
        log.info(
            "the store has a vocabulary of kind %s, so the vectors are of its pieces; for vectors "
            "of words prepare the text with --train-tokenizer word",
            tokenizer.kind,
        )
    special = [*tokenizer.special_ids, *([] if tokenizer.end_id is None else [tokenizer.end_id])]
    words = choose(store.token_counts(), special, min_count, max_words)
    borders = store.sentences if within == "sentence" else store.sentences[store.documents]
    pieces = -(-store.num_tokens // PIECE)
    size = -(-store.num_tokens // pieces)
    rows = words.rows(tokenizer.vocab_size)
    return Corpus(words, rows, store.tokens, np.asarray(borders), pieces, size)
