"""Frozen contextual vectors of words: computed once by any encoder, and kept on disk.

A word's vector is that of its first piece, or with ELMo its own. Sentences are read one by one, or
in rows of their document. T words, B rows, L length, W words of a row, F width, K layers.
"""

import functools
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from firth.data.tagging.files import Sentences
from firth.data.tagging.rows import TagBuckets, in_pieces
from firth.data.tagging.windows import stride_of
from firth.errors import FirthError
from firth.models.model import bound, family, longest
from firth.models.tagger.mix import chosen_layers
from firth.run.tagging.whole_words import WholeWords
from firth.weights.read import Saved, read_model

log = logging.getLogger("firth")
LENGTH, ROWS = 256, 32  # tokens of a row at most, rows of a batch


class Features:
    """The vectors of the chosen layers of a frozen encoder.

    `source` is as for `weights.read.read_model`; `layers` and `context` are a tagger's
    `feature_layers` and `feature_context`. Attributes: size, the width of a vector; mix, how many
    vectors a word has of which a weighted sum is learnt, else 0; dtype, float16, or float32 of an
    ELMo. Raises FirthError for a model without tokenizer (but an ELMo reads characters), a layer
    that it does not have, and a tagger, which has no vectors of texts; for an ELMo as `WholeWords`.
    """

    def __init__(self, source: str, layers: str = "last", context: str = "sentence"):
        self.saved: Saved = read_model(source)
        self._stride = stride_of(context, field="model.feature_context")
        self.model = self.saved.model(())
        config, self._words, self.tokenizer = self.model.encoder.config, None, None
        if self.saved.spec["family"] == "elmo":
            self._words = WholeWords(self.model, source, documents=self._stride is not None)
        elif (tokenizer := self.saved.tokenizer()) is None:
            raise FirthError(f"model.features={source}: it holds no tokenizer, which words need")
        else:
            self.tokenizer = tokenizer
        self.dtype = np.dtype(self._words.dtype if self._words else np.float16)
        if self.saved.spec["family"] == "tagger":
            raise FirthError(f"model.features={source}: it is a tagger; give an encoder of texts")
        self._layers, summed = chosen_layers(layers, config.num_layers, source)
        self.mix = len(self._layers) if summed else 0
        self.size = config.hidden_size * (1 if summed else len(self._layers))
        self._params = {"encoder": self.saved.params["encoder"]}

    def __call__(self, sentences: Sentences) -> "Vectors":
        """The vectors of the words of sentences."""
        width = self.model.encoder.config.hidden_size
        shape = (len(sentences.words), width)
        arrays = {layer: np.empty(shape, self.dtype) for layer in self._layers}
        self._compute(sentences, arrays)
        return Vectors([arrays[layer] for layer in self._layers], self.mix)

    def _compute(self, sentences: Sentences, arrays: dict[int, np.ndarray]) -> None:
        """Fill {layer: [T, F]} by one pass of the encoder."""
        params = jax.device_put(self._params)
        if self._words:
            found = self._words(params, sentences, tuple(arrays), ROWS)
        else:
            found = self._pieces(params, sentences, tuple(arrays))
        for words, vectors in found:
            for array, own in zip(arrays.values(), vectors, strict=True):
                array[words] = own

    def _pieces(self, params, sentences: Sentences, layers: tuple[int, ...]) -> Iterator[tuple]:
        """(words of a row, float16 [words, F] of each layer), until every word has come."""
        length = min(longest(self.saved.spec), LENGTH)
        roles = family(self.saved.spec["family"]).SPECIAL_TOKENS
        rows = in_pieces(sentences, self.tokenizer, length, roles, self._stride)
        run = self._pass(layers)
        for batch in TagBuckets(rows, firsts=True).sequential(ROWS):
            given = (batch[name] for name in ("tokens", "segments", "mask", "first"))
            found = list(map(np.asarray, run(params, *given)))
            for row in np.flatnonzero(batch["weight"]):
                begin = rows.words[batch["example"][row]]
                own = batch["word_mask"][row]
                yield slice(begin, begin + own.sum()), [x_BWF[row][own] for x_BWF in found]

    @functools.cache  # noqa: B019 (the encoder lives as long)
    def _pass(self, layers: tuple[int, ...]):
        return jax.jit(bound(self.model, functools.partial(_vectors, layers=layers)))

    def kept(self, folder: Path, sentences: Sentences) -> "Vectors":
        """The same, read from files of `folder`, one a layer; those that lack are made first."""
        paths = {layer: folder / f"{self._digest(sentences, layer)}.npy" for layer in self._layers}
        missing = {layer: path for layer, path in paths.items() if not path.is_file()}
        if missing:
            log.info("computing %s vectors of %s", f"{len(sentences.words):,}", sentences.source)
            folder.mkdir(parents=True, exist_ok=True)
            self._write(sentences, missing)
        return Vectors([np.load(path, mmap_mode="r") for path in paths.values()], self.mix)

    def _write(self, sentences: Sentences, paths: dict[int, Path]) -> None:
        own = {n: path.with_name(f".{path.stem}.{os.getpid()}.npy") for n, path in paths.items()}
        shape = (len(sentences.words), self.model.encoder.config.hidden_size)
        try:
            arrays = {
                layer: np.lib.format.open_memmap(path, "w+", self.dtype, shape)
                for layer, path in own.items()
            }
            self._compute(sentences, arrays)
            for layer, array in arrays.items():
                array.flush()
                os.replace(own[layer], paths[layer])
        finally:
            for path in own.values():
                path.unlink(missing_ok=True)

    @functools.cached_property
    def _model_digest(self) -> bytes:
        pieces = "words" if self.tokenizer is None else self.tokenizer.digest
        digest = hashlib.sha256(f"{pieces} {self.saved.spec}".encode())
        for leaf in jax.tree.leaves(self._params):
            digest.update(np.ascontiguousarray(leaf))
        return digest.digest()

    def _digest(self, sentences: Sentences, layer: int) -> str:
        context = "" if self._stride is None else f" {sentences.documents.tolist()}"
        digest = hashlib.sha256(self._model_digest + f"{layer} {LENGTH}{context}".encode())
        digest.update("\n".join(sentences.words).encode("utf-8", "surrogatepass"))
        digest.update(sentences.offsets.tobytes())
        return digest.hexdigest()[:24]


class Vectors:
    """[T, F] of words, or [T, K, F] where `mix` is K, from an array [T, F'] of each layer.

    It is indexed by arrays of numbers of words.
    """

    def __init__(self, arrays: list[np.ndarray], mix: int = 0):
        self._arrays, self._mix = arrays, mix
        count, width = arrays[0].shape
        self.shape = (count, mix, width) if mix else (count, width * len(arrays))
        self.dtype = arrays[0].dtype

    def __getitem__(self, words: np.ndarray) -> np.ndarray:
        parts = [array[words] for array in self._arrays]
        return np.stack(parts, axis=1) if self._mix else np.concatenate(parts, axis=-1)


def _vectors(model, tokens_BL, segments_BL, mask_BL, first_BW, *, layers: tuple[int, ...]):
    """The hidden states float16 [B, W, F] of the first pieces of words, of each layer."""
    hidden = model.encoder(tokens_BL, segments_BL, mask_BL).hidden
    place_BW1 = first_BW[..., None]
    chosen = (jnp.take_along_axis(hidden[layer], place_BW1, axis=1) for layer in layers)
    return tuple(vectors_BWF.astype(jnp.float16) for vectors_BWF in chosen)
