"""Recurrent highway networks (Zilly et al. 2017): a recurrent layer with many maps in a time step.

In a step the state passes through `depth` highway layers with kernels of their own, and the first
of them reads the word x: s(l) = h t + s(l-1) (1 - t), where h = tanh(W_H x + R_H s(l-1) + b_H) and
t = sigmoid(W_T x + R_T s(l-1) + b_T), without x where l > 1 (section 4, with coupled gates).

B rows, L length, E width of the embeddings, D hidden size, V vocabulary.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.affine import multiply
from firth.layers.dropout import Dropout
from firth.layers.products import highway
from firth.layers.transformer import initializer
from firth.models.model import Encoded, sized
from firth.models.published import Published
from firth.models.recurrent import lstm
from firth.tokenizers.special_tokens import GPT

# (depth, hidden size): medium is the paper's best on the Penn Treebank
SIZES = {"tiny": (3, 128), "small": (5, 200), "medium": (10, 830)}


def size(name: str) -> dict:
    """Dimensions of a size."""
    return dict(zip(("depth", "hidden_size"), sized("RHN", SIZES, name), strict=True))


@dataclasses.dataclass(frozen=True)
class Config(lstm.Config):
    """Dimensions and numerics; the defaults are the paper's network on the Penn Treebank.

    Every dropout has one mask for all places of a row: `word_dropout` on words, wherever they occur
    in it, `embedding_dropout` on embeddings, `state_dropout` on what each highway layer reads of
    the state, `output_dropout` before the softmax. Parameters begin uniform between -`init_range`
    and `init_range`, and the biases of the gates t at `gate_bias`.
    """

    products = highway
    num_layers: ClassVar[int] = 1
    embedding_size: ClassVar[int] = 0
    capped_input_gate: ClassVar[bool] = False
    sums_layers: ClassVar[bool] = False
    dropout: ClassVar[float] = 0.0
    forget_bias: ClassVar[float] = 0.0

    depth: int = 10
    hidden_size: int = 830
    tied_softmax: bool = True
    word_dropout: float = 0.25
    embedding_dropout: float = 0.75
    state_dropout: float = 0.25
    output_dropout: float = 0.75
    init_range: float = 0.04
    gate_bias: float = -2.0

    def __post_init__(self):
        lstm.check(self)
        if self.depth < 1:
            raise FirthError(f"model.depth={self.depth} should be at least 1")
        if self.scan:
            raise FirthError("model.scan=True: a recurrent highway network is one layer")


class Highways(nn.Module):
    """The recurrent layer. Kernels are [D, gates, D], biases [gates, D]; gates are h and t."""

    config: Config

    @nn.compact
    def __call__(self, x_BLD, mask_BL, s_BD, *, train: bool):
        """Return the states [B, L, D] and the last one [B, D], float32.

        The state does not advance where `mask_BL` is False.
        """
        c, (B, L, D) = self.config, x_BLD.shape
        kernel = self.param("input", initializer(c), (D, 2, D)).astype(c.dtype)
        z_NF = multiply(x_BLD.swapaxes(0, 1).reshape(-1, D), kernel.reshape(D, 2 * D))
        layers = []
        for i in range(c.depth):
            own = self.param(f"recurrent_{i}", initializer(c), (D, 2, D)).astype(c.dtype)
            bias = self.param(f"bias_{i}", gate_biases(c), (2, D))
            layers.append((own.reshape(D, 2 * D), bias.reshape(2 * D)))
        keep_BD = None
        if train and c.state_dropout:
            drop = Dropout(c.state_dropout)
            keep_BD = drop.mask((B, D)) * jnp.float32(drop.scale)

        def step(s_BD, at):
            z_BF, mask_B = at
            before = s_BD
            for i, (kernel, bias) in enumerate(layers):
                read_BD = s_BD if keep_BD is None else s_BD * keep_BD
                own_BF = multiply(read_BD.astype(c.dtype), kernel) + bias
                h_BD, t_BD = jnp.split(own_BF + z_BF if i == 0 else own_BF, 2, axis=-1)
                t_BD = jax.nn.sigmoid(t_BD)
                s_BD = jnp.tanh(h_BD) * t_BD + s_BD * (1 - t_BD)
            if mask_B is not None:
                s_BD = jnp.where(mask_B[:, None], s_BD, before)
            return s_BD, s_BD

        mask_LB = None if mask_BL is None else mask_BL.swapaxes(0, 1)
        last_BD, s_LBD = jax.lax.scan(step, s_BD, (z_NF.reshape(L, B, 2 * D), mask_LB))
        return s_LBD.swapaxes(0, 1).astype(c.dtype), last_BD


def gate_biases(config):
    """Initial values of the biases: as the other parameters', but `gate_bias` for the gates t."""

    def init(key, shape, dtype=jnp.float32):
        return initializer(config)(key, shape, dtype).at[1].set(config.gate_bias)

    return init


class Body(lstm.Body):
    """Word embeddings and one recurrent layer of highways."""

    def setup(self):
        """Name the parts."""
        c = self.config
        self.word = nn.Embed(
            c.vocab_size, c.hidden_size, embedding_init=initializer(c), dtype=c.dtype
        )
        self.word_drop, self.embedding_drop = Dropout(c.word_dropout), Dropout(c.embedding_dropout)
        self.drop = Dropout(c.output_dropout)
        self.stack = Highways(c)

    def embed(self, tokens_BL, segments_BL, mask_BL, *, train: bool):
        """Word embeddings [B, L, D]; in training each row lacks some words."""
        del segments_BL, mask_BL
        e_BLD, words = self.word(tokens_BL), self.config.vocab_size
        return self.word_drop.words(e_BLD, tokens_BL, words, train=train, rows=True)

    def encode(self, e_BLE, mask_BL, *, train: bool, memory=None) -> Encoded:
        """The layer over embedded tokens."""
        state = self.empty_memory(len(e_BLE)) if memory is None else memory
        x_BLD = self.embedding_drop.locked(e_BLE, train=train)
        s_BLD, s_BD = self.stack(x_BLD, mask_BL, state["s"], train=train)
        last_BLD = self.drop.locked(s_BLD, train=train)
        memory = {"s": jax.lax.stop_gradient(s_BD)}
        return Encoded(last_BLD, jnp.stack([e_BLE, s_BLD]), memory=memory)

    @nn.nowrap
    def empty_memory(self, rows: int, length: int = 0) -> dict:
        """The state before a text: zeros float32 [rows, D]."""
        del length
        return {"s": jnp.zeros((rows, self.config.hidden_size), jnp.float32)}


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = GPT
PUBLISHED = Published()  # as the LSTM's
