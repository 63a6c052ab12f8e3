"""BERT (Devlin et al. 2019): a post-norm bidirectional Transformer encoder.

Its relatives (RoBERTa, DistilBERT, ELECTRA, ALBERT) derive their Config from the one here and use
the same Body. B batch, L length, P places, D hidden size, E embedding size, N layers, V vocabulary.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.attention import mask_to_bias, places
from firth.layers.dropout import Dropout
from firth.layers.heads import word_scores
from firth.layers.products import transformer
from firth.layers.transformer import (
    Stack,
    check_body,
    dense,
    edge_initializer,
    initializer,
    layer_norm,
)
from firth.models.model import Encoded, sized
from firth.models.published import Published, layer_modules
from firth.tokenizers.special_tokens import BERT

# (layers, hidden size): the paper's two and the 24 miniatures of Turc et al. 2019, whose named
# members are tiny, mini, small and medium. Heads are hidden/64 wide, the MLP is four times wider.
SIZES = {f"{n}x{d}": (n, d) for n in (2, 4, 6, 8, 10, 12) for d in (128, 256, 512, 768)} | {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


def size(name: str) -> dict:
    """Dimensions of a published size, as keyword arguments of `Config`."""
    return dimensions(*sized("BERT", SIZES, name))


def dimensions(layers: int, hidden: int) -> dict:
    """A body with heads of 64 and an MLP four times as wide, as in all published models."""
    return dict(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=max(hidden // 64, 1),
        intermediate_size=4 * hidden,
    )


@dataclasses.dataclass(frozen=True)
class Config:
    """Dimensions and numerics; the defaults are BERT-base uncased.

    `activation` is "gelu_tanh" (the original code), "gelu" (erf; Hugging Face) or "relu".
    `type_vocab_size` 0 or 1 leaves segment ids unused. `embedding_size` 0 means the hidden size;
    where the two differ, a dense layer maps one to the other. Classifiers read a text's first token
    (`classifier_pooling` "cls", as in the papers) or the mean of all ("mean"). `remat` is "none" or
    one of `layers.transformer.REMAT_POLICIES`. With `fused_attention` TPUs compute attention with
    the kernels of `layers.fused`, in rows of 512 or 1,024 tokens. With `attention` "cudnn" NVIDIA
    GPUs compute it with `layers.cudnn`; "auto" leaves that to a training run. `dtype` is that of
    the computation; parameters, LayerNorm statistics, softmax and losses are float32.
    """

    bias: ClassVar[bool] = True  # of dense layers and norms
    head_activation: ClassVar[str] = ""  # of the MLM head; "": that of the layers
    classifier_hidden: ClassVar[str] = ""  # see `layers.heads`; "": on the pooled output
    classifier_input_dropout: ClassVar[bool] = True
    classifier_norm: ClassVar[bool] = False
    classifier_bias: ClassVar[bool] = True
    truncated: ClassVar[bool] = True  # initial weights lie within two standard deviations
    glorot_edges: ClassVar[bool] = False  # see `layers.transformer.edge_initializer`
    attention_output_dropout: ClassVar[bool] = True  # before the residual sum
    causal: ClassVar[bool] = False  # whether a token sees only those before it
    packs: ClassVar[bool] = True  # whether its body reads packed rows; not inherited by one's own
    products = transformer  # of a step, for counting FLOPs
    lm_bias: ClassVar[bool] = True  # of the head that scores the next token

    vocab_size: int = 30522
    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    intermediate_size: int = 3072
    embedding_size: int = 0
    max_length: int = 512
    type_vocab_size: int = 2
    activation: str = "gelu"
    norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    init_stddev: float = 0.02
    pooler: bool = True
    classifier_pooling: str = "cls"
    scan: bool = False
    remat: str = "none"
    fused_attention: bool = False
    attention: str = "plain"
    dtype: str = "float32"

    @property
    def embedding_width(self) -> int:
        """E."""
        return self.embedding_size or self.hidden_size

    @property
    def projects(self) -> bool:
        """Whether a dense layer maps the embeddings to the hidden size."""
        return self.embedding_width != self.hidden_size

    @property
    def first_position(self) -> int:
        """Row of the position table for the first token."""
        return 0

    @property
    def padding_row(self) -> int | None:
        """Row of the word and position tables whose initial values are zeros, or None."""
        return None

    def __post_init__(self):
        check_body(self)
        check_pooling(self)


def check_pooling(config):
    """Raise FirthError for a `classifier_pooling` that no classifier has."""
    if config.classifier_pooling not in ("cls", "mean"):
        raise FirthError(
            f"model.classifier_pooling={config.classifier_pooling!r}; expected cls or mean"
        )


def zero_row(init, row: int | None):
    """The initialiser with zeros in one row; unchanged where `row` is None."""
    if row is None:
        return init
    return lambda *args: init(*args).at[row].set(0)


class Body(nn.Module):
    """Token, position and segment embeddings, the Transformer stack and the pooler."""

    config: Config
    stack_of: ClassVar[type[nn.Module]] = Stack
    last_layer_at: ClassVar[bool] = True  # whether `encode` takes `at_BP`; not inherited

    def setup(self):
        """Name the parts."""
        c = self.config

        def table(rows, init):
            return nn.Embed(rows, c.embedding_width, embedding_init=init, dtype=c.dtype)

        padded = zero_row(initializer(c), c.padding_row)
        self.word = table(c.vocab_size, padded)
        self.position = table(c.first_position + c.max_length, padded)
        if c.type_vocab_size:
            self.type = table(c.type_vocab_size, initializer(c))
        self.norm = layer_norm(c)
        self.drop = Dropout(c.dropout)
        if c.projects:
            self.project = dense(c, c.hidden_size, init=edge_initializer(c))
        self.stack = self.stack_of(c)
        if c.pooler:
            self.pooler = dense(c, c.hidden_size)

    def __call__(self, tokens_BL, segments_BL=None, mask_BL=None, *, train=False, **options):
        """Encode a batch: `embed`, then `encode`.

        Args:
          tokens_BL: int token ids.
          segments_BL: int segment ids; zeros when None.
          mask_BL: bool, True at real tokens; all True when None. In packed rows int, as
            `layers.attention.mask_to_bias` has it: each text is read as if it were alone, but
            `pooled` is that of the row's first.
          train: apply dropout (needs the `dropout` random stream).
          options: of `encode`.
        """
        if mask_BL is None:
            mask_BL = jnp.ones(tokens_BL.shape, bool)
        e_BLE = self.embed(tokens_BL, segments_BL, mask_BL, train=train)
        return self.encode(e_BLE, mask_BL, train=train, **options)

    def embed(self, tokens_BL, segments_BL, mask_BL, *, train: bool):
        """Sum of the embeddings, normalised: [B, L, E]."""
        c, L = self.config, tokens_BL.shape[1]
        if c.max_length < L:
            raise FirthError(
                f"rows of {L} tokens are beyond the position table "
                f"(model.max_length={c.max_length})"
            )
        if segments_BL is None:
            segments_BL = jnp.zeros_like(tokens_BL)
        positions = places(mask_BL)
        if c.first_position:  # RoBERTa counts real tokens; padding gets the row before the first
            packed = mask_BL.dtype != bool
            count_BL = positions + 1 if packed else jnp.cumsum(mask_BL, axis=1)
            positions = count_BL * (mask_BL != 0) + c.first_position - 1
        e_BLE = self.word(tokens_BL) + self.position(positions)
        if c.type_vocab_size:
            e_BLE += self.type(segments_BL)
        return self.drop(self.norm(e_BLE), train=train)

    def encode(self, e_BLE, mask_BL, *, train, attentions=False, **places) -> Encoded:
        """Run the layers and the pooler; the embeddings may come from another encoder.

        `attentions` asks for the attention probabilities, too. With `at_BP` in `places`, int places
        of each row, the last layer is computed there alone, where `transformer.reads_places`:
        `last` is [B, P, D], `pooled` that of the first place, and the rest None.
        """
        e_BLD = self.project(e_BLE) if self.config.projects else e_BLE
        last_BLD, layers, probs = self.stack(
            e_BLD, self.context(mask_BL), train=train, attentions=attentions, **places
        )
        pooled_BD = self.pool(last_BLD[:, 0]) if self.config.pooler else None
        hidden = None if places else jnp.concatenate([e_BLD[None], layers])
        return Encoded(last=last_BLD, hidden=hidden, pooled=pooled_BD, attentions=probs)

    def context(self, mask_BL):
        """What all layers share: the bias of attention."""
        return mask_to_bias(mask_BL)

    def pool(self, first_BD):
        """The pooled output of the last hidden states of first tokens, [..., D]."""
        return jnp.tanh(self.pooler(first_BD))

    def decode(self, x_BME):
        """Scores against the word embeddings: [..., E] to [..., V], accumulated in float32."""
        table_VE = self.word.embedding.astype(self.config.dtype)
        return word_scores(x_BME, table_VE)


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = BERT


def encoder_modules(prefix: str) -> tuple:
    """Rows of the encoder as BERT, RoBERTa and ELECTRA publish it, each under its prefix."""
    embeddings = f"{prefix}.embeddings"
    return (
        ("encoder/word", f"{embeddings}.word_embeddings", "embed"),
        ("encoder/position", f"{embeddings}.position_embeddings", "embed"),
        ("encoder/type", f"{embeddings}.token_type_embeddings", "embed"),
        ("encoder/norm", f"{embeddings}.LayerNorm", "norm"),
        *layer_modules(
            f"{prefix}.encoder.layer.{{i}}",
            ("attention/query", "attention.self.query", "dense"),
            ("attention/key", "attention.self.key", "dense"),
            ("attention/value", "attention.self.value", "dense"),
            ("attention/output", "attention.output.dense", "dense"),
            ("attention_norm", "attention.output.LayerNorm", "norm"),
            ("mlp_in", "intermediate.dense", "dense"),
            ("mlp_out", "output.dense", "dense"),
            ("mlp_norm", "output.LayerNorm", "norm"),
        ),
    )


PUBLISHED = Published(
    modules=(
        *encoder_modules("bert"),
        ("encoder/pooler", "bert.pooler.dense", "dense"),
        ("mlm/dense", "cls.predictions.transform.dense", "dense"),
        ("mlm/norm", "cls.predictions.transform.LayerNorm", "norm"),
        ("mlm", "cls.predictions", "bias"),
        ("nsp/dense", "cls.seq_relationship", "dense"),
        ("classifier/dense", "classifier", "dense"),
        ("choice/dense", "classifier", "dense"),
        ("answer/dense", "qa_outputs", "dense"),
    ),
    tied=(
        ("encoder/word", "cls.predictions.decoder", "embed"),
        ("mlm", "cls.predictions.decoder", "bias"),
    ),
    prefix="bert.",
    buffers=("bert.embeddings.position_ids",),
    exclusive_heads=(("choice", "classifier", "BertForMultipleChoice"),),
    architectures={
        ("choice",): "BertForMultipleChoice",
        ("classifier",): "BertForSequenceClassification",
        ("answer",): "BertForQuestionAnswering",
        ("mlm", "nsp"): "BertForPreTraining",
        ("mlm",): "BertForMaskedLM",
        ("nsp",): "BertForNextSentencePrediction",
        (): "BertModel",
    },
    fields={
        "vocab_size": "vocab_size",
        "num_layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_length": "max_position_embeddings",
        "type_vocab_size": "type_vocab_size",
        "activation": "hidden_act",
        "norm_epsilon": "layer_norm_eps",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "init_stddev": "initializer_range",
        "classifier_dropout": "classifier_dropout",
    },
    fixed={
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
        "pruned_heads": {},
        "quantization_config": None,
    },
)
