"""A bidirectional recurrent tagger over words and their characters.

Lample et al. 2016 ("Neural architectures for named entity recognition") and Ma and Hovy 2016
("End-to-end sequence labeling via bi-directional LSTM-CNNs-CRF"); Peters et al. 2018 for contextual
vectors as further features. B rows, L length, E width of what the first layer reads, H hidden size
of a direction, D = 2 H, N layers, S characters of a word, F filters.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.data.tagging.windows import CONTEXTS
from firth.errors import FirthError
from firth.layers.dropout import Dropout
from firth.layers.recurrent import CELLS, Layer
from firth.layers.transformer import dense
from firth.models.model import Encoded
from firth.models.published import Published
from firth.models.tagger.mix import ScalarMix, check_name

CHARACTERS = 259  # bytes, the two ends of a word and padding, which is 0
BIDIRECTIONAL = ("lstm", "elman")


@dataclasses.dataclass(frozen=True)
class Config:
    """Dimensions and numerics.

    A word's vector joins its own embedding (`embedding_size`; 0: none), the largest response of
    each of `filters` filters as wide as `filter_width` characters (0: none), and given features
    (`feature_size`). The features are those of the frozen encoder `features`, of the layers
    `feature_layers` (see `mix.CHOICES`, or a number), read in `feature_context` (a "sentence", or
    its "document"). Of `feature_mix` vectors a word the weighted sum is learnt (0: there is one).
    `word_length` is how many characters of a word count, its two ends included.

    Each of `num_layers` layers reads in both directions with parameters of their own, `hidden_size`
    wide each. `dropout` falls on the words' vectors and on the output of every layer, with a mask
    for each place; `state_dropout` on the states that a step reads, with one for a row. `scan` has
    no effect, since the layers read inputs of different widths.
    """

    causal: ClassVar[bool] = False
    pooler: ClassVar[bool] = False
    bias: ClassVar[bool] = True
    classifier_hidden: ClassVar[str] = ""
    classifier_pooling: ClassVar[str] = "last"
    glorot_edges: ClassVar[bool] = False
    truncated: ClassVar[bool] = False
    projects_input: ClassVar[bool] = True
    weight_dropout: ClassVar[float] = 0.0
    locks_dropout: ClassVar[bool] = False
    max_length: ClassVar[int] = 1 << 20  # a sentence of any length
    type_vocab_size: ClassVar[int] = 1

    vocab_size: int = 10000
    embedding_size: int = 100
    character_size: int = 30
    filters: int = 30
    filter_width: int = 3
    word_length: int = 24
    features: str = ""
    feature_size: int = 0
    feature_mix: int = 0
    feature_layers: str = "last"
    feature_context: str = "sentence"
    num_layers: int = 1
    hidden_size: int = 200
    cell: str = "lstm"
    dropout: float = 0.5
    state_dropout: float = 0.0
    init_range: float = 0.08
    forget_bias: float = 1.0
    scan: bool = False
    remat: str = "none"
    dtype: str = "float32"

    def __post_init__(self):
        for name in ("num_layers", "hidden_size", "filter_width", "character_size"):
            if getattr(self, name) < 1:
                raise FirthError(f"model.{name}={getattr(self, name)} should be at least 1")
        for name in ("embedding_size", "filters", "feature_size", "feature_mix"):
            if getattr(self, name) < 0:
                raise FirthError(f"model.{name}={getattr(self, name)} should be at least 0")
        check_name(self.feature_layers)
        if self.feature_context not in CONTEXTS:
            raise FirthError(
                f"model.feature_context={self.feature_context!r}: expected {' or '.join(CONTEXTS)}"
            )
        if not self.input_size:
            raise FirthError(
                "model.embedding_size=0, model.filters=0 and no model.features: a word needs one of"
                " them"
            )
        if self.filters and self.word_length < self.filter_width + 3:
            raise FirthError(
                f"model.word_length={self.word_length}: expected at least model.filter_width + 3 = "
                f"{self.filter_width + 3}"
            )
        if self.cell not in BIDIRECTIONAL or self.cell not in CELLS:
            raise FirthError(f"model.cell={self.cell!r}: expected {' or '.join(BIDIRECTIONAL)}")
        if self.remat != "none":
            raise FirthError(
                f"model.remat={self.remat!r}: a recurrent layer keeps what its backward pass "
                "needs; expected none"
            )
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise FirthError(f"model.dtype={self.dtype!r}; one of float32, bfloat16, float16")

    @property
    def input_size(self) -> int:
        """E."""
        return self.embedding_size + self.filters + self.feature_size

    @property
    def init_stddev(self) -> float:
        """Of the uniform initial values."""
        return self.init_range / 3**0.5


class CharacterFilters(nn.Module):
    """The largest response of filters over the characters of a word."""

    config: Config

    @nn.compact
    def __call__(self, characters_BLS, *, train: bool):
        """[B, L, F] of character ids, 0 where a word has ended; zeros for a word of none."""
        c = self.config
        width = c.filter_width
        embed = nn.Embed(
            *(CHARACTERS, c.character_size),
            embedding_init=_uniform(c.character_size),
            name="character",
        )
        e_BLSC = Dropout(c.dropout)(embed(characters_BLS), train=train)
        windows = characters_BLS.shape[-1] - width + 1
        x = jnp.concatenate([e_BLSC[:, :, i : i + windows] for i in range(width)], axis=-1)
        y = dense(c, c.filters, "dense", bias=True, init=nn.initializers.glorot_uniform())(x)
        whole = characters_BLS[:, :, width - 1 :, None] > 0
        return jnp.where(whole, y, -jnp.inf).max(2, initial=0.0)  # which is a ReLU, too


class BothWays(nn.Module):
    """Recurrent layers, each in both directions.

    The states do not advance where a row has no word. So a row that is turned round, padding first,
    begins at its own last word with a state of zeros.
    """

    config: Config

    @nn.compact
    def __call__(self, x_BLE, mask_BL, *, train: bool):
        """(what a head reads [B, L, D], the output of every layer [N, B, L, D])."""
        c = self.config
        names = CELLS[c.cell][1]
        state = (jnp.zeros((len(x_BLE), c.hidden_size), jnp.float32),) * len(names)
        mask_LB, hidden = mask_BL.swapaxes(0, 1), []
        for i in range(c.num_layers):
            ahead, (h, *_) = Layer(c, name=f"forward_{i}")(x_BLE, mask_LB, train, False, *state)
            turned, (g, *_) = Layer(c, name=f"backward_{i}")(
                x_BLE[:, ::-1], mask_LB[::-1], train, False, *state
            )
            x_BLE = jnp.concatenate([ahead, turned[:, ::-1]], axis=-1)
            hidden.append(jnp.concatenate([h, g[:, ::-1]], axis=-1))
        return x_BLE, jnp.stack(hidden)


class Body(nn.Module):
    """Words' vectors and recurrent layers in both directions."""

    config: Config

    def setup(self):
        """Name the parts."""
        c = self.config
        if c.embedding_size:
            self.word = nn.Embed(
                c.vocab_size, c.embedding_size, embedding_init=_uniform(c.embedding_size)
            )
        if c.filters:
            self.characters = CharacterFilters(c)
        if c.feature_mix:
            self.mix = ScalarMix()
        self.drop = Dropout(c.dropout)
        self.stack = BothWays(c)

    def __call__(
        self,
        tokens_BL,
        segments_BL=None,
        mask_BL=None,
        *,
        train=False,
        attentions=False,
        characters=None,
        features=None,
    ):
        """Encode sentences of words.

        Args:
          tokens_BL: int ids of words.
          segments_BL: must not matter: there are no segments.
          mask_BL: bool, True at words, which come first in a row; all True when None.
          train: apply dropout (needs the `dropout` random stream).
          attentions: refused, since there are none.
          characters: ids of each word's characters [B, L, S], if the model has filters.
          features: the given vectors of words [B, L, feature_size], if it has such; with
            `feature_mix` [B, L, feature_mix, feature_size].

        `hidden` begins with the first layer's output, since words' vectors have another width.
        Raises FirthError without the characters or features that the model reads.
        """
        del segments_BL
        c = self.config
        if attentions:
            raise FirthError("a recurrent network has no attentions")
        mask_BL = jnp.ones(tokens_BL.shape, bool) if mask_BL is None else mask_BL
        parts = [self.word(tokens_BL)] if c.embedding_size else []
        if c.filters:
            given = self._given(characters, tokens_BL, (c.word_length,), jnp.int32)
            parts.append(self.characters(given.astype(jnp.int32), train=train))
        if c.feature_size:
            size = (c.feature_mix, c.feature_size) if c.feature_mix else (c.feature_size,)
            given = self._given(features, tokens_BL, size, jnp.float32)
            parts.append(self.mix(given) if c.feature_mix else given)
        x_BLE = jnp.concatenate([part.astype(c.dtype) for part in parts], axis=-1)
        last_BLD, hidden = self.stack(self.drop(x_BLE, train=train), mask_BL, train=train)
        return Encoded(last_BLD, hidden)

    def _given(self, array, tokens_BL, size: tuple[int, ...], dtype):
        """An array of the batch; zeros while parameters are made."""
        if array is None and self.is_initializing():
            return jnp.zeros((*tokens_BL.shape, *size), dtype)
        if array is None:
            raise FirthError(
                "a tagger reads words with their characters and features, not texts; `firth "
                "predict` and `firth evaluate` give them"
            )
        return array


def _uniform(width: int):
    """Within the square root of 3 / width, to both sides (Ma and Hovy 2016, section 3.1)."""
    limit = (3 / width) ** 0.5

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return init


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = ((), (), ())
# transformers has no such family. Only Firth's own directories and workdirs hold one.
PUBLISHED = Published()
