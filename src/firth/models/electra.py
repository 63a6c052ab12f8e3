"""ELECTRA (Clark et al. 2020): BERT's encoder with embeddings of their own size and no pooler.

The discriminator detects replaced tokens; the generator is the same encoder, narrower.
`objectives.rtd` trains the two together.
"""

import dataclasses
from typing import ClassVar

from firth.models import bert
from firth.models.bert import Body, encoder_modules
from firth.models.model import sized
from firth.tokenizers.special_tokens import BERT

__all__ = ["Body", "Config", "size"]

# (layers, hidden size, embedding size); small, base and large are the paper's (table 6).
SIZES = {
    "tiny": (2, 128, 64),
    "mini": (4, 256, 128),
    "small": (12, 256, 128),
    "base": (12, 768, 768),
    "large": (24, 1024, 1024),
}


def size(name: str) -> dict:
    """Dimensions of a size of the discriminator."""
    *body, embedding = sized("ELECTRA", SIZES, name)
    return bert.dimensions(*body) | dict(embedding_size=embedding)


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """As BERT's, with ELECTRA-small as the default."""

    glorot_edges: ClassVar[bool] = True
    head_activation: ClassVar[str] = "gelu"
    classifier_hidden: ClassVar[str] = "gelu"

    hidden_size: int = 256
    num_heads: int = 4
    intermediate_size: int = 1024
    embedding_size: int = 128
    pooler: bool = False


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = BERT
PUBLISHED = dataclasses.replace(
    bert.PUBLISHED,
    modules=(
        *encoder_modules("electra"),
        ("encoder/project", "electra.embeddings_project", "dense"),
        ("rtd/hidden", "discriminator_predictions.dense", "dense"),
        ("rtd/dense", "discriminator_predictions.dense_prediction", "dense"),
        ("mlm/dense", "generator_predictions.dense", "dense"),
        ("mlm/norm", "generator_predictions.LayerNorm", "norm"),
        ("mlm", "generator_lm_head", "bias"),
        ("classifier/hidden", "classifier.dense", "dense"),
        ("classifier/dense", "classifier.out_proj", "dense"),
        ("choice/hidden", "sequence_summary.summary", "dense"),
        ("choice/dense", "classifier", "dense"),
        ("answer/dense", "qa_outputs", "dense"),
    ),
    tied=(("encoder/word", "generator_lm_head", "embed"),),
    prefix="electra.",
    buffers=("electra.embeddings.position_ids",),
    exclusive_heads=(("choice", "classifier", "ElectraForMultipleChoice"),),
    architectures={
        ("choice",): "ElectraForMultipleChoice",
        ("classifier",): "ElectraForSequenceClassification",
        ("answer",): "ElectraForQuestionAnswering",
        ("rtd",): "ElectraForPreTraining",
        ("mlm",): "ElectraForMaskedLM",
        (): "ElectraModel",
    },
    fields=bert.PUBLISHED.fields | {"embedding_size": "embedding_size"},
    fixed=bert.PUBLISHED.fixed
    | {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
)
