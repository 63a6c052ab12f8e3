"""Elman's network as a language model (Mikolov et al. 2010): one layer of sigmoid units.

The body of `firth.models.recurrent.lstm` with another cell. A word's embedding is added to the
product of the state before, without a bias: s(t) = sigmoid(U w(t) + W s(t-1)).
"""

import dataclasses
from typing import ClassVar

from firth.errors import FirthError
from firth.models.model import sized
from firth.models.published import Published
from firth.models.recurrent import lstm
from firth.models.recurrent.lstm import Body
from firth.tokenizers.special_tokens import GPT

__all__ = ["Body", "Config", "size"]

# hidden size: 200 is that of the rows of Mikolov et al. 2011
SIZES = {"tiny": (128,), "small": (200,), "medium": (500,)}


def size(name: str) -> dict:
    """Dimensions of a size."""
    return {"hidden_size": sized("Elman's network", SIZES, name)[0]}


@dataclasses.dataclass(frozen=True)
class Config(lstm.Config):
    """Dimensions and numerics; the defaults are those of rnnlm with 200 hidden units.

    Parameters begin normal with `init_stddev`. The original's are sums of three uniform numbers.
    `classes` > 0 divides the words into as many classes, whose sizes are `class_sizes`
    (`layers.class_softmax`); a run fills those in from the counts of its text.
    """

    cell: ClassVar[str] = "elman"
    lm_bias: ClassVar[bool] = False
    projects_input: ClassVar[bool] = False
    embedding_size: ClassVar[int] = 0
    tied_softmax: ClassVar[bool] = False
    capped_input_gate: ClassVar[bool] = False
    sums_layers: ClassVar[bool] = False
    dropout: ClassVar[float] = 0.0
    embedding_dropout: ClassVar[float] = 0.0
    output_dropout: ClassVar[float] = 0.0
    state_dropout: ClassVar[float] = 0.0
    init_range: ClassVar[float] = 0.0
    forget_bias: ClassVar[float] = 0.0

    num_layers: int = 1
    hidden_size: int = 200
    init_stddev: float = 0.1
    classes: int = 0
    class_sizes: tuple[int, ...] = ()

    def __post_init__(self):
        lstm.check(self)
        object.__setattr__(self, "class_sizes", tuple(self.class_sizes))  # JSON has lists
        if self.class_sizes and sum(self.class_sizes) != self.vocab_size:
            raise FirthError(
                f"model.class_sizes hold {sum(self.class_sizes):,} words, but model.vocab_size="
                f"{self.vocab_size}"
            )
        if self.num_layers != 1:
            raise FirthError(f"model.num_layers={self.num_layers}: Elman's network has 1 layer")


# ----------------------------------------------------------------- published form (Hugging Face)
SPECIAL_TOKENS = GPT
PUBLISHED = Published()  # as the LSTM's
