"""XLNet (Yang et al. 2019): Transformer-XL's attention with two streams and relative segments.

B rows, L length, P predicted positions, M memory, J = M + L keys, N layers, D hidden size.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.dropout import Dropout
from firth.layers.products import relative
from firth.layers.relative import (
    Stack,
    create_context,
    distances,
    empty_memory,
    remember,
    sinusoids,
)
from firth.layers.transformer import check_body, initializer
from firth.models import bert
from firth.models.model import Encoded, sized
from firth.models.published import Published, layer_modules

# (layers, hidden size): base and large are the published ones.
SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "base": (12, 768)} | {
    "large": (24, 1024)
}


def size(name: str) -> dict:
    """Dimensions of a size."""
    return bert.dimensions(*sized("XLNet", SIZES, name))


@dataclasses.dataclass(frozen=True)
class Config:
    """Dimensions and numerics; the defaults are XLNet-base.

    `clamp_len` is the largest distance: farther keys count as this far (0: no limit). With
    `untie_r` every layer has its own biases on the query. `same_length` lets all positions of a
    causal model see equally many keys. With `fused_attention` TPUs from v5e on compute attention
    with the kernels of `layers.kernels`, where rows and memory are multiples of 128 tokens. The
    rest is as in BERT.
    """

    bias: ClassVar[bool] = True
    head_activation: ClassVar[str] = ""
    classifier_hidden: ClassVar[str] = "tanh"
    classifier_pooling: ClassVar[str] = "last"
    classifier_input_dropout: ClassVar[bool] = False
    classifier_norm: ClassVar[bool] = False
    classifier_bias: ClassVar[bool] = True
    pooler: ClassVar[bool] = False
    truncated: ClassVar[bool] = False
    glorot_edges: ClassVar[bool] = False
    causal: ClassVar[bool] = False
    products = relative  # of a step, for counting FLOPs
    lm_bias: ClassVar[bool] = True
    segments: ClassVar[bool] = True
    scales_embeddings: ClassVar[bool] = False
    max_length: ClassVar[int] = 1 << 20  # positions are relative: memory is the only limit
    type_vocab_size: ClassVar[int] = 5  # only whether two ids are equal matters
    embedding_size: ClassVar[int] = 0

    vocab_size: int = 32000
    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    intermediate_size: int = 3072
    activation: str = "gelu"
    norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    init_stddev: float = 0.02
    clamp_len: int = 0
    untie_r: bool = True
    same_length: bool = False
    scan: bool = False
    remat: str = "none"
    attention: str = "plain"
    fused_attention: bool = False
    dtype: str = "float32"

    embedding_width = bert.Config.embedding_width

    def __post_init__(self):
        check_body(self)
        if self.hidden_size % 2:
            raise FirthError(
                f"model.hidden_size={self.hidden_size} is odd; sines and cosines need an even one"
            )


class Body(nn.Module):
    """Token embeddings and the relative Transformer, with memory, for one stream or two."""

    config: Config

    def setup(self):
        """Name the parts."""
        c = self.config
        self.word = nn.Embed(
            c.vocab_size, c.hidden_size, embedding_init=initializer(c), dtype=c.dtype
        )
        if c.segments:  # the query stream starts from it; causal models have no such stream
            # The released code names no initialiser here; TF1 then takes Glorot's uniform one.
            init = nn.initializers.glorot_uniform()
            self.mask_embedding = self.param("mask_embedding", init, (1, 1, c.hidden_size))
        self.drop = Dropout(c.dropout)
        self.stack = Stack(c)

    decode = bert.Body.decode

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
        """Encode a batch by the content stream alone.

        Args:
          tokens_BL: int token ids.
          segments_BL: int segment ids, of which only equality matters; zeros when None.
          mask_BL: bool, True at real tokens; all True when None.
          train: apply dropout (needs the `dropout` random stream).
          attentions: also return the attention probabilities, [N, B, H, L, J].
          memory: of the rows' earlier segments, from `Encoded.memory` or `empty_memory`.
        """
        e_BLD = self.embed(tokens_BL, segments_BL, mask_BL, train=train)
        return self.encode(
            e_BLD,
            mask_BL,
            train=train,
            attentions=attentions,
            segments_BL=segments_BL,
            memory=memory,
        )

    def embed(self, tokens_BL, segments_BL, mask_BL, *, train: bool):
        """Token embeddings [B, L, D]; positions and segments enter the attention."""
        del segments_BL, mask_BL
        c = self.config
        e_BLD = self.word(tokens_BL)
        if c.scales_embeddings:
            e_BLD *= c.hidden_size**0.5
        return self.drop(e_BLD, train=train)

    def encode(
        self, e_BLD, mask_BL, *, train, attentions=False, segments_BL=None, memory=None
    ) -> Encoded:
        """The layers over embedded tokens."""
        return self._run(e_BLD, mask_BL, segments_BL, memory, train, attentions)[0]

    def two_streams(
        self,
        tokens_BL,
        segments_BL,
        mask_BL,
        ranks_BL,
        positions_BP,
        *,
        train: bool,
        memory=None,
        kept: int | None = None,
        backwards: bool = False,
    ) -> tuple[Encoded, jax.Array]:
        """Encode under a factorization order (Yang et al. 2019, section 2.3).

        Args:
          ranks_BL: int, the place of each token in the order. A position's content stream sees
            tokens of its own rank and below, its query stream only those below.
          positions_BP: int, the positions that are predicted.
          kept: how many of the first positions the memory keeps; all by default.
          backwards: the second half of the rows runs from right to left.

        Returns the content stream as `Encoded`, and the query stream's last hidden states
        [B, P, D]. In training, dropout falls on these and not on `last` of the content stream.
        """
        e_BLD = self.embed(tokens_BL, segments_BL, mask_BL, train=train)
        order = (ranks_BL, positions_BP)
        return self._run(e_BLD, mask_BL, segments_BL, memory, train, False, order, kept, backwards)

    def _run(
        self,
        e_BLD,
        mask_BL,
        segments_BL,
        memory,
        train,
        attentions,
        order=None,
        kept=None,
        backwards=False,
    ):
        """(Encoded, the query stream's last hidden states or None)."""
        c = self.config
        B, L, D = e_BLD.shape
        if backwards and B % 2:
            raise FirthError(
                f"bidirectional data need an even number of rows, half of them for each direction, "
                f"but a micro-batch has {B}; change batch_size or accumulate"
            )
        M = 0 if memory is None else memory["hidden"].shape[2]
        past_NBMD = None if memory is None else jnp.moveaxis(memory["hidden"], 1, 0)
        steps_R = distances(L, M, c.causal, c.clamp_len)
        steps_TR = jnp.stack([steps_R, -steps_R] if backwards else [steps_R])
        distance_TRD = jax.vmap(lambda steps: sinusoids(steps, D))(steps_TR).astype(c.dtype)
        context = create_context(c, mask_BL, segments_BL, memory, order, (B, L, M))
        query_BPD = None
        if order is not None:
            begin = self.mask_embedding.astype(c.dtype)
            query_BPD = jnp.broadcast_to(begin, (*order[1].shape, D))
            query_BPD = self.drop(query_BPD, train=train)
        # One mask for all rows of a direction, as in Transformer-XL's code. XLNet's code has a mask
        # a row, so every layer would project the encodings again for each row.
        distance_TRD = self.drop(distance_TRD, train=train, rows=False)
        context = context._replace(distances=distance_TRD)
        (last_BLD, query_BPD), layers, probs = self.stack(
            (e_BLD, query_BPD), context, past_NBMD, train=train, attentions=attentions
        )
        hidden = jnp.concatenate([e_BLD[None], layers])
        new_memory = None if memory is None else remember(memory, hidden[:-1], kept)
        if query_BPD is None:  # dropout falls on the stream that predicts
            last_BLD = self.drop(last_BLD, train=train)
        else:
            query_BPD = self.drop(query_BPD, train=train)
        return Encoded(last_BLD, hidden, None, probs, new_memory), query_BPD

    @nn.nowrap
    def empty_memory(self, rows: int, length: int) -> dict:
        """Empty memory with room for `length` positions; see `layers.relative`."""
        return empty_memory(self.config, rows, length)


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = ((), ("sep",), ("sep", "cls"))  # A <sep> B <sep> <cls>


def _from_config(spec: dict, config: dict, where: str):
    """Set `clamp_len` (-1 in config.json: no limit) and `attention_dropout` (that of `dropout`)."""
    clamp = config.get("clamp_len", -1)
    if type(clamp) is not int:
        raise FirthError(f"{where}: clamp_len={clamp!r}, expected an integer (-1: no limit)")
    spec["clamp_len"] = max(clamp, 0)
    spec["attention_dropout"] = spec["dropout"]


def _to_config(config: dict, spec: dict):
    """Set `clamp_len` and the width of a head; refuse shared biases."""
    if not spec["untie_r"]:
        raise FirthError(
            "the published layout has biases for every layer; model.untie_r=False shares them"
        )
    config["clamp_len"] = spec["clamp_len"] or -1
    config["d_head"] = spec["hidden_size"] // spec["num_heads"]


PUBLISHED = Published(
    modules=(
        ("encoder/word", "transformer.word_embedding", "embed"),
        ("encoder/mask_embedding", "transformer.mask_emb", "raw"),
        *layer_modules(
            "transformer.layer.{i}",
            ("attention/query", "rel_attn.q", "raw"),
            ("attention/key", "rel_attn.k", "raw"),
            ("attention/value", "rel_attn.v", "raw"),
            ("attention/relative", "rel_attn.r", "raw"),
            ("attention/output", "rel_attn.o", "raw"),
            ("attention/content_bias", "rel_attn.r_w_bias", "raw"),
            ("attention/position_bias", "rel_attn.r_r_bias", "raw"),
            ("attention/segment_bias", "rel_attn.r_s_bias", "raw"),
            ("attention/segment_embedding", "rel_attn.seg_embed", "raw"),
            ("attention_norm", "rel_attn.layer_norm", "norm"),
            ("mlp_in", "ff.layer_1", "dense"),
            ("mlp_out", "ff.layer_2", "dense"),
            ("mlp_norm", "ff.layer_norm", "norm"),
        ),
        ("lm", "lm_loss", "bias"),
        ("classifier/hidden", "sequence_summary.summary", "dense"),
        ("classifier/dense", "logits_proj", "dense"),
        ("choice/hidden", "sequence_summary.summary", "dense"),
        ("choice/dense", "logits_proj", "dense"),
        ("answer/dense", "qa_outputs", "dense"),
    ),
    tied=(("encoder/word", "lm_loss", "embed"),),
    prefix="transformer.",
    exclusive_heads=(("choice", "classifier", "XLNetForMultipleChoice"),),
    architectures={
        ("choice",): "XLNetForMultipleChoice",
        ("classifier",): "XLNetForSequenceClassification",
        ("answer",): "XLNetForQuestionAnsweringSimple",
        ("lm",): "XLNetLMHeadModel",
        (): "XLNetModel",
    },
    fields={
        "vocab_size": "vocab_size",
        "num_layers": "n_layer",
        "hidden_size": "d_model",
        "num_heads": "n_head",
        "intermediate_size": "d_inner",
        "activation": "ff_activation",
        "norm_epsilon": "layer_norm_eps",
        "dropout": "dropout",
        "init_stddev": "initializer_range",
        "classifier_dropout": "summary_last_dropout",
    },
    fixed={
        "attn_type": "bi",
        "untie_r": True,
        "same_length": False,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
        "quantization_config": None,
    },
    from_config=_from_config,
    to_config=_to_config,
)
