"""BERT (Devlin et al. 2019): a post-norm bidirectional Transformer encoder.

B batch, L length, D hidden size, N layers, V vocabulary.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.attention import mask_to_bias
from firth.layers.dropout import Dropout
from firth.layers.transformer import (
    ACTIVATIONS,
    REMAT_POLICIES,
    Stack,
    dense,
    initializer,
    layer_norm,
)
from firth.models.model import Encoded

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
    if name not in SIZES:
        raise FirthError(f"BERT has no size {name!r}; choose one of {', '.join(SIZES)}")
    layers, hidden = SIZES[name]
    return dict(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )


@dataclasses.dataclass(frozen=True)
class Config:
    """Dimensions and numerics; the defaults are BERT-base uncased.

    `activation` is "gelu_tanh" (the original code), "gelu" (erf; Hugging Face) or "relu".
    `remat` is "none", "full" or "dots". `dtype` is that of the computation; parameters, LayerNorm
    statistics, softmax and losses are float32.
    """

    vocab_size: int = 30522
    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    intermediate_size: int = 3072
    max_length: int = 512
    type_vocab_size: int = 2
    activation: str = "gelu"
    norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    init_stddev: float = 0.02
    pooler: bool = True
    scan: bool = False
    remat: str = "none"
    dtype: str = "float32"

    def __post_init__(self):
        if self.hidden_size % self.num_heads:
            raise FirthError(
                f"model.hidden_size={self.hidden_size} is not a multiple of "
                f"model.num_heads={self.num_heads}"
            )
        for name, known in (
            ("activation", ACTIVATIONS),
            ("remat", ("none", *REMAT_POLICIES)),
            ("dtype", ("float32", "bfloat16", "float16")),
        ):
            if getattr(self, name) not in known:
                raise FirthError(
                    f"model.{name}={getattr(self, name)!r} is unknown; one of {', '.join(known)}"
                )


class Encoder(nn.Module):
    """Token, position and segment embeddings, the Transformer stack and the pooler."""

    config: Config

    def setup(self):
        """Name the parts."""
        c = self.config

        def table(rows):
            return nn.Embed(rows, c.hidden_size, embedding_init=initializer(c), dtype=c.dtype)

        self.word = table(c.vocab_size)
        self.position = table(c.max_length)
        self.type = table(c.type_vocab_size)
        self.norm = layer_norm(c, None)
        self.drop = Dropout(c.dropout)
        self.stack = Stack(c)
        if c.pooler:
            self.pooler = dense(c, c.hidden_size, None)

    def __call__(self, tokens_BL, segments_BL=None, mask_BL=None, *, train=False, attentions=False):
        """Encode a batch.

        Args:
          tokens_BL: int token ids.
          segments_BL: int segment ids; zeros when None.
          mask_BL: bool, True at real tokens; all True when None.
          train: apply dropout (needs the `dropout` random stream).
          attentions: also return the attention probabilities.
        """
        if tokens_BL.shape[1] > self.config.max_length:
            raise FirthError(
                f"rows of {tokens_BL.shape[1]} tokens are beyond the position table "
                f"(model.max_length={self.config.max_length})"
            )
        if segments_BL is None:
            segments_BL = jnp.zeros_like(tokens_BL)
        if mask_BL is None:
            mask_BL = jnp.ones(tokens_BL.shape, bool)
        positions_L = jnp.arange(tokens_BL.shape[1])
        e_BLD = self.word(tokens_BL) + self.type(segments_BL) + self.position(positions_L)
        e_BLD = self.drop(self.norm(e_BLD), train=train)
        last_BLD, layers, probs = self.stack(
            e_BLD, mask_to_bias(mask_BL), train=train, attentions=attentions
        )
        pooled_BD = jnp.tanh(self.pooler(last_BLD[:, 0])) if self.config.pooler else None
        hidden = jnp.concatenate([e_BLD[None], layers])
        return Encoded(last=last_BLD, hidden=hidden, pooled=pooled_BD, attentions=probs)

    def decode(self, x_BMD):
        """Scores against the word embeddings: [..., D] to [..., V], accumulated in float32."""
        table_VD = self.word.embedding.astype(self.config.dtype)
        return jnp.einsum("...D,VD->...V", x_BMD, table_VD, preferred_element_type=jnp.float32)


# ---------------------------------------------------------------- published names (Hugging Face)
# One row a module: its path here, its published name, and what it consists of ("dense", "norm",
# "embed" or a lone "bias"; `firth.published` knows their leaves). {i} runs over the layers.
NAMES = (
    ("encoder/word", "bert.embeddings.word_embeddings", "embed"),
    ("encoder/position", "bert.embeddings.position_embeddings", "embed"),
    ("encoder/type", "bert.embeddings.token_type_embeddings", "embed"),
    ("encoder/norm", "bert.embeddings.LayerNorm", "norm"),
    *(
        (f"encoder/stack/layer_{{i}}/{ours}", f"bert.encoder.layer.{{i}}.{theirs}", kind)
        for ours, theirs, kind in (
            ("attention/query", "attention.self.query", "dense"),
            ("attention/key", "attention.self.key", "dense"),
            ("attention/value", "attention.self.value", "dense"),
            ("attention/output", "attention.output.dense", "dense"),
            ("attention_norm", "attention.output.LayerNorm", "norm"),
            ("mlp_in", "intermediate.dense", "dense"),
            ("mlp_out", "output.dense", "dense"),
            ("mlp_norm", "output.LayerNorm", "norm"),
        )
    ),
    ("encoder/pooler", "bert.pooler.dense", "dense"),
    ("mlm/dense", "cls.predictions.transform.dense", "dense"),
    ("mlm/norm", "cls.predictions.transform.LayerNorm", "norm"),
    ("mlm", "cls.predictions", "bias"),
    ("nsp/dense", "cls.seq_relationship", "dense"),
    ("classifier/dense", "classifier", "dense"),
)
# Second names of the same (tied) parameters; where a file holds both, they must be equal.
ALIASES = (
    ("encoder/word", "cls.predictions.decoder", "embed"),
    ("mlm", "cls.predictions.decoder", "bias"),
)
PREFIX = "bert."  # bare encoders are published without it
BUFFERS = ("bert.embeddings.position_ids",)  # 0 .. max_length-1 in old files; nothing is learned

# Heads -> class, the first whose heads are all there being the one that a model is published as.
ARCHITECTURES = {
    ("classifier",): "BertForSequenceClassification",
    ("mlm", "nsp"): "BertForPreTraining",
    ("mlm",): "BertForMaskedLM",
    ("nsp",): "BertForNextSentencePrediction",
    (): "BertModel",
}
FIELDS = {  # of Config -> of config.json
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
}
FIXED = {  # settings of config.json that change the numbers: the one value computed here
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "quantization_config": None,
}
