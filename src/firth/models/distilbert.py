"""DistilBERT (Sanh et al. 2019): BERT's encoder without segments and pooler, half as deep."""

import dataclasses
from typing import ClassVar

from firth.models import bert
from firth.models.bert import Body
from firth.models.model import sized
from firth.models.published import Published, layer_modules
from firth.tokenizers.special_tokens import BERT

__all__ = ["Body", "Config", "size"]

SIZES = {"tiny": (1, 128), "mini": (2, 256), "small": (2, 512), "base": (6, 768)}


def size(name: str) -> dict:
    """Dimensions of a size: base is the paper's, the others are half of BERT's of that name."""
    return bert.dimensions(*sized("DistilBERT", SIZES, name))


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """As BERT's, with DistilBERT-base as the default."""

    truncated: ClassVar[bool] = False
    attention_output_dropout: ClassVar[bool] = False
    classifier_hidden: ClassVar[str] = "relu"
    classifier_input_dropout: ClassVar[bool] = False

    num_layers: int = 6
    type_vocab_size: int = 0
    pooler: bool = False


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = BERT
PUBLISHED = Published(
    modules=(
        ("encoder/word", "distilbert.embeddings.word_embeddings", "embed"),
        ("encoder/position", "distilbert.embeddings.position_embeddings", "embed"),
        ("encoder/norm", "distilbert.embeddings.LayerNorm", "norm"),
        *layer_modules(
            "distilbert.transformer.layer.{i}",
            ("attention/query", "attention.q_lin", "dense"),
            ("attention/key", "attention.k_lin", "dense"),
            ("attention/value", "attention.v_lin", "dense"),
            ("attention/output", "attention.out_lin", "dense"),
            ("attention_norm", "sa_layer_norm", "norm"),
            ("mlp_in", "ffn.lin1", "dense"),
            ("mlp_out", "ffn.lin2", "dense"),
            ("mlp_norm", "output_layer_norm", "norm"),
        ),
        ("mlm/dense", "vocab_transform", "dense"),
        ("mlm/norm", "vocab_layer_norm", "norm"),
        ("mlm", "vocab_projector", "bias"),
        ("classifier/hidden", "pre_classifier", "dense"),
        ("classifier/dense", "classifier", "dense"),
        ("choice/hidden", "pre_classifier", "dense"),
        ("choice/dense", "classifier", "dense"),
        ("answer/dense", "qa_outputs", "dense"),
    ),
    tied=(("encoder/word", "vocab_projector", "embed"),),
    prefix="distilbert.",
    buffers=("distilbert.embeddings.position_ids",),
    exclusive_heads=(("choice", "classifier", "DistilBertForMultipleChoice"),),
    architectures={
        ("choice",): "DistilBertForMultipleChoice",
        ("classifier",): "DistilBertForSequenceClassification",
        ("answer",): "DistilBertForQuestionAnswering",
        ("mlm",): "DistilBertForMaskedLM",
        (): "DistilBertModel",
    },
    fields={
        "vocab_size": "vocab_size",
        "num_layers": "n_layers",
        "hidden_size": "dim",
        "num_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_length": "max_position_embeddings",
        "activation": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "init_stddev": "initializer_range",
        "classifier_dropout": "seq_classif_dropout",
    },
    fixed={"sinusoidal_pos_embds": False, "pruned_heads": {}, "quantization_config": None},
)
