"""Which layers of a frozen encoder a tagger reads, and the learnt weighted sum of several.

The first six choices are those of Devlin et al. 2019 (section 5.3, table 7), whose sums leave the
embeddings out; `mix` has them too, as ELMo's. Sums are the scalar mix of Peters et al. 2018
(equation 1). B rows, L length, K layers, F width.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.errors import FirthError

CHOICES = (
    "last",
    "second_to_last",
    "embeddings",
    "sum_last_four",
    "concat_last_four",
    "sum_all",
    "mix",
)


class Chosen(NamedTuple):
    """layers: from 0, the embeddings. summed: whether a weighted sum is read, else one by one."""

    layers: tuple[int, ...]
    summed: bool


def check_name(name: str) -> None:
    """Raise FirthError unless it is one of CHOICES or the number of a layer."""
    if name not in CHOICES and not (name.isascii() and name.isdigit()):
        raise FirthError(
            f"model.feature_layers={name!r}: expected {', '.join(CHOICES)}, or the number of a "
            "layer (0: the embeddings)"
        )


def chosen_layers(name: str, depth: int, source: str) -> Chosen:
    """The layers that `name` means for an encoder of `depth` layers.

    Raises FirthError, naming `source`, for a layer that the encoder does not have.
    """
    check_name(name)
    four = tuple(range(depth - 3, depth + 1))
    found = {
        "last": Chosen((depth,), False),
        "second_to_last": Chosen((depth - 1,), False),
        "embeddings": Chosen((0,), False),
        "sum_last_four": Chosen(four, True),
        "concat_last_four": Chosen(four, False),
        "sum_all": Chosen(tuple(range(1, depth + 1)), True),
        "mix": Chosen(tuple(range(depth + 1)), True),
    }.get(name) or Chosen((int(name),), False)
    if max(found.layers) > depth:
        raise FirthError(
            f"model.feature_layers={name}: {source} has {depth} layers; expected 1 to {depth}, or "
            "0 for the embeddings"
        )
    if name.endswith("last_four") and depth < 4:
        raise FirthError(
            f"model.feature_layers={name}: {source} has {depth} layers; expected four or more"
        )
    return found


class ScalarMix(nn.Module):
    """A scale times the sum of vectors, weighted by a softmax of scores that begin at zero."""

    @nn.compact
    def __call__(self, x_BLKF):
        """[B, L, F] float32."""
        scores_K = self.param("scores", nn.initializers.zeros, (x_BLKF.shape[2],))
        scale = self.param("scale", nn.initializers.ones, (1,))
        weights_K = scale * jax.nn.softmax(scores_K)
        return jnp.einsum("k,blkf->blf", weights_K, x_BLKF.astype(jnp.float32))
