"""Transformer-XL (Dai et al. 2019): a causal language model with relative positions and memory.

The same layers and encoder as XLNet's, with one stream and no segments; a token sees the left only.
"""

import dataclasses
from typing import ClassVar

from firth.models import xlnet
from firth.models.model import sized
from firth.models.published import Published
from firth.models.xlnet import Body
from firth.tokenizers.special_tokens import GPT

__all__ = ["Body", "Config", "size"]

# (layers, hidden size, heads, MLP width): the paper's three, and some for laptops.
SIZES = {
    "tiny": (2, 128, 2, 512),
    "mini": (4, 256, 4, 1024),
    "small": (4, 512, 8, 2048),
    "ptb": (16, 380, 10, 900),
    "enwik8": (12, 512, 8, 2048),
    "wt103": (16, 410, 10, 2100),
    "wt103_large": (18, 1024, 16, 4096),
}


def size(name: str) -> dict:
    """Dimensions of a size."""
    fields = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
    return dict(zip(fields, sized("Transformer-XL", SIZES, name), strict=True))


@dataclasses.dataclass(frozen=True)
class Config(xlnet.Config):
    """Dimensions and numerics; embeddings are scaled by the square root of their width."""

    causal: ClassVar[bool] = True
    segments: ClassVar[bool] = False
    scales_embeddings: ClassVar[bool] = True
    type_vocab_size: ClassVar[int] = 1

    vocab_size: int = 10000
    activation: str = "relu"
    norm_epsilon: float = 1e-5
    attention_dropout: float = 0.0
    untie_r: bool = False


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = GPT
# transformers has dropped this family. Only Firth's own directories and workdirs hold one.
PUBLISHED = Published()
