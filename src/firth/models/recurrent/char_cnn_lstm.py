"""The character-aware language model of Kim et al. (2016): words from characters, then an LSTM.

A word is spelt with a begin and an end mark. A character CNN makes its vector, recurrent layers
read those, and a softmax over words predicts the next one. The vocabulary of words is closed.

B rows, L length, V vocabulary, W characters of a word, F filters in all, D hidden size.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.layers.characters.cnn import CharacterCNN
from firth.layers.dropout import Dropout
from firth.layers.products import spelt
from firth.layers.recurrent import Stack
from firth.models.model import Encoded, sized
from firth.models.published import Published
from firth.models.recurrent import lstm
from firth.tokenizers.special_tokens import GPT
from firth.tokenizers.train_words import END, UNKNOWN

# (hidden size, width of the widest filters, filters per width, highway layers): small and large are
# the paper's (table 2)
SIZES = {"tiny": (128, 4, 16, 1), "small": (300, 6, 25, 1), "large": (650, 7, 50, 2)}
BEGIN, STOP = 1, 2  # ids of the marks of a word; 0 is no character
FIRST = 3  # the first id of a character


def size(name: str) -> dict:
    """Dimensions of a size."""
    names = ("hidden_size", "filter_widths", "filters_per_width", "highways")
    return dict(zip(names, sized("the character-aware model", SIZES, name), strict=True))


@dataclasses.dataclass(frozen=True)
class Config(lstm.Config):
    """Dimensions and numerics; the defaults are the paper's small network.

    There are `filters_per_width` times w filters of each width w from 1 to `filter_widths`, at most
    `most_filters`, over embeddings of characters `character_size` wide. `words` is the vocabulary
    in the order of its ids, a space between words; a run fills it in. Where it is empty the words
    are the decimal numbers of their ids.
    """

    products = spelt
    tied_softmax: ClassVar[bool] = False
    capped_input_gate: ClassVar[bool] = False
    sums_layers: ClassVar[bool] = False
    state_dropout: ClassVar[float] = 0.0
    embedding_dropout: ClassVar[float] = 0.0
    embedding_size: ClassVar[int] = 0

    hidden_size: int = 300
    character_size: int = 15
    filter_widths: int = 6
    filters_per_width: int = 25
    most_filters: int = 200
    highways: int = 1
    words: str = ""

    @property
    def filters(self) -> tuple[tuple[int, int], ...]:
        """(width, number) of the filters of each width."""
        widths = range(1, self.filter_widths + 1)
        return tuple((w, min(self.filters_per_width * w, self.most_filters)) for w in widths)

    @property
    def embedding_width(self) -> int:
        """F: the width of a word's vector."""
        return sum(number for _, number in self.filters)

    @property
    def spellings(self) -> tuple[np.ndarray, int]:
        """The characters of every word; see `spell`."""
        return spell(self.words or " ".join(map(str, range(self.vocab_size))), self.filter_widths)

    def __post_init__(self):
        for name in ("vocab_size", "num_layers", "hidden_size", "character_size", "filter_widths"):
            if getattr(self, name) < 1:
                raise FirthError(f"model.{name}={getattr(self, name)} should be at least 1")
        if min(self.filters_per_width, self.most_filters) < 1 or self.highways < 0:
            raise FirthError(
                f"model.filters_per_width={self.filters_per_width}, model.most_filters="
                f"{self.most_filters}, model.highways={self.highways}: expected at least one "
                "filter of each width, and 0 or more highway layers"
            )
        if self.words and (count := self.words.count(" ") + 1) != self.vocab_size:
            raise FirthError(
                f"model.words has {count:,} words, but model.vocab_size={self.vocab_size}; the "
                "vocabulary is closed: leave model.vocab_size=0"
            )
        if self.scan:
            raise FirthError("model.scan=True needs layers of one shape, which these are not")
        lstm.check_numerics(self)


@functools.lru_cache(maxsize=4)
def spell(words: str, least: int) -> tuple[np.ndarray, int]:
    """(int32 [V, W] characters of every word, how many ids there are).

    `words` has a space between words. A word is BEGIN, its characters, STOP and zeros. W is that of
    the longest word, or `least`. The unknown word and the end token have one character of their
    own (the "|" and "+" of the paper's code). Characters have the order of their code points.
    """
    parts = [(word,) if word in (UNKNOWN, END) else tuple(word) for word in words.split(" ")]
    ids = {c: FIRST + i for i, c in enumerate(sorted({c for part in parts for c in part}))}
    longest = max(max(map(len, parts)) + 2, least)
    table = np.zeros((len(parts), longest), np.int32)
    for row, part in zip(table, parts, strict=True):
        row[: len(part) + 2] = [BEGIN, *(ids[c] for c in part), STOP]
    return table, FIRST + len(ids)


def vocabulary(tokenizer) -> str:
    """`Config.words` of a tokenizer; FirthError for one whose tokens are not words."""
    if tokenizer.kind != "word":
        raise FirthError(
            f"model.family='char_cnn_lstm' spells words, but the tokens of this {tokenizer.kind} "
            "tokenizer are not words; prepare the text with --train-tokenizer word"
        )
    return " ".join(tokenizer.vocab)


class Body(lstm.Body):
    """A character CNN and recurrent layers; `Encoded.last` is D wide, `hidden` max(F, D)."""

    config: Config

    def setup(self):
        """Name the parts."""
        c = self.config
        self.words = CharacterCNN(
            characters=c.spellings[1],
            width=c.character_size,
            filters=c.filters,
            activation="tanh",
            highways=c.highways,
            init_range=c.init_range,
            dtype=c.dtype,
        )
        self.drop = Dropout(c.output_dropout)
        self.stack = Stack(c)

    def embed(self, tokens_BL, segments_BL, mask_BL, *, train: bool):
        """Vectors of words [B, L, F].

        The CNN runs over the words of the batch, or over the vocabulary where that has fewer.
        """
        del segments_BL, mask_BL, train
        table_VW = jnp.asarray(self.config.spellings[0])
        if tokens_BL.size > len(table_VW):
            return self.words(table_VW)[tokens_BL]
        return self.words(table_VW[tokens_BL])

    def encode(self, e_BLF, mask_BL, *, train: bool, memory=None) -> Encoded:
        """The layers over vectors of words; zeros fill the narrower ones of `hidden` up."""
        c = self.config
        state = self.empty_memory(len(e_BLF)) if memory is None else memory
        layers, state = self.stack(e_BLF, mask_BL, state, train=train)
        wide = max(c.embedding_width, c.hidden_size)

        def padded(x):
            return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, wide - x.shape[-1])])

        hidden = jnp.concatenate([padded(e_BLF)[None], padded(layers)])
        last_BLD = self.drop(layers[-1], train=train)
        return Encoded(last_BLD, hidden, memory=jax.lax.stop_gradient(state))


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = GPT
PUBLISHED = Published()  # as the LSTM's
