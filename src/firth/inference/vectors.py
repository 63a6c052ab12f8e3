"""Vectors of texts: hidden states of chosen layers, one for each text or for each token.

Texts of similar length share a batch, batches have about as many tokens each, and each shape is
compiled once. B rows, L length, n layers, D hidden size.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.inference.batching import batch_tokens, repeat_first, token_batches
from firth.inference.execution.ahead import computed
from firth.inference.inputs import Text
from firth.models.model import bound, last_real

SORTED_BATCHES = {"none": 8, "cls": 64, "mean": 64}  # batch_size times this are sorted at a time
SMALLEST = 1e-12  # the least norm to divide by


class Pooling(NamedTuple):
    """What becomes of a text's hidden states.

    layers: their numbers, 0 (the embeddings) to N.
    pool: "cls" takes the first token, or in XLNet, Transformer-XL and GPT the last. "mean" takes
      the average over the text's tokens, specials included, as sentence-transformers does. "none"
      keeps every token.
    normalize: divide each vector by its Euclidean norm.
    mix: a weight for each of the layers, which become one: their sum, each times its share in the
      softmax of the weights, times `gamma` (the scalar mix of Peters et al. 2018, equation 1). ():
      the layers stay apart.
    """

    layers: tuple[int, ...]
    pool: str = "mean"
    normalize: bool = False
    mix: tuple[float, ...] = ()
    gamma: float = 1.0

    @property
    def count(self) -> int:
        """n, the number of layers of a vector."""
        return 1 if self.mix else len(self.layers)

    @property
    def shares(self) -> np.ndarray:
        """The factor of each layer in the mix, float32 [layers]."""
        weights = np.exp(np.array(self.mix) - max(self.mix))
        return (self.gamma * weights / weights.sum()).astype(np.float32)


class Vector(NamedTuple):
    """One text, its ids int32 [tokens], and its vector float32 [n, D], or [tokens, n, D]."""

    text: Text
    ids: np.ndarray
    values: np.ndarray


def choose_layers(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Layer numbers 0 .. N from numbers that may count from the end; FirthError for others."""
    for layer in layers:
        if not -num_layers - 1 <= layer <= num_layers:
            raise FirthError(
                f"there is no layer {layer}: this model has 0 (the embeddings) to {num_layers}, "
                f"or -{num_layers + 1} to -1 counted from the last"
            )
    return tuple(layer % (num_layers + 1) for layer in layers)


def vectors(
    encoder,
    lines: Iterable[tuple[str, Text]],
    pooling: Pooling,
    batch_size: int = 32,
    max_length: int | None = None,
) -> Iterator[Vector]:
    """The vector of each text in turn; the device computes ahead of the host.

    Args:
      encoder: a `firth.inference.encoder.Encoder`.
      lines: (name in errors, text or pair of texts).
      pooling: which vectors.
      batch_size: rows of 32 tokens (512 on accelerators) computed at a time: a batch has as many
        tokens, in more rows of shorter texts or in fewer of longer ones.
      max_length: cut texts to this many tokens. With None a text must fit the position table.

    Raises FirthError for an unknown way of pooling, a length that the model does not have and a
    text that is too long.
    """
    if pooling.pool not in SORTED_BATCHES:
        raise FirthError(f"pool={pooling.pool!r}: expected one of {', '.join(SORTED_BATCHES)}")
    if max_length is not None and not 3 <= max_length <= encoder.max_length:
        raise FirthError(
            f"max_length={max_length} is outside 3 .. {encoder.max_length}, the model's positions"
        )
    if pooling.mix and len(pooling.mix) != len(pooling.layers):
        raise FirthError(
            f"mix has {len(pooling.mix)} weights for {len(pooling.layers)} layers; expected as many"
        )
    return _vectors(encoder, iter(lines), pooling, batch_size, max_length)


def _vectors(encoder, lines, pooling, batch_size, max_length) -> Iterator[Vector]:
    select = encoder.program(pooling, lambda: _selector(encoder, pooling))
    every_token = pooling.pool == "none"
    while window := list(itertools.islice(lines, SORTED_BATCHES[pooling.pool] * batch_size)):
        names, texts = zip(*window, strict=True)
        tokenised = encoder.tokenise(
            texts,
            limit=max_length,
            truncate=max_length is not None,
            names=names,
            advice="shorten it, or set a maximum length",
        )
        sizes = [len(ids) for ids, _ in tokenised]

        def prepare(batch, tokenised=tokenised):
            ids, *rest = encoder.pad([tokenised[i] for i in batch.members], batch.length)
            return batch.members, repeat_first((encoder.inputs(ids), *rest), batch.rows)

        found = [None] * len(tokenised)
        batches = token_batches(sizes, batch_tokens(batch_size), encoder.max_length)
        for members, values in computed(select, encoder.params, map(prepare, batches)):
            for i, vector in zip(members, values, strict=False):
                found[i] = vector[: sizes[i]] if every_token else vector
        yield from map(Vector, texts, (ids for ids, _ in tokenised), found)


def _selector(encoder, pooling: Pooling):
    """(params, tokens, segments, mask) -> vectors float32 [B, n, D], or [B, L, n, D]."""
    read = bound(encoder.model, lambda model, *batch: model(*batch))

    def select(params, tokens_BL, segments_BL, mask_BL):
        out, _ = read(params, tokens_BL, segments_BL, mask_BL)
        hidden_BLnD = jnp.stack([out.hidden[i] for i in pooling.layers], 2).astype(jnp.float32)
        if pooling.mix:
            hidden_BLnD = jnp.einsum("BLnD,n->BLD", hidden_BLnD, pooling.shares)[:, :, None]
        if pooling.pool == "none":
            vectors = hidden_BLnD
        elif pooling.pool == "cls":
            at_end = encoder.model.encoder.config.classifier_pooling == "last"
            places_B = last_real(mask_BL) if at_end else jnp.zeros(len(mask_BL), int)
            vectors = hidden_BLnD[jnp.arange(len(mask_BL)), places_B]
        else:
            weights_BL = mask_BL / jnp.maximum(mask_BL.sum(1, keepdims=True), 1)
            vectors = jnp.einsum("BL,BLnD->BnD", weights_BL, hidden_BLnD)
        if not pooling.normalize:
            return vectors
        norms = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
        return vectors / jnp.maximum(norms, SMALLEST)

    return select
