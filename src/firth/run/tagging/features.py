"""Frozen contextual vectors of words: computed once by any encoder, and kept on disk. T words.

A word's vector is that of its first piece. Sentences are read one by one.
"""

import functools
import hashlib
import logging
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from firth.data.tagging.files import Sentences
from firth.data.tagging.rows import TagBuckets, in_pieces
from firth.errors import FirthError
from firth.models.model import bound, family, longest
from firth.weights.read import Saved, read_model

log = logging.getLogger("firth")
LENGTH, ROWS = 256, 32  # tokens of a row at most, rows of a batch


class Features:
    """The vectors of one layer of a frozen encoder.

    `source` is as for `weights.read.read_model`; layer 1 is the first, 0 stands for the last.
    Attributes: size, their width. Raises FirthError for a model without tokenizer, a layer that it
    does not have, and a tagger, which has no vectors of texts.
    """

    def __init__(self, source: str, layer: int = 0):
        self.saved: Saved = read_model(source)
        self.tokenizer, self.layer = self.saved.tokenizer(), layer
        self.model = self.saved.model(())
        config = self.model.encoder.config
        if self.tokenizer is None:
            raise FirthError(f"model.features={source}: it holds no tokenizer, which words need")
        if self.saved.spec["family"] == "tagger":
            raise FirthError(f"model.features={source}: it is a tagger; give an encoder of texts")
        if layer > config.num_layers:
            raise FirthError(
                f"model.feature_layer={layer}: {source} has {config.num_layers} layers; expected 1 "
                f"to {config.num_layers}, or 0 for the last"
            )
        self.size = config.hidden_size
        self._params = {"encoder": self.saved.params["encoder"]}
        self._pass = jax.jit(bound(self.model, functools.partial(_vectors, layer=layer or -1)))

    def __call__(self, sentences: Sentences) -> np.ndarray:
        """float16 [T, size] of the words of sentences."""
        length = min(longest(self.saved.spec), LENGTH)
        roles = family(self.saved.spec["family"]).SPECIAL_TOKENS
        rows = in_pieces(sentences, self.tokenizer, length, roles)
        found = np.empty((len(sentences.words), self.size), np.float16)
        params = jax.device_put(self._params)
        for batch in TagBuckets(rows, firsts=True).sequential(ROWS):
            arrays = (batch[name] for name in ("tokens", "segments", "mask", "first"))
            vectors_BWF = np.asarray(self._pass(params, *arrays))
            for row in np.flatnonzero(batch["weight"]):
                begin = rows.words[batch["example"][row]]
                own = vectors_BWF[row][batch["word_mask"][row]]
                found[begin : begin + len(own)] = own
        return found

    def kept(self, folder: Path, sentences: Sentences) -> np.ndarray:
        """The same, read from a file of `folder` if they are there, else written to it."""
        path = folder / f"{self._digest(sentences)}.npy"
        if not path.is_file():
            log.info("computing %s vectors of %s", f"{len(sentences.words):,}", sentences.source)
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{path.stem}.{os.getpid()}.npy"
            try:
                np.save(temporary, self(sentences))
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        return np.load(path, mmap_mode="r")

    @functools.cached_property
    def _model_digest(self) -> bytes:
        digest = hashlib.sha256(f"{self.tokenizer.digest} {self.saved.spec}".encode())
        for leaf in jax.tree.leaves(self._params):
            digest.update(np.ascontiguousarray(leaf))
        return digest.digest()

    def _digest(self, sentences: Sentences) -> str:
        digest = hashlib.sha256(self._model_digest + f"{self.layer}".encode())
        digest.update("\n".join(sentences.words).encode("utf-8", "surrogatepass"))
        digest.update(sentences.offsets.tobytes())
        return digest.hexdigest()[:24]


def _vectors(model, tokens_BL, segments_BL, mask_BL, first_BW, *, layer: int):
    """The hidden states float16 [B, W, F] of the first pieces of words."""
    hidden_BLF = model.encoder(tokens_BL, segments_BL, mask_BL).hidden[layer]
    return jnp.take_along_axis(hidden_BLF, first_BW[..., None], axis=1).astype(jnp.float16)
