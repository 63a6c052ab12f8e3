"""GPT-2 (Radford et al. 2019): GPT with the norms before attention and MLP, and one at the end."""

import dataclasses
from typing import ClassVar

from firth.models import bert, gpt
from firth.models.gpt import Body
from firth.models.model import sized
from firth.models.published import ACTIVATIONS

__all__ = ["Body", "Config", "size"]

# (layers, hidden size): base, medium, large and xl are the published ones (124M to 1.5B).
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (6, 384),
    "base": (12, 768),
    "medium": (24, 1024),
    "large": (36, 1280),
    "xl": (48, 1600),
}


def size(name: str) -> dict:
    """Dimensions of a size."""
    return bert.dimensions(*sized("GPT-2", SIZES, name))


@dataclasses.dataclass(frozen=True)
class Config(gpt.Config):
    """As GPT's, with GPT-2 base as the default."""

    pre_norm: ClassVar[bool] = True

    vocab_size: int = 50257
    max_length: int = 1024

    @property
    def residual_scale(self) -> float:
        """One over the root of the number of residual sums (section 2.3)."""
        return (2 * self.num_layers) ** -0.5


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = gpt.SPECIAL_TOKENS


def _from_config(spec: dict, config: dict, where: str):
    """Set the width of the MLP where config.json leaves it out: four times the hidden size."""
    if config.get("n_inner") is None:
        gpt.from_config(spec, config, where)


PUBLISHED = dataclasses.replace(
    gpt.PUBLISHED,
    modules=(
        ("encoder/word", "transformer.wte", "embed"),
        ("encoder/position", "transformer.wpe", "embed"),
        *gpt.LAYERS,
        ("encoder/final_norm", "transformer.ln_f", "norm"),
        ("classifier/dense", "score", "kernel"),
    ),
    architectures={
        ("classifier",): "GPT2ForSequenceClassification",
        ("lm",): "GPT2LMHeadModel",
        (): "GPT2Model",
    },
    activations=ACTIVATIONS,
    fields=gpt.PUBLISHED.fields
    | {"activation": "activation_function", "intermediate_size": "n_inner"},
    fixed=gpt.PUBLISHED.fixed
    | {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    from_config=_from_config,
    to_config=None,
)
