"""ModernBERT (Warner et al. 2024): a recent encoder under the same interface.

Pre-norm, rotary positions, GeGLU, no biases, and attention that is global in every third layer and
local in the others (`layers.rotary`). B batch, L length, P places, D hidden size.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.attention import mask_to_bias, places, reach_bias
from firth.layers.dropout import Dropout
from firth.layers.products import with_local_layers
from firth.layers.rotary import Stack, rotary
from firth.layers.transformer import check_body, dense, initializer, layer_norm
from firth.models import bert
from firth.models.model import Encoded, sized
from firth.models.published import Published, layer_modules
from firth.tokenizers.special_tokens import BERT

# (layers, hidden size, heads, MLP width); base and large are the published ones.
SIZES = {
    "tiny": (3, 128, 2, 192),
    "mini": (4, 256, 4, 384),
    "small": (6, 512, 8, 768),
    "base": (22, 768, 12, 1152),
    "large": (28, 1024, 16, 2624),
}


def size(name: str) -> dict:
    """Dimensions of a size."""
    fields = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
    return dict(zip(fields, sized("ModernBERT", SIZES, name), strict=True))


@dataclasses.dataclass(frozen=True)
class Config:
    """Dimensions and numerics; the defaults are ModernBERT-base.

    Layer i attends globally where `i % global_every` is 0, elsewhere to the `window` // 2 tokens on
    either side; the rotary bases are `global_theta` and `local_theta`. `embedding_size` is as in
    BERT (0: the hidden size; published models have no other), and so are `attention` (cuDNN reads
    the windows of local layers as an array, since its own end at the query) and `fused_attention`
    (for layers that are not scanned).
    """

    bias: ClassVar[bool] = False
    head_activation: ClassVar[str] = "gelu"
    classifier_hidden: ClassVar[str] = "gelu"
    classifier_input_dropout: ClassVar[bool] = False
    classifier_norm: ClassVar[bool] = True
    classifier_bias: ClassVar[bool] = True
    truncated: ClassVar[bool] = True
    glorot_edges: ClassVar[bool] = False
    pre_norm: ClassVar[bool] = True
    causal: ClassVar[bool] = False
    packs: ClassVar[bool] = True  # see BERT's
    products = with_local_layers  # of a step, for counting FLOPs
    lm_bias: ClassVar[bool] = True
    type_vocab_size: ClassVar[int] = 1
    pooler: ClassVar[bool] = False
    first_position: ClassVar[int] = 0

    vocab_size: int = 50368
    num_layers: int = 22
    hidden_size: int = 768
    num_heads: int = 12
    intermediate_size: int = 1152
    embedding_size: int = 0
    max_length: int = 8192
    global_every: int = 3
    window: int = 128
    global_theta: float = 160_000.0
    local_theta: float = 10_000.0
    activation: str = "gelu"
    norm_epsilon: float = 1e-5
    dropout: float = 0.0  # of the embeddings and the MLP
    attention_dropout: float = 0.0
    init_stddev: float = 0.02
    classifier_pooling: str = "cls"
    fused_attention: bool = False
    scan: bool = False
    remat: str = "none"
    attention: str = "plain"
    dtype: str = "float32"

    embedding_width = bert.Config.embedding_width
    projects = bert.Config.projects

    def __post_init__(self):
        check_body(self)
        bert.check_pooling(self)
        if self.hidden_size // self.num_heads % 2:
            raise FirthError(
                f"model.hidden_size={self.hidden_size} over num_heads={self.num_heads} gives heads "
                "of an odd width; rotary positions need an even one"
            )
        if self.fused_attention and self.scan:  # a scanned layer is local or global by a number
            raise FirthError("model.fused_attention needs model.scan=False in ModernBERT")


class Body(nn.Module):
    """Token embeddings, the layers and the final norm; the last hidden state is the normed one."""

    config: Config
    stack_of: ClassVar[type[nn.Module]] = Stack
    last_layer_at: ClassVar[bool] = True  # see BERT's

    def setup(self):
        """Name the parts."""
        c = self.config
        self.word = nn.Embed(
            c.vocab_size, c.embedding_width, embedding_init=initializer(c), dtype=c.dtype
        )
        self.norm = layer_norm(c)
        self.drop = Dropout(c.dropout)
        if c.projects:
            self.project = dense(c, c.hidden_size)
        self.stack = self.stack_of(c)
        self.final_norm = layer_norm(c)

    __call__ = bert.Body.__call__
    decode = bert.Body.decode

    def embed(self, tokens_BL, segments_BL, mask_BL, *, train: bool):
        """Normalised token embeddings [B, L, E]; there are no segments."""
        del segments_BL, mask_BL
        c, L = self.config, tokens_BL.shape[1]
        if c.max_length < L:
            raise FirthError(f"rows of {L} tokens are beyond model.max_length={c.max_length}")
        return self.drop(self.norm(self.word(tokens_BL)), train=train)

    def encode(self, e_BLE, mask_BL, *, train, attentions=False, **places) -> Encoded:
        """As BERT's."""
        e_BLD = self.project(e_BLE) if self.config.projects else e_BLE
        last_BLD, layers, probs = self.stack(
            e_BLD, self.context(mask_BL), train=train, attentions=attentions, **places
        )
        last_BLD = self.final_norm(last_BLD)
        if places:
            return Encoded(last=last_BLD)
        hidden = jnp.concatenate([e_BLD[None], layers[:-1], last_BLD[None]])
        return Encoded(last=last_BLD, hidden=hidden, attentions=probs)

    def context(self, mask_BL):
        """(bias, rotation) of global and of local layers."""
        c, place = self.config, places(mask_BL)
        width, reach = c.hidden_size // c.num_heads, (c.window // 2, c.window // 2)
        far = mask_to_bias(mask_BL), rotary(place, width, c.global_theta)
        near = reach_bias(mask_BL, reach), rotary(place, width, c.local_theta)
        return far, near


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = BERT
ROTARY_BASES = (  # (field of Config, kind of layer in config.json, key in old files)
    ("global_theta", "full_attention", "global_rope_theta"),
    ("local_theta", "sliding_attention", "local_rope_theta"),
)


def _from_config(spec: dict, config: dict, where: str):
    """Set the pattern of local layers and the rotary bases, from the new or the old keys."""
    kinds = config.get("layer_types")
    every = config.get("global_attn_every_n_layers", 3)
    if kinds is not None:
        pattern = [kind == "full_attention" for kind in kinds]
        every = next((i for i in range(1, len(pattern)) if pattern[i]), len(pattern))
        if pattern != [i % every == 0 for i in range(spec["num_layers"])]:
            raise FirthError(
                f"{where}: layer_types={kinds!r}: expected full attention every n layers"
            )
    spec["global_every"] = every
    turns = config.get("rope_parameters") or {}
    for field, kind, old in ROTARY_BASES:
        turn = turns.get(kind) or {}
        if turn.get("rope_type", "default") != "default":
            raise FirthError(f"{where}: rope_parameters[{kind!r}]={turn!r} is not supported")
        theta = turn.get("rope_theta", config.get(old))
        spec[field] = float(spec[field] if theta is None else theta)


def _to_config(config: dict, spec: dict):
    """Set the new keys for the pattern and the rotary bases, and drop the old ones."""
    pattern = ["full_attention"] + ["sliding_attention"] * (spec["global_every"] - 1)
    config["layer_types"] = (pattern * spec["num_layers"])[: spec["num_layers"]]
    config["rope_parameters"] = {
        kind: {"rope_theta": spec[field], "rope_type": "default"} for field, kind, _ in ROTARY_BASES
    }
    config["embedding_dropout"] = spec["dropout"]
    for key in ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"):
        config.pop(key, None)


PUBLISHED = Published(
    modules=(
        ("encoder/word", "model.embeddings.tok_embeddings", "embed"),
        ("encoder/norm", "model.embeddings.norm", "scale"),
        *layer_modules(
            "model.layers.{i}",
            ("attention_norm", "attn_norm", "scale"),
            ("attention/qkv", "attn.Wqkv", "kernel"),
            ("attention/output", "attn.Wo", "kernel"),
            ("mlp_norm", "mlp_norm", "scale"),
            ("mlp_in", "mlp.Wi", "kernel"),
            ("mlp_out", "mlp.Wo", "kernel"),
        ),
        ("encoder/final_norm", "model.final_norm", "scale"),
        ("mlm/dense", "head.dense", "kernel"),
        ("mlm/norm", "head.norm", "scale"),
        ("mlm", "decoder", "bias"),
        ("classifier/hidden", "head.dense", "kernel"),
        ("classifier/norm", "head.norm", "scale"),
        ("classifier/dense", "classifier", "dense"),
    ),
    tied=(("encoder/word", "decoder", "embed"),),
    prefix="model.",
    exclusive_heads=(("classifier", "mlm", "classifier.weight"),),  # both publish a `head`
    architectures={
        ("classifier",): "ModernBertForSequenceClassification",
        ("mlm",): "ModernBertForMaskedLM",
        (): "ModernBertModel",
    },
    fields={
        "vocab_size": "vocab_size",
        "num_layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_length": "max_position_embeddings",
        "window": "local_attention",
        "activation": "hidden_activation",
        "norm_epsilon": "norm_eps",
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "init_stddev": "initializer_range",
        "classifier_pooling": "classifier_pooling",
        "classifier_dropout": "classifier_dropout",
    },
    fixed={
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "quantization_config": None,
    },
    from_config=_from_config,
    to_config=_to_config,
)
