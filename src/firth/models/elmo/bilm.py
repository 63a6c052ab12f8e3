"""ELMo: a forward and a backward language model over words read by their characters.

Peters et al. (2018, section 3), as their released code runs it. The two directions share the
character CNN and the softmax. Every sentence is read between "<S>" and "</S>", and these have no
vectors in the result.

B rows, L length, W characters of a word, P width of one direction, D = 2 P, H cells, N layers.
"""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.characters.cnn import CharacterCNN, check_filters
from firth.layers.dropout import Dropout
from firth.layers.products import INPUTS, RECURRENT, Product
from firth.layers.transformer import ACTIVATIONS
from firth.models.elmo.stack import Stack
from firth.models.model import Encoded, sized
from firth.models.published import Published
from firth.tokenizers.spelling import BEGIN, END, spell

DIRECTIONS = ("forward", "backward")
# (cells, width of both directions, highway layers); tiny is for trying things out
SIZES = {
    "tiny": (128, 64, 1),
    "small": (1024, 256, 1),
    "medium": (2048, 512, 1),
    "original": (4096, 1024, 2),
}


def size(name: str) -> dict:
    """Dimensions of a size."""
    names = ("cell_size", "hidden_size", "highways")
    fields = dict(zip(names, sized("ELMo", SIZES, name), strict=True))
    if name == "tiny":
        fields |= dict(filter_widths=(1, 2, 3, 4), filter_counts=(16, 32, 64, 128))
    return fields


@dataclasses.dataclass(frozen=True)
class Config:
    """Dimensions and numerics; the defaults are those of the original model.

    `hidden_size` is D, the width of the vectors. `characters` are the rows of the character table,
    row 0 for no word. A word has `max_characters` places; `filter_counts` says how many filters of
    each of `filter_widths` read them. `vocab_size` is that of the softmax, which a model without
    one does not use. `cell_clip` and `projection_clip` 0: none. `scan` has no effect.
    """

    causal: ClassVar[bool] = False
    stateful: ClassVar[bool] = True
    reads_tokens: ClassVar[bool] = False  # but characters
    pooler: ClassVar[bool] = False
    head_activation: ClassVar[str] = ""
    classifier_hidden: ClassVar[str] = ""
    classifier_pooling: ClassVar[str] = "last"
    classifier_norm: ClassVar[bool] = False
    max_length: ClassVar[int] = 1 << 20  # a text of any length
    type_vocab_size: ClassVar[int] = 1

    vocab_size: int = 793471
    hidden_size: int = 1024
    cell_size: int = 4096
    num_layers: int = 2
    characters: int = 262
    max_characters: int = 50
    character_width: int = 16
    filter_widths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    filter_counts: tuple[int, ...] = (32, 32, 64, 128, 256, 512, 1024)
    activation: str = "relu"
    highways: int = 2
    skip_connections: bool = True
    cell_clip: float = 3.0
    projection_clip: float = 3.0
    dropout: float = 0.1
    scan: bool = False
    remat: str = "none"
    dtype: str = "float32"

    def __post_init__(self):
        for name in ("filter_widths", "filter_counts"):  # JSON has lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("vocab_size", "hidden_size", "cell_size", "num_layers", "character_width"):
            if getattr(self, name) < 1:
                raise FirthError(f"model.{name}={getattr(self, name)} should be at least 1")
        if self.hidden_size % 2:
            raise FirthError(
                f"model.hidden_size={self.hidden_size} is odd; each direction has half of it"
            )
        if len(self.filter_widths) != len(self.filter_counts):
            raise FirthError(
                f"model.filter_widths has {len(self.filter_widths)} entries and "
                f"model.filter_counts {len(self.filter_counts)}; expected as many"
            )
        check_filters(self.filters, "model.filter_widths with model.filter_counts")
        if max(self.filter_widths) > self.max_characters:
            raise FirthError(
                f"model.max_characters={self.max_characters} is below the widest filter, "
                f"{max(self.filter_widths)}"
            )
        for name, known in (
            ("activation", ACTIVATIONS),
            ("dtype", ("float32", "bfloat16", "float16")),
            ("remat", ("none",)),
        ):
            if getattr(self, name) not in known:
                value = getattr(self, name)
                raise FirthError(f"model.{name}={value!r} is unknown; one of {', '.join(known)}")

    @property
    def width(self) -> int:
        """P."""
        return self.hidden_size // 2

    @property
    def filters(self) -> tuple[tuple[int, int], ...]:
        """(width, number) of the filters."""
        return tuple(zip(self.filter_widths, self.filter_counts, strict=True))

    def products(self, *, rows, length, micro=1) -> Iterator[Product]:
        """Matrix products of an update; each direction has words of its own."""
        del micro
        words, found, P, H = 2 * rows * length, sum(self.filter_counts), self.width, self.cell_size
        for width, number in self.filters:
            places = self.max_characters - width + 1
            yield Product(CHARACTERS, 2 * words * places * width * self.character_width * number)
        yield Product(HIGHWAYS, 2 * words * (self.highways * 2 * found**2 + found * P))
        yield Product(INPUTS, 2 * words * self.num_layers * P * 4 * H)
        yield Product(RECURRENT, 2 * words * self.num_layers * (P * 4 * H + H * P))


CHARACTERS, HIGHWAYS = "character filters", "highway layers"


class Body(nn.Module):
    """The character CNN and the LSTMs of both directions."""

    config: Config

    def setup(self):
        """Name the parts."""
        c, found = self.config, sum(self.config.filter_counts)
        self.words = CharacterCNN(
            characters=c.characters,
            width=c.character_width,
            filters=c.filters,
            activation=c.activation,
            highways=c.highways,
            projection=0 if found == c.width else c.width,
            dtype=c.dtype,
        )
        self.forward, self.backward = Stack(c), Stack(c)
        self.drop = Dropout(c.dropout)

    def __call__(
        self,
        tokens,
        segments_BL=None,
        mask_BL=None,
        *,
        train=False,
        attentions=False,
        memory=None,
    ):
        """Encode sentences.

        Args:
          tokens: character ids int [B, L, W], or float [B, L, P] what `embed` made of them. Ids
            [B, L] stand for words of one character, as initialisation of any body has them.
          segments_BL: must not matter: there are no segments.
          mask_BL: bool, True at a row's words, which come first; all True when None.
          train: apply dropout (needs the `dropout` random stream).
          attentions: refused, since there are none.
          memory: the state after an earlier batch, from `Encoded.memory` or `empty_memory`; None:
            zeros. The released code goes on from batch to batch.

        `hidden` has the word's own vector twice, then forward and backward vectors of each layer
        side by side. `memory` of the result is the state of both directions after the sentences,
        without gradient.
        """
        if attentions:
            raise FirthError("ELMo has no attentions")
        e_BLP = self.embed(tokens, segments_BL, mask_BL, train=train)
        return self.encode(e_BLP, mask_BL, train=train, memory=memory)

    def embed(self, tokens, segments_BL=None, mask_BL=None, *, train: bool = False):
        """Vectors of words from their characters, [B, L, P], without dropout."""
        del segments_BL, mask_BL, train
        if jnp.issubdtype(tokens.dtype, jnp.floating):
            return tokens.astype(self.config.dtype)
        if tokens.ndim == 2:
            fill = max(self.config.filter_widths) - 1
            tokens = jnp.pad(tokens[..., None], ((0, 0), (0, 0), (0, fill)))
        return self.words(tokens)

    def encode(self, e_BLP, mask_BL, *, train: bool, memory=None) -> Encoded:
        """Both directions over embedded words, between the marks of a sentence."""
        B, L = e_BLP.shape[:2]
        memory = self.empty_memory(B) if memory is None else memory
        size_B = jnp.full(B, L) if mask_BL is None else mask_BL.sum(1)
        marks_2W, _ = spell([BEGIN, END], self.config.max_characters)
        begin_P, end_P = self.words(jnp.asarray(marks_2W))
        place_L = jnp.arange(L + 2)
        x_BLP = jnp.pad(e_BLP, ((0, 0), (1, 1), (0, 0))).at[:, 0].set(begin_P)
        at_end_BL = place_L == size_B[:, None] + 1
        x_BLP = jnp.where(at_end_BL[..., None], end_P, x_BLP)
        mask_BL = place_L <= size_B[:, None] + 1
        # A row backwards, its padding left where it is; the same order turns it round again.
        order_BL = jnp.where(mask_BL, size_B[:, None] + 1 - place_L, place_L)[..., None]
        back_BLP = jnp.take_along_axis(x_BLP, order_BL, 1)
        ahead, first = self.read("forward", x_BLP, mask_BL, memory, train=train)
        behind, second = self.read("backward", back_BLP, mask_BL, memory, train=train)
        behind = jnp.take_along_axis(behind, order_BL[None], 2)
        layers = jnp.concatenate([ahead, behind], -1)[:, :, 1:-1]
        hidden = jnp.concatenate([jnp.concatenate([e_BLP, e_BLP], -1)[None], layers])
        last = self.drop(layers[-1], train=train)
        return Encoded(last, hidden, memory=jax.lax.stop_gradient(first | second))

    def read(self, direction: str, x_BLP, mask_BL, memory: dict, *, train: bool):
        """(layers [N, B, L, P], the new part of the memory) of one direction, in its own order."""
        state = {name: memory[f"{direction}_{name}"] for name in ("c", "h")}
        layers, state = getattr(self, direction)(x_BLP, mask_BL, state, train=train)
        return layers, {f"{direction}_{name}": value for name, value in state.items()}

    @nn.nowrap
    def empty_memory(self, rows: int, length: int = 0) -> dict:
        """Zeros, the state before any text; `length` has no meaning.

        For both directions "_c" float32 [rows, N, H] and "_h" [rows, N, P].
        """
        del length
        c = self.config
        widths = {"c": c.cell_size, "h": c.width}
        return {
            f"{direction}_{name}": jnp.zeros((rows, c.num_layers, width), jnp.float32)
            for direction in DIRECTIONS
            for name, width in widths.items()
        }


# --------------------------------------------- published form: `firth.weights.elmo`, its own layout
SPECIAL_TOKENS = ((), (), ())  # the body adds a sentence's marks
PUBLISHED = Published()
