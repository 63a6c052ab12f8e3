"""The LSTM language models of Zaremba et al. (2014) and Melis et al. (2017).

B rows, L length, E width of the embeddings, D hidden size, V vocabulary, N layers.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.dropout import Dropout
from firth.layers.heads import word_scores
from firth.layers.products import recurrent
from firth.layers.recurrent import CELLS, Stack, empty_state
from firth.layers.transformer import dense, initializer
from firth.models.model import Encoded, sized
from firth.models.published import Published
from firth.tokenizers.special_tokens import GPT

# (layers, hidden size): small, medium and large are those of Zaremba et al.
SIZES = {"tiny": (2, 128), "small": (2, 200), "medium": (2, 650), "large": (2, 1500)}


def size(name: str) -> dict:
    """Dimensions of a size."""
    return dict(zip(("num_layers", "hidden_size"), sized("LSTM", SIZES, name), strict=True))


@dataclasses.dataclass(frozen=True)
class Config:
    """Dimensions and numerics; the defaults are Zaremba's medium network.

    The embeddings are `embedding_size` wide (0: as the layers). `tied_softmax`: the softmax uses
    them, after a map down to their width if that is less than the layers'.

    `embedding_dropout` falls on the embeddings, `dropout` between layers, `output_dropout` before
    the softmax, each with a new mask at every place. `state_dropout` falls on the state that a
    step reads, with one mask for a row (Gal and Ghahramani 2016; Melis et al. 2017).

    `capped_input_gate` is min(1 - f, i) (Melis et al., section 4.1). `sums_layers`: the output is
    the sum of all layers' instead of the last one's. Parameters begin uniform between -`init_range`
    and `init_range`, and `forget_bias` higher for the forget gate.
    """

    head_activation: ClassVar[str] = ""
    classifier_hidden: ClassVar[str] = ""
    classifier_pooling: ClassVar[str] = "last"  # it has read all others
    classifier_input_dropout: ClassVar[bool] = True
    classifier_norm: ClassVar[bool] = False
    classifier_bias: ClassVar[bool] = True
    pooler: ClassVar[bool] = False
    causal: ClassVar[bool] = True
    stateful: ClassVar[bool] = True  # its memory is a state, not so many places
    bias: ClassVar[bool] = True
    lm_bias: ClassVar[bool] = True
    truncated: ClassVar[bool] = False
    glorot_edges: ClassVar[bool] = False
    projects_input: ClassVar[bool] = True
    weight_dropout: ClassVar[float] = 0.0
    locks_dropout: ClassVar[bool] = False
    products = recurrent  # of a step, for counting FLOPs
    max_length: ClassVar[int] = 1 << 20  # a text of any length
    type_vocab_size: ClassVar[int] = 1

    vocab_size: int = 10000
    num_layers: int = 2
    hidden_size: int = 650
    embedding_size: int = 0
    tied_softmax: bool = False
    capped_input_gate: bool = False
    sums_layers: bool = False
    dropout: float = 0.5
    embedding_dropout: float = 0.5
    output_dropout: float = 0.5
    state_dropout: float = 0.0
    init_range: float = 0.05
    forget_bias: float = 0.0
    scan: bool = False
    remat: str = "none"
    dtype: str = "float32"

    @property
    def cell(self) -> str:
        """The name of the cell in `layers.recurrent.CELLS`."""
        return "capped_lstm" if self.capped_input_gate else "lstm"

    @property
    def gates(self) -> int:
        """How many vectors as wide as the layer a step computes from its input."""
        return CELLS[self.cell][0]

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of each layer."""
        return (self.hidden_size,) * self.num_layers

    @property
    def draws_biases(self) -> bool:
        """Whether biases of the softmax begin like other parameters, and not at zero."""
        return self.init_range > 0

    @property
    def embedding_width(self) -> int:
        """E."""
        return self.embedding_size or self.hidden_size

    def __post_init__(self):
        check(self)


def check(config):
    """Raise FirthError for dimensions and settings that no recurrent body can have."""
    c = config
    for name in ("vocab_size", "num_layers", "hidden_size"):
        if getattr(c, name) < 1:
            raise FirthError(f"model.{name}={getattr(c, name)} should be at least 1")
    if not 0 <= c.embedding_width <= c.hidden_size:
        raise FirthError(
            f"model.embedding_size={c.embedding_size}: expected at most model.hidden_size="
            f"{c.hidden_size}, or 0 for as many"
        )
    if c.scan and c.embedding_width != c.hidden_size:
        raise FirthError(
            f"model.scan=True needs layers of one shape, but the first reads model.embedding_size="
            f"{c.embedding_size} and the others {c.hidden_size}; set model.scan=False"
        )
    check_numerics(c)


def check_numerics(config):
    """Raise FirthError for rates, a dtype and a `remat` that no recurrent body can have."""
    c = config
    rates = ("embedding_dropout", "output_dropout", "state_dropout")
    for name in (*rates, "word_dropout", "weight_dropout"):
        if not 0 <= getattr(c, name, 0.0) < 1:
            raise FirthError(f"model.{name}={getattr(c, name)} should lie in [0, 1)")
    if c.dtype not in ("float32", "bfloat16", "float16"):
        raise FirthError(f"model.dtype={c.dtype!r} is unknown; one of float32, bfloat16, float16")
    if c.remat != "none":
        raise FirthError(
            f"model.remat={c.remat!r}: a recurrent layer keeps what its backward pass needs; "
            "expected none"
        )


class Body(nn.Module):
    """Word embeddings and recurrent layers, whose state may go on from an earlier text."""

    config: Config

    def setup(self):
        """Name the parts."""
        c = self.config
        self.word = nn.Embed(
            c.vocab_size, c.embedding_width, embedding_init=initializer(c), dtype=c.dtype
        )
        self.embedding_drop, self.drop = Dropout(c.embedding_dropout), Dropout(c.output_dropout)
        self.stack = Stack(c)
        if c.tied_softmax and c.embedding_width != c.hidden_size:
            self.project = dense(c, c.embedding_width, bias=False)

    def __call__(
        self,
        tokens_BL,
        segments_BL=None,
        mask_BL=None,
        *,
        train=False,
        attentions=False,
        memory=None,
    ):
        """Encode a batch.

        Args:
          tokens_BL: int token ids.
          segments_BL: must not matter: there are no segments.
          mask_BL: bool, True at real tokens; all True when None. Padding does not change the state.
          train: apply dropout (needs the `dropout` random stream).
          attentions: refused, since there are none.
          memory: the state after the text before, from `Encoded.memory` or `empty_memory`; None:
            the rows begin a text.

        Where the embeddings are narrower than the layers, zeros fill `hidden[0]` up. `memory` of
        the result is the state after the last real token of each row, without gradient.
        """
        if attentions:
            raise FirthError("a recurrent network has no attentions")
        e_BLE = self.embed(tokens_BL, segments_BL, mask_BL, train=train)
        return self.encode(e_BLE, mask_BL, train=train, memory=memory)

    def embed(self, tokens_BL, segments_BL, mask_BL, *, train: bool):
        """Word embeddings [B, L, E], without dropout."""
        del segments_BL, mask_BL, train
        return self.word(tokens_BL)

    def encode(self, e_BLE, mask_BL, *, train: bool, memory=None) -> Encoded:
        """The layers over embedded tokens."""
        c = self.config
        state = self.empty_memory(len(e_BLE)) if memory is None else memory
        x_BLE = self.embedding_drop(e_BLE, train=train)
        layers, state = self.stack(x_BLE, mask_BL, state, train=train)
        if c.sums_layers:
            layers = layers.at[-1].set(layers.sum(0))
        wide = jnp.pad(e_BLE, ((0, 0), (0, 0), (0, c.hidden_size - c.embedding_width)))
        hidden = jnp.concatenate([wide[None], layers])
        last_BLD = self.drop(layers[-1], train=train)
        return Encoded(last_BLD, hidden, memory=jax.lax.stop_gradient(state))

    def decode(self, x_BMD):
        """Scores of the words by their embeddings: [..., D] to float32 [..., V]."""
        c = self.config
        x_BME = x_BMD if c.embedding_width == c.hidden_size else self.project(x_BMD)
        return word_scores(x_BME, self.word.embedding.astype(c.dtype))

    @nn.nowrap
    def empty_memory(self, rows: int, length: int = 0) -> dict:
        """The state before a text; see `layers.recurrent.empty_state`. `length` has no meaning."""
        del length
        return empty_state(self.config, rows)


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = GPT
# transformers has no such family. Only Firth's own directories and workdirs hold one.
PUBLISHED = Published()
