"""ALBERT (Lan et al. 2020): small embeddings, and layers whose parameters are shared across depth.

B batch, L length, D hidden size, N layers.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.transformer import Block, in_turn, rematerialised
from firth.models import bert
from firth.models.model import sized
from firth.models.published import layer_modules
from firth.tokenizers.special_tokens import BERT

# (layers, hidden size, heads, embedding size): the paper's four (table 1), and three for laptops.
SIZES = {
    "tiny": (2, 128, 2, 128),
    "mini": (4, 256, 4, 128),
    "small": (4, 512, 8, 128),
    "base": (12, 768, 12, 128),
    "large": (24, 1024, 16, 128),
    "xlarge": (24, 2048, 16, 128),
    "xxlarge": (12, 4096, 64, 128),
}


def size(name: str) -> dict:
    """Dimensions of a size."""
    layers, hidden, heads, embedding = sized("ALBERT", SIZES, name)
    return bert.dimensions(layers, hidden) | dict(num_heads=heads, embedding_size=embedding)


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """As BERT's, with ALBERT-base as the default.

    The `num_layers` steps of depth are divided among `num_groups` groups of parameters; a step
    applies the `inner_layers` layers of its group one after the other.
    """

    vocab_size: int = 30000
    embedding_size: int = 128
    activation: str = "gelu_tanh"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    num_groups: int = 1
    inner_layers: int = 1

    @property
    def projects(self) -> bool:
        """ALBERT maps its embeddings even where the widths are equal."""
        return True

    def __post_init__(self):
        super().__post_init__()
        if not 1 <= self.num_groups <= self.num_layers or self.inner_layers < 1:
            raise FirthError(
                f"model.num_groups={self.num_groups}, inner_layers={self.inner_layers}: expected "
                f"1 to num_layers={self.num_layers} groups of at least one layer"
            )


class Group(nn.Module):
    """The layers that one step of depth applies."""

    config: Config

    @nn.compact
    def __call__(self, x_BLD, bias, train: bool, attentions: bool, at_BP=None):
        """Return the new hidden states, and (all hidden states, all probabilities).

        With `at_BP` the last layer is as `layers.transformer.Block` has it.
        """
        inner = self.config.inner_layers
        layers = [Block(self.config, name=f"inner_{j}") for j in range(inner)]
        own = None if at_BP is None else [None] * (inner - 1) + [at_BP]
        x_BLD, *collected = in_turn(layers, x_BLD, bias, train, attentions, own)
        return x_BLD, tuple(collected)


class SharedStack(nn.Module):
    """`num_layers` steps through `num_groups` modules, unrolled, or scanned a group at a time."""

    config: Config

    @nn.compact
    def __call__(self, x_BLD, bias, *, train: bool, attentions: bool, at_BP=None):
        """Return as `layers.transformer.Stack`, with N = num_layers x inner_layers."""
        c = self.config
        module = rematerialised(c, Group)
        steps = [i * c.num_groups // c.num_layers for i in range(c.num_layers)]
        collected = []
        for g in range(c.num_groups):
            count, name = steps.count(g), f"group_{g}"
            if c.scan:
                scanned = nn.scan(
                    module,
                    variable_broadcast="params",
                    split_rngs={"params": False, "dropout": True},
                    in_axes=(nn.broadcast, nn.broadcast, nn.broadcast),
                    length=count,
                )
                x_BLD, out = scanned(c, name=name)(x_BLD, bias, train, attentions)
                collected.append(out)
                continue
            group = module(c, name=name)
            for _ in range(count):
                own_BP = at_BP if len(collected) == c.num_layers - 1 else None
                x_BLD, out = group(x_BLD, bias, train, attentions, own_BP)
                collected.append(jax.tree.map(lambda leaf: leaf[None], out))
        if at_BP is not None:
            return x_BLD, None, None

        def joined(parts):
            return jnp.concatenate([part.reshape(-1, *part.shape[2:]) for part in parts])

        hidden, probs = zip(*collected, strict=True)
        return x_BLD, joined(hidden), joined(probs) if attentions else None


class Body(bert.Body):
    """BERT's encoder over the shared layers."""

    config: Config
    stack_of: ClassVar[type[nn.Module]] = SharedStack
    last_layer_at: ClassVar[bool] = True


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = BERT
PUBLISHED = dataclasses.replace(
    bert.PUBLISHED,
    modules=(
        *(row for row in bert.encoder_modules("albert") if "{i}" not in row[0]),
        ("encoder/project", "albert.encoder.embedding_hidden_mapping_in", "dense"),
        *layer_modules(
            "albert.encoder.albert_layer_groups.{g}.albert_layers.{j}",
            ("attention/query", "attention.query", "dense"),
            ("attention/key", "attention.key", "dense"),
            ("attention/value", "attention.value", "dense"),
            ("attention/output", "attention.dense", "dense"),
            ("attention_norm", "attention.LayerNorm", "norm"),
            ("mlp_in", "ffn", "dense"),
            ("mlp_out", "ffn_output", "dense"),
            ("mlp_norm", "full_layer_layer_norm", "norm"),
            path="encoder/stack/group_{g}/inner_{j}",
        ),
        ("encoder/pooler", "albert.pooler", "dense"),
        ("mlm/dense", "predictions.dense", "dense"),
        ("mlm/norm", "predictions.LayerNorm", "norm"),
        ("mlm", "predictions", "bias"),
        ("sop/dense", "sop_classifier.classifier", "dense"),
        ("classifier/dense", "classifier", "dense"),
        ("choice/dense", "classifier", "dense"),
        ("answer/dense", "qa_outputs", "dense"),
    ),
    tied=(
        ("encoder/word", "predictions.decoder", "embed"),
        ("mlm", "predictions.decoder", "bias"),
    ),
    indices={"g": "num_groups", "j": "inner_layers"},
    prefix="albert.",
    buffers=("albert.embeddings.position_ids",),
    exclusive_heads=(("choice", "classifier", "AlbertForMultipleChoice"),),
    architectures={
        ("choice",): "AlbertForMultipleChoice",
        ("classifier",): "AlbertForSequenceClassification",
        ("answer",): "AlbertForQuestionAnswering",
        ("mlm", "sop"): "AlbertForPreTraining",
        ("mlm",): "AlbertForMaskedLM",
        (): "AlbertModel",
    },
    fields=bert.PUBLISHED.fields
    | {
        "embedding_size": "embedding_size",
        "num_groups": "num_hidden_groups",
        "inner_layers": "inner_group_num",
        "classifier_dropout": "classifier_dropout_prob",
    },
)
