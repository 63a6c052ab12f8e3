"""RoBERTa (Liu et al. 2019): BERT's encoder without segments, positions counted from padding's id.

The position table has pad_id + 1 rows before the first real token's; padding gets the last of them.
This is fairseq's convention; it explains the 514 published rows for 512 tokens.
"""

import dataclasses
from typing import ClassVar

from firth.errors import FirthError
from firth.models import bert
from firth.models.bert import Body, encoder_modules
from firth.models.model import sized

__all__ = ["Body", "Config", "size"]

SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512)} | {
    "base": (12, 768),
    "large": (24, 1024),
}


def size(name: str) -> dict:
    """Dimensions of a size: base and large are the paper's, the others train on a laptop."""
    return bert.dimensions(*sized("RoBERTa", SIZES, name))


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """As BERT's, with RoBERTa-base as the default; `pad_id` decides where positions begin."""

    truncated: ClassVar[bool] = False
    head_activation: ClassVar[str] = "gelu"
    classifier_hidden: ClassVar[str] = "tanh"

    vocab_size: int = 50265
    type_vocab_size: int = 1
    norm_epsilon: float = 1e-5
    pooler: bool = False
    pad_id: int = 1

    @property
    def first_position(self) -> int:
        """Row of the position table for the first token."""
        return self.pad_id + 1

    @property
    def padding_row(self) -> int:
        """Row of the word and position tables whose initial values are zeros, as in fairseq."""
        return self.pad_id


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = (("cls",), ("sep", "sep"), ("sep",))  # <s> A </s></s> B </s>


def _from_config(spec: dict, config: dict, where: str):
    """Set `pad_id`, and `max_length` without the rows of the position table before the first."""
    pad_id, rows = config.get("pad_token_id"), config.get("max_position_embeddings", 514)
    spec["pad_id"] = 1 if pad_id is None else pad_id
    if not isinstance(rows, int) or not isinstance(spec["pad_id"], int):
        raise FirthError(f"{where}: max_position_embeddings={rows!r} and pad_token_id={pad_id!r}")
    spec["max_length"] = rows - spec["pad_id"] - 1
    if spec["max_length"] < 1:
        raise FirthError(f"{where}: max_position_embeddings={rows} leaves no row for a token")


def _to_config(config: dict, spec: dict):
    """Set the padding id and the number of rows of the position table."""
    config["pad_token_id"] = spec["pad_id"]
    config["max_position_embeddings"] = spec["max_length"] + spec["pad_id"] + 1


PUBLISHED = dataclasses.replace(
    bert.PUBLISHED,
    modules=(
        *encoder_modules("roberta"),
        ("encoder/pooler", "roberta.pooler.dense", "dense"),
        ("mlm/dense", "lm_head.dense", "dense"),
        ("mlm/norm", "lm_head.layer_norm", "norm"),
        ("mlm", "lm_head", "bias"),
        ("classifier/hidden", "classifier.dense", "dense"),
        ("classifier/dense", "classifier.out_proj", "dense"),
        ("choice/hidden", "roberta.pooler.dense", "dense"),
        ("choice/dense", "classifier", "dense"),
        ("answer/dense", "qa_outputs", "dense"),
    ),
    tied=(
        ("encoder/word", "lm_head.decoder", "embed"),
        ("mlm", "lm_head.decoder", "bias"),
    ),
    prefix="roberta.",
    buffers=("roberta.embeddings.position_ids",),
    exclusive_heads=(("choice", "classifier", "RobertaForMultipleChoice"),),
    architectures={
        ("choice",): "RobertaForMultipleChoice",
        ("classifier",): "RobertaForSequenceClassification",
        ("answer",): "RobertaForQuestionAnswering",
        ("mlm",): "RobertaForMaskedLM",
        (): "RobertaModel",
    },
    fields={k: v for k, v in bert.PUBLISHED.fields.items() if k != "max_length"},
    from_config=_from_config,
    to_config=_to_config,
)
