"""ELMo's frozen vectors of whole words, each sentence read by itself (Peters et al. 2018).

B rows, L length, P width of one direction, D = 2 P, W characters of a word.
"""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from firth.data.tagging.files import Sentences
from firth.errors import FirthError
from firth.models.elmo.words import check_characters, read, word_batches
from firth.models.model import Model, bound

STEP = 8  # lengths of rows are multiples of this, because each is compiled once


class WholeWords:
    """The vectors of layers of an ELMo, for words that may hold spaces.

    The states are zeros before every sentence, so that a sentence's vectors depend on nothing but
    its words. (The released code goes on from batch to batch.) A sentence of any length is read
    whole, between the marks of its ends, which have no vectors. The character CNN reads each
    distinct word once. `source` names the model in errors: FirthError for one with characters of
    its own, and where `documents` asks for the context of a document.
    """

    dtype = np.float32  # within 1e-5 of the released code's

    def __init__(self, model: Model, source: str | Path, documents: bool = False):
        check_characters(model.encoder.config, source)
        if documents:
            raise FirthError(
                f"model.feature_context=document: {source} is an ELMo, which reads each sentence "
                "by itself; expected sentence"
            )
        self._model = model
        self._read = jax.jit(bound(model, read))

    def __call__(
        self, params: dict, sentences: Sentences, layers: Sequence[int], rows: int
    ) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """(numbers of words int64 [n], float32 [n, D] of each layer); `rows` sentences at a time.

        Sentences of like length come together, the shortest first; every word comes once.
        """
        config = self._model.encoder.config
        types = list(dict.fromkeys(sentences.words))
        numbers = dict(zip(types, range(len(types)), strict=True))
        number_T = np.array([numbers[word] for word in sentences.words])
        table = np.empty((len(types), config.width), np.float32)
        for chosen, ids_MW in word_batches(types, config):
            table[chosen] = self._read(params, ids_MW)[: len(chosen)]
        size_S = np.diff(sentences.offsets)
        order = np.argsort(size_S, kind="stable")
        run = self._pass(tuple(layers))
        for begin in range(0, len(order), rows):
            chosen = order[begin : begin + rows]
            mask_BL = np.zeros((rows, -(-int(size_S[chosen[-1]]) // STEP) * STEP), bool)
            mask_BL[: len(chosen)] = np.arange(mask_BL.shape[1]) < size_S[chosen, None]
            words = np.concatenate([np.arange(*sentences.offsets[s : s + 2]) for s in chosen])
            e_BLP = np.zeros((*mask_BL.shape, config.width), np.float32)
            e_BLP[mask_BL] = table[number_T[words]]
            yield words, [np.asarray(found)[mask_BL] for found in run(params, e_BLP, mask_BL)]

    @functools.cache  # noqa: B019 (the encoder lives as long)
    def _pass(self, layers: tuple[int, ...]):
        return jax.jit(bound(self._model, functools.partial(_vectors, layers=layers)))


def _vectors(model, e_BLP, mask_BL, *, layers: tuple[int, ...]):
    """The hidden states float32 [B, L, D] of each layer."""
    hidden = model.encoder(e_BLP, mask_BL=mask_BL).hidden
    return tuple(hidden[layer].astype(jnp.float32) for layer in layers)
