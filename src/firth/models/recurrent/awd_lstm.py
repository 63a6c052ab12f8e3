"""AWD-LSTM (Merity et al. 2018): an LSTM with dropped weights, whose last layer ends in its table.

B rows, L length, E width of the embeddings and the last layer, D width of the others, V vocabulary,
N layers.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.dropout import Dropout
from firth.layers.heads import word_scores
from firth.layers.recurrent import CELLS, Layer
from firth.models.model import Encoded, sized
from firth.models.published import Published
from firth.models.recurrent import lstm
from firth.tokenizers.special_tokens import GPT

# (layers, hidden size, embedding size)
SIZES = {"tiny": (2, 128, 64), "small": (2, 400, 200), "medium": (3, 1150, 400)}


def size(name: str) -> dict:
    """Dimensions of a size; medium is the paper's."""
    names = ("num_layers", "hidden_size", "embedding_size")
    return dict(zip(names, sized("AWD-LSTM", SIZES, name), strict=True))


@dataclasses.dataclass(frozen=True)
class Config(lstm.Config):
    """Dimensions and numerics; the defaults are the paper's network on the Penn Treebank.

    Every dropout has one mask for all places of a row or a batch: `word_dropout` on whole rows of
    the embedding table, `embedding_dropout` on embeddings, `weight_dropout` on the recurrent
    kernels (DropConnect), `dropout` between layers, `output_dropout` before the softmax.

    Embeddings begin uniform within .1, a layer within one over the square root of its width.

    The classifier is ULMFiT's, with a hidden layer of `classifier_width`. `backward`: the model
    reads texts from their end; the data of language modelling must do so too.
    """

    classifier_pooling: ClassVar[str] = "concat"
    norm_epsilon: ClassVar[float] = 1e-5

    locks_dropout: ClassVar[bool] = True
    draws_biases: ClassVar[bool] = False
    tied_softmax: ClassVar[bool] = True
    capped_input_gate: ClassVar[bool] = False
    sums_layers: ClassVar[bool] = False
    state_dropout: ClassVar[float] = 0.0
    forget_bias: ClassVar[float] = 0.0

    num_layers: int = 3
    hidden_size: int = 1150
    embedding_size: int = 400
    dropout: float = 0.25
    embedding_dropout: float = 0.4
    output_dropout: float = 0.4
    word_dropout: float = 0.1
    weight_dropout: float = 0.5
    init_range: float = 0.1
    classifier_width: int = 50
    backward: bool = False

    @property
    def widths(self):
        """D of all layers but the last, which is as wide as the embeddings."""
        return (self.hidden_size,) * (self.num_layers - 1) + (self.embedding_width,)

    def layer(self, number: int) -> "Config":
        """The config of one layer: its own width and initial values."""
        width = self.widths[number]
        own = dict(hidden_size=width, embedding_size=0, init_range=width**-0.5)
        last = number == self.num_layers - 1
        return dataclasses.replace(self, **own, **({"dropout": 0.0} if last else {}))

    def __post_init__(self):
        lstm.check(self)
        if self.scan:
            raise FirthError("model.scan=True needs layers of one shape, which these are not")


class Stack(nn.Module):
    """Layers of their own widths, each with its part of the state."""

    config: Config

    @nn.compact
    def __call__(self, x_BLD, mask_BL, state: dict, *, train: bool):
        """Return the outputs of all layers, each [B, L, its width], and the new state."""
        c, outputs, after = self.config, [], {}
        mask_LB = None if mask_BL is None else mask_BL.swapaxes(0, 1)
        for i in range(c.num_layers):
            own = (state[f"h_{i}"], state[f"c_{i}"])
            layer = Layer(c.layer(i), name=f"layer_{i}")
            x_BLD, (h_BLD, _, h, cell) = layer(x_BLD, mask_LB, train, False, *own)
            outputs.append(h_BLD)
            after |= {f"h_{i}": h, f"c_{i}": cell}
        return outputs, after


class Body(lstm.Body):
    """Word embeddings and layers of two widths; `Encoded.last` is as wide as the embeddings."""

    def setup(self):
        """Name the parts."""
        c = self.config
        init = lstm.initializer(c)
        self.word = nn.Embed(c.vocab_size, c.embedding_width, embedding_init=init, dtype=c.dtype)
        self.word_drop, self.embedding_drop = Dropout(c.word_dropout), Dropout(c.embedding_dropout)
        self.drop = Dropout(c.output_dropout)
        self.stack = Stack(c)

    def embed(self, tokens_BL, segments_BL, mask_BL, *, train: bool):
        """Word embeddings [B, L, E]; in training some words have none."""
        del segments_BL, mask_BL
        e_BLE, words = self.word(tokens_BL), self.config.vocab_size
        return self.word_drop.words(e_BLE, tokens_BL, words, train=train, rows=False)

    def encode(self, e_BLE, mask_BL, *, train: bool, memory=None) -> Encoded:
        """The layers over embedded tokens; zeros fill narrow layers of `hidden` up."""
        state = self.empty_memory(len(e_BLE)) if memory is None else memory
        x_BLE = self.embedding_drop.locked(e_BLE, train=train)
        layers, state = self.stack(x_BLE, mask_BL, state, train=train)
        wide = self.config.hidden_size
        hidden = jnp.stack(
            [
                jnp.pad(x_BLD, ((0, 0), (0, 0), (0, wide - x_BLD.shape[-1])))
                for x_BLD in (e_BLE, *layers)
            ]
        )
        last_BLE = self.drop.locked(layers[-1], train=train)
        return Encoded(last_BLE, hidden, memory=jax.lax.stop_gradient(state))

    def decode(self, x_BME):
        """Scores of the words by their embeddings: [..., E] to float32 [..., V]."""
        return word_scores(x_BME, self.word.embedding.astype(self.config.dtype))

    @nn.nowrap
    def empty_memory(self, rows: int, length: int = 0) -> dict:
        """The state before a text: zeros float32 [rows, width] of each layer and array."""
        del length
        return {
            f"{name}_{i}": jnp.zeros((rows, width), jnp.float32)
            for i, width in enumerate(self.config.widths)
            for name in CELLS[self.config.cell][1]
        }


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = GPT
PUBLISHED = Published()  # as the LSTM's
