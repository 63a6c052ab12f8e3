"""Vectors of words from their characters: convolutions of several widths, then highway layers.

The character CNN of Kim et al. (2016, sections 2.2 and 2.3) and of ELMo (Peters et al. 2018). Their
options differ: `CharacterCNN` has both.

M words, W characters of a word, E width of a character's embedding, P places of a filter, w width
of a filter, F filters in all.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.affine import multiply
from firth.layers.transformer import ACTIVATIONS

CARRY_BIAS = -2.0  # so that a highway layer begins by passing on its input


def places_needed(longest: int, filters, most: int) -> int:
    """How many characters of words suffice when the longest has `longest`, padding left out.

    Behind the longest word the widest filter needs one place of padding alone, since all places of
    padding have the same value. So fewer characters than `most` give the same maxima.
    """
    return min(longest + max(width for width, _ in filters), most)


def check_filters(filters, where: str = "model.filters"):
    """Raise FirthError unless filters are pairs of a positive width and a positive number."""
    for pair in filters:
        if len(pair) != 2 or min(pair) < 1:
            raise FirthError(f"{where} has {list(pair)}: expected [width, number], both above 0")
    if not filters:
        raise FirthError(f"{where} is empty: expected at least one pair [width, number]")


def uniform(limit: float, centre: float = 0.0):
    """Initial values between `centre` - `limit` and `centre` + `limit`."""

    def init(key, shape, dtype=jnp.float32):
        return centre + jax.random.uniform(key, shape, dtype, -limit, limit)

    return init


class CharacterCNN(nn.Module):
    """Embeddings of characters, filters over them, the maximum of each, highway layers, a map.

    Attributes:
      characters: rows of the character table. Row 0 stands for no character: zeros, never trained.
      width: E.
      filters: (width, number) of the filters of each width; a filter sees whole windows alone.
      activation: after the maximum, "relu" or "tanh". Both increase, so that order has no effect.
      highways: number of highway layers (Srivastava et al. 2015), whose bias begins at -2.
      projection: width of a last affine map; 0: none.
      init_range: above 0, all parameters begin uniform in it (Kim et al.). At 0 they begin as in
        ELMo's released code: the table uniform in 1, filters uniform in .05 (with tanh, normal with
        the inverse root of their inputs), other kernels normal with the inverse root of F.
      dtype: of the products.
    """

    characters: int
    width: int
    filters: tuple[tuple[int, int], ...]
    activation: str = "relu"
    highways: int = 1
    projection: int = 0
    init_range: float = 0.0
    dtype: str = "float32"

    @nn.compact
    def __call__(self, characters_MW):
        """Return vectors [..., F or projection] of words [..., W], int ids below `characters`.

        Raises FirthError where words have fewer characters than the widest filter.
        """
        (*outer, W), E = characters_MW.shape, self.width
        if (widest := max(width for width, _ in self.filters)) > W:
            raise FirthError(
                f"words of {W} characters are too short for filters over {widest}: fill them up"
            )
        table = jnp.asarray(self.param("embedding", self._table_init, (self.characters, E)))
        x_MWE = table.at[0].set(0).astype(self.dtype)[characters_MW.reshape(-1, W)]
        found = [self._maxima(i, x_MWE) for i in range(len(self.filters))]
        x_MF = ACTIVATIONS[self.activation](jnp.concatenate(found, -1))
        dense = functools.partial(self._dense, x_MF.shape[-1])
        for i in range(self.highways):
            carry = dense(x_MF.shape[-1], f"highway_{i}_carry", CARRY_BIAS)
            new_MF = jax.nn.relu(dense(x_MF.shape[-1], f"highway_{i}_transform")(x_MF))
            share_MF = jax.nn.sigmoid(carry(x_MF))
            x_MF = share_MF * new_MF + (1 - share_MF) * x_MF
        if self.projection:
            x_MF = dense(self.projection, "projection")(x_MF)
        return x_MF.reshape(*outer, -1)

    def _maxima(self, i: int, x_MWE):
        """The maximum of each filter of the i-th width, with its bias [M, number]."""
        (M, W, E), (w, number) = x_MWE.shape, self.filters[i]
        P = W - w + 1
        init = uniform(0.05)
        if self.activation == "tanh":
            init = nn.initializers.normal(1 / math.sqrt(w * E))
        kernel = self.param(f"filters_{i}_kernel", self._drawn(init), (w, E, number))
        bias = self.param(f"filters_{i}_bias", self._drawn(nn.initializers.zeros), (number,))
        # A CPU's convolutions of one dimension are far slower than a product with all windows.
        windows = jnp.concatenate([x_MWE[:, k : k + P] for k in range(w)], -1)
        flat = kernel.astype(self.dtype).reshape(w * E, number)
        scores = multiply(windows.reshape(M * P, w * E), flat).reshape(M, P, number)
        return scores.max(1).astype(self.dtype) + bias.astype(self.dtype)

    def _dense(self, inputs: int, width: int, name: str, bias: float = 0.0):
        kernel = self._drawn(nn.initializers.normal(1 / math.sqrt(inputs)))
        limit = self.init_range
        first = uniform(limit, bias) if limit else nn.initializers.constant(bias)
        return nn.Dense(width, dtype=self.dtype, kernel_init=kernel, bias_init=first, name=name)

    def _drawn(self, init):
        return uniform(self.init_range) if self.init_range else init

    def _table_init(self, key, shape):
        return uniform(self.init_range or 1.0)(key, shape).at[0].set(0)
