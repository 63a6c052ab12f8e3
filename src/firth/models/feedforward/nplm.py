"""Feed-forward language models: Bengio et al. (2003), and the log-bilinear one of Mnih and Hinton.

The next word from the embeddings of a few words, one after another in one vector x:

    feed-forward   U tanh(d + H x) + W x + b     (Bengio et al. 2003, equation 1)
    log-bilinear   R (C x) + b                   (Mnih and Hinton 2007, section 4)

H and C have a block for each distance. R is the embeddings, U the head's own kernel. The last
hidden state is what stands right of U or R. With direct connections (W), x is part of it.

Before the first word of a row stands a vector that is learned, at every distance the same.

B rows, L length, C slots of a cache, N words of context, E width of the embeddings, D hidden size,
V vocabulary.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.dropout import Dropout
from firth.layers.heads import word_scores
from firth.layers.products import windows
from firth.layers.transformer import dense, initializer
from firth.models.model import Encoded, sized
from firth.models.published import Published
from firth.tokenizers.special_tokens import GPT

# (order, width of the embeddings, hidden size): base is MLP10 of Bengio et al., table 1
SIZES = {"tiny": (5, 64, 64), "base": (5, 30, 100), "small": (5, 128, 128), "medium": (5, 256, 256)}
ACTIVATIONS = {"tanh": jnp.tanh, "linear": lambda x: x}


def size(name: str) -> dict:
    """Dimensions of a size."""
    fields = ("order", "embedding_size", "hidden_size")
    return dict(zip(fields, sized("the feed-forward model", SIZES, name), strict=True))


@dataclasses.dataclass(frozen=True)
class Config:
    """Dimensions and numerics; the defaults are MLP10 of Bengio et al.

    order: words of an n-gram; a word is predicted from the `order` - 1 before it.
    activation: "tanh", or "linear": the log-bilinear model.
    direct: whether the embeddings of the context are part of the last hidden state. `hidden_size`
      counts them.
    tied_softmax: whether the softmax uses the embeddings, which are then as wide as the hidden
      state. The log-bilinear model does.
    embedding_dropout: on the embeddings of the context. dropout: on the hidden units.
    """

    classifier_hidden: ClassVar[str] = ""
    classifier_pooling: ClassVar[str] = "last"
    classifier_input_dropout: ClassVar[bool] = True
    classifier_norm: ClassVar[bool] = False
    classifier_bias: ClassVar[bool] = True
    head_activation: ClassVar[str] = ""
    pooler: ClassVar[bool] = False
    causal: ClassVar[bool] = True
    lm_bias: ClassVar[bool] = True
    truncated: ClassVar[bool] = False
    glorot_edges: ClassVar[bool] = False
    type_vocab_size: ClassVar[int] = 1
    max_length: ClassVar[int] = 1 << 20  # a text of any length
    products = windows  # of a step, for counting FLOPs

    vocab_size: int = 10000
    num_layers: int = 1
    order: int = 5
    embedding_size: int = 30
    hidden_size: int = 100
    activation: str = "tanh"
    direct: bool = False
    tied_softmax: bool = False
    embedding_dropout: float = 0.0
    dropout: float = 0.0
    init_stddev: float = 0.1
    scan: bool = False
    remat: str = "none"
    dtype: str = "float32"

    @property
    def bias(self) -> bool:
        """Whether the hidden units have a bias; the log-bilinear model has none."""
        return self.activation != "linear"

    @property
    def context(self) -> int:
        """Words from which the next one is predicted, N."""
        return self.order - 1

    @property
    def embedding_width(self) -> int:
        """E."""
        return self.embedding_size

    @property
    def units(self) -> int:
        """Hidden units: the part of the last hidden state that is no embedding."""
        return self.hidden_size - self.direct * self.context * self.embedding_size

    def __post_init__(self):
        for name, least in dict(vocab_size=1, order=2, embedding_size=1, hidden_size=1).items():
            if getattr(self, name) < least:
                raise FirthError(f"model.{name}={getattr(self, name)} should be at least {least}")
        if self.num_layers != 1 or self.remat != "none":
            raise FirthError(
                f"model.num_layers={self.num_layers}, remat={self.remat!r}: a feed-forward model "
                "has 1 layer, of which nothing is computed again; expected 1 and none"
            )
        if self.activation not in ACTIVATIONS:
            raise FirthError(
                f"model.activation={self.activation!r} is unknown; one of {', '.join(ACTIVATIONS)}"
            )
        if self.units < 1 or self.embedding_size > self.hidden_size:
            raise FirthError(
                f"model.hidden_size={self.hidden_size}: expected at least model.embedding_size="
                f"{self.embedding_size}, and with model.direct=True more than "
                f"{self.context * self.embedding_size}, the embeddings of the context"
            )
        if self.tied_softmax and (self.direct or self.embedding_size != self.hidden_size):
            raise FirthError(
                "model.tied_softmax=True needs model.direct=False and a model.embedding_size as "
                f"model.hidden_size={self.hidden_size}: the hidden state meets embeddings"
            )
        if not 0 <= self.embedding_dropout < 1:
            raise FirthError(
                f"model.embedding_dropout={self.embedding_dropout} should lie in [0, 1)"
            )
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise FirthError(
                f"model.dtype={self.dtype!r} is unknown; one of float32, bfloat16, float16"
            )


class Body(nn.Module):
    """Embeddings, and one hidden layer over those of the last words."""

    config: Config

    def setup(self):
        """Name the parts."""
        c = self.config
        self.word = nn.Embed(
            c.vocab_size, c.embedding_size, embedding_init=initializer(c), dtype=c.dtype
        )
        self.begin = self.param("begin_bias", nn.initializers.zeros, (c.embedding_size,))
        self.hidden = dense(c, c.units)
        self.embedding_drop, self.drop = Dropout(c.embedding_dropout), Dropout(c.dropout)

    def __call__(self, tokens_BL, segments_BL=None, mask_BL=None, *, train=False, attentions=False):
        """Encode a batch.

        Args:
          tokens_BL: int token ids.
          segments_BL, mask_BL: do not matter: there are no segments, and padding stands at the end.
          train: apply dropout (needs the `dropout` random stream).
          attentions: refused, since there are none.

        Zeros fill `hidden[0]`, the embeddings, up to the hidden size.
        """
        if attentions:
            raise FirthError("a feed-forward model has no attentions")
        e_BLE = self.embed(tokens_BL, segments_BL, mask_BL, train=train)
        return self.encode(e_BLE, mask_BL, train=train)

    def embed(self, tokens_BL, segments_BL, mask_BL, *, train: bool):
        """Word embeddings [B, L, E], without dropout."""
        del segments_BL, mask_BL, train
        return self.word(tokens_BL)

    def encode(self, e_BLE, mask_BL, *, train: bool) -> Encoded:
        """The hidden layer at every place, over its own embedding and those before it."""
        del mask_BL
        c, (B, L, E) = self.config, e_BLE.shape
        begin = jnp.broadcast_to(self.begin.astype(e_BLE.dtype), (B, c.context - 1, E))
        text_BME = jnp.concatenate([begin, e_BLE], axis=1)
        shifts = [text_BME[:, c.context - 1 - k :][:, :L] for k in range(c.context)]
        last_BLD = self._layer(shifts, train=train)
        wide_BLD = jnp.pad(e_BLE, ((0, 0), (0, 0), (0, c.hidden_size - E)))
        return Encoded(last_BLD, jnp.stack([wide_BLD, last_BLD]))

    def _layer(self, words, *, train: bool):
        """[B, L, D] from N embeddings [B, L, E]: the place's own, the one before it, and so on."""
        c = self.config
        x_BLX = self.embedding_drop(jnp.concatenate(words, axis=-1), train=train)
        h_BLH = self.drop(ACTIVATIONS[c.activation](self.hidden(x_BLX)), train=train)
        return jnp.concatenate([h_BLH, x_BLX], axis=-1) if c.direct else h_BLH

    @nn.nowrap
    def empty_cache(self, rows: int, capacity: int):
        """An empty cache for `extend`: the embeddings of earlier words, [B, 1, C, E]."""
        c = self.config
        return jnp.zeros((rows, 1, capacity, c.embedding_size), c.dtype)

    def extend(self, tokens_BL, positions_BL, visible_BLC, cache, slot):
        """Encode the tokens after those in a cache, without dropout; see `gpt.Body.extend`."""
        del positions_BL
        c, e_BLE = self.config, self.word(tokens_BL)
        cache = jax.lax.dynamic_update_slice_in_dim(cache, e_BLE[:, None], slot, axis=2)
        after_BLC = visible_BLC[..., ::-1].cumsum(-1)[..., ::-1]  # visible slots from each on
        words = []
        for k in range(c.context):
            pick_BLC = visible_BLC & (after_BLC == k + 1)
            e_BLE = jnp.einsum("BLC,BCE->BLE", pick_BLC.astype(c.dtype), cache[:, 0])
            words.append(jnp.where(pick_BLC.any(-1, keepdims=True), e_BLE, self.begin))
        return self._layer(words, train=False), cache

    def decode(self, x_BMD):
        """Scores by the embeddings: [..., D] to float32 [..., V]."""
        return word_scores(x_BMD, self.word.embedding.astype(self.config.dtype))


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = GPT
# transformers has no such family. Only Firth's own directories and workdirs hold one.
PUBLISHED = Published()
