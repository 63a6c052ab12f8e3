"""GPT (Radford et al. 2018): a post-norm Transformer that predicts the next token.

GPT-2 derives its Config from the one here and uses the same Body. B batch, L length, D hidden
size, C capacity of a cache, N layers, V vocabulary, P positions.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.attention import MASKED
from firth.layers.causal import Stack, causal_mask, empty_cache
from firth.layers.dropout import Dropout
from firth.layers.heads import word_scores
from firth.layers.products import transformer
from firth.layers.transformer import check_body, initializer, layer_norm
from firth.models import bert
from firth.models.model import Encoded, sized
from firth.models.published import Published, layer_modules
from firth.tokenizers.special_tokens import GPT

# (layers, hidden size): base is the paper's, the others train on a laptop.
SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (6, 384), "base": (12, 768)}


def size(name: str) -> dict:
    """Dimensions of a size."""
    return bert.dimensions(*sized("GPT", SIZES, name))


@dataclasses.dataclass(frozen=True)
class Config:
    """Dimensions and numerics; the defaults are those of GPT.

    The 2018 code has one matrix of tokens and positions, and treats it in two ways that are options
    here. `matrix_dropout` applies the embedding dropout to the entries of the matrix: all rows and
    positions of a step lack the same ones, and the softmax still sees the whole matrix.
    `softmax_over_all` lets the positions compete with the tokens in the softmax: there are
    V + max_length scores, of which transformers computes the first V. Published layouts have no
    field for either; they hold the same parameters.

    `attention` and `fused_attention` are as in BERT; steps with a cache compute it the plain way.
    """

    bias: ClassVar[bool] = True
    head_activation: ClassVar[str] = ""
    classifier_hidden: ClassVar[str] = ""
    classifier_pooling: ClassVar[str] = "last"  # the last real token, which has seen all others
    classifier_input_dropout: ClassVar[bool] = True
    classifier_norm: ClassVar[bool] = False
    classifier_bias: ClassVar[bool] = False
    pooler: ClassVar[bool] = False
    truncated: ClassVar[bool] = False
    glorot_edges: ClassVar[bool] = False
    first_position: ClassVar[int] = 0
    type_vocab_size: ClassVar[int] = 1
    causal: ClassVar[bool] = True
    products = transformer  # of a step, for counting FLOPs
    lm_bias: ClassVar[bool] = False
    pre_norm: ClassVar[bool] = False

    vocab_size: int = 40478
    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    intermediate_size: int = 3072
    max_length: int = 512
    activation: str = "gelu_tanh"
    norm_epsilon: float = 1e-5
    dropout: float = 0.1
    attention_dropout: float = 0.1
    embedding_dropout: float = 0.1
    init_stddev: float = 0.02
    matrix_dropout: bool = False
    softmax_over_all: bool = False
    fused_attention: bool = False
    scan: bool = False
    remat: str = "none"
    attention: str = "plain"
    dtype: str = "float32"

    @property
    def embedding_width(self) -> int:
        """The width of the word table."""
        return self.hidden_size

    @property
    def residual_scale(self) -> float:
        """Factor of the initial kernels that write to the residual stream."""
        return 1.0

    def __post_init__(self):
        check_body(self)
        if not 0 <= self.embedding_dropout < 1:
            raise FirthError(
                f"model.embedding_dropout={self.embedding_dropout} should lie in [0, 1)"
            )


class Body(nn.Module):
    """Token and position embeddings and the layers; with `pre_norm` a norm after the last."""

    config: Config
    stack_of: ClassVar[type[nn.Module]] = Stack

    def setup(self):
        """Name the parts."""
        c = self.config

        def table(rows):
            return nn.Embed(rows, c.hidden_size, embedding_init=initializer(c), dtype=c.dtype)

        self.word = table(c.vocab_size)
        self.position = table(c.max_length)
        self.drop = Dropout(c.embedding_dropout)
        self.stack = self.stack_of(c)
        if c.pre_norm:
            self.final_norm = layer_norm(c)

    __call__ = bert.Body.__call__

    def embed(self, tokens_BL, segments_BL, mask_BL, *, train: bool):
        """Sum of the token's and the position's embedding [B, L, D]; there are no segments."""
        del segments_BL, mask_BL
        c, L = self.config, tokens_BL.shape[1]
        if c.max_length < L:
            raise FirthError(
                f"rows of {L} tokens are beyond the position table "
                f"(model.max_length={c.max_length})"
            )
        if train and c.matrix_dropout:
            matrix_RD = self.drop(self._matrix(), train=train, rows=False)
            return matrix_RD[tokens_BL] + matrix_RD[c.vocab_size :][:L]
        return self.drop(self.word(tokens_BL) + self.position(jnp.arange(L)), train=train)

    def encode(self, e_BLD, mask_BL, *, train: bool, attentions: bool = False) -> Encoded:
        """Run the layers; each token sees itself and the real ones before it."""
        bias = jnp.where(causal_mask(mask_BL), 0.0, MASKED)[:, None]
        last_BLD, layers, probs, _ = self.stack(e_BLD, bias, train=train, attentions=attentions)
        last_BLD = self._finish(last_BLD)
        hidden = jnp.concatenate([e_BLD[None], layers[:-1], last_BLD[None]])
        return Encoded(last=last_BLD, hidden=hidden, attentions=probs)

    def empty_cache(self, rows: int, capacity: int):
        """An empty cache for `extend`; see `layers.causal.empty_cache`."""
        return empty_cache(self.config, rows, capacity)

    def extend(self, tokens_BL, positions_BL, visible_BLC, cache, slot):
        """Encode the tokens after those in a cache, without dropout: a prefill or a decode step.

        Args:
          tokens_BL: int token ids; they fill the slots from `slot` on.
          positions_BL: int rows of the position table.
          visible_BLC: bool, which slots each token may see, its own included.
          cache: keys and values of the tokens before, from `empty_cache` or an earlier call.
          slot: int scalar, the first slot to fill.

        Returns the last hidden states [B, L, D] and the new cache.
        """
        e_BLD = self.word(tokens_BL) + self.position(positions_BL)
        bias = jnp.where(visible_BLC, 0.0, MASKED)[:, None]
        last_BLD, _, _, cache = self.stack(
            e_BLD, bias, train=False, attentions=False, cache=cache, slot=slot
        )
        return self._finish(last_BLD), cache

    def decode(self, x_BMD):
        """Scores against the word embeddings: [..., D] to float32 [..., V].

        With `softmax_over_all` those against the positions follow: [..., V + P].
        """
        c = self.config
        table = self._matrix() if c.softmax_over_all else self.word.embedding.astype(c.dtype)
        return word_scores(x_BMD, table)

    def _matrix(self):
        """Tokens and positions as one matrix [V + P, D], as in the 2018 code."""
        whole = jnp.concatenate([self.word.embedding, self.position.embedding])
        return whole.astype(self.config.dtype)

    def _finish(self, last_BLD):
        return self.final_norm(last_BLD) if self.config.pre_norm else last_BLD


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = GPT
LAYERS = layer_modules(  # GPT-2's too
    "transformer.h.{i}",
    ("attention/qkv", "attn.c_attn", "conv"),
    ("attention/output", "attn.c_proj", "conv"),
    ("attention_norm", "ln_1", "norm"),
    ("mlp_in", "mlp.c_fc", "conv"),
    ("mlp_out", "mlp.c_proj", "conv"),
    ("mlp_norm", "ln_2", "norm"),
)


def from_config(spec: dict, config: dict, where: str):
    """Set the width of the MLP: always four times the hidden size."""
    del config, where
    spec["intermediate_size"] = 4 * spec["hidden_size"]


def _to_config(config: dict, spec: dict):
    """Refuse another width of the MLP: config.json has no key for it."""
    del config
    if spec["intermediate_size"] != 4 * spec["hidden_size"]:
        raise FirthError(
            f"the published layout of gpt has no place for model.intermediate_size="
            f"{spec['intermediate_size']}, only for {4 * spec['hidden_size']}; keep it as a Firth "
            "directory"
        )


PUBLISHED = Published(
    modules=(
        ("encoder/word", "transformer.tokens_embed", "embed"),
        ("encoder/position", "transformer.positions_embed", "embed"),
        *LAYERS,
        ("classifier/dense", "score", "kernel"),
    ),
    tied=(("encoder/word", "lm_head", "embed"),),
    prefix="transformer.",
    buffers=("transformer.h.{i}.attn.bias", "transformer.h.{i}.attn.masked_bias"),
    parameterless_heads={"lm": "lm_head.weight"},
    architectures={
        ("classifier",): "OpenAIGPTForSequenceClassification",
        ("lm",): "OpenAIGPTLMHeadModel",
        (): "OpenAIGPTModel",
    },
    # For this family, transformers computes "gelu" by tanh and has no other gelu.
    activations={"gelu": "gelu_tanh", "gelu_new": "gelu_tanh", "relu": "relu"},
    fields={
        "vocab_size": "vocab_size",
        "num_layers": "n_layer",
        "hidden_size": "n_embd",
        "num_heads": "n_head",
        "max_length": "n_positions",
        "activation": "afn",
        "norm_epsilon": "layer_norm_epsilon",
        "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
        "embedding_dropout": "embd_pdrop",
        "init_stddev": "initializer_range",
        "classifier_dropout": "summary_first_dropout",
    },
    fixed={"pruned_heads": {}, "quantization_config": None},
    from_config=from_config,
    to_config=_to_config,
)
