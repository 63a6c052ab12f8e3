"""Word vectors with their words: nearest words, and texts as the mean of their words' vectors.

V words, D dimensions, N queries.
"""

import difflib
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from firth.errors import FirthError
from firth.inference.encoder import load
from firth.inference.inputs import Text
from firth.inference.search import nearest
from firth.inference.vectors import SMALLEST, Pooling, Vector
from firth.models.word_vectors import files, formats
from firth.storage.places import instead
from firth.tokenizers.load import load_tokenizer
from firth.weights.word_vectors.exchange import with_tokenizer

log = logging.getLogger("firth")
SPELLINGS = 50_000  # of the most frequent words are compared with one that is not there
TEXTS = 1024  # tokenised at a time


def load_any(source, **options):
    """A `WordModel` if the source holds word vectors, else `firth.load` with its options."""
    if files.is_word_vectors(source) or formats.is_file_name(source):
        if options.get("dtype"):
            raise FirthError("--dtype: word vectors are not computed, so it changes nothing")
        return WordModel(source)
    return load(source, **options)


class WordModel:
    """The word vectors of a workdir, a folder, or a file (.vec, .txt, .bin).

    Attributes: words, the V words, most frequent first where the file knows; vectors, float32
    [V, D]; tokenizer; saved, with `source` and the `spec` of one layer. Raises FirthError for a
    place without word vectors, and what `files.load` and `formats.read` raise.
    """

    def __init__(self, source):
        source = Path(source)
        if formats.is_file_name(source):
            self.tokenizer, found = with_tokenizer(*formats.read(source))
        elif files.is_word_vectors(source):
            found, _ = files.load(source)
            self.tokenizer = load_tokenizer(source / "tokenizer")
            if found.ids.max() >= self.tokenizer.vocab_size:
                raise FirthError(f"{source}/tokenizer is not that of the word vectors beside it")
        else:
            raise FirthError(
                f"{source} holds no word vectors{instead(source)}; expected the workdir of "
                f"word2vec.py or glove.py, or a file that ends in {', '.join(formats.ENDINGS)}"
            )
        self.words = [self.tokenizer.token(number) for number in found.ids]
        self.vectors = found.vectors
        self.rows = np.full(self.tokenizer.vocab_size, -1, np.int32)
        self.rows[found.ids] = np.arange(len(found.ids))
        spec = {"family": "word vectors", "num_layers": 0, "hidden_size": self.vectors.shape[1]}
        self.saved = SimpleNamespace(source=source, spec=spec)

    def row(self, word: str) -> int:
        """The number of a word, as it is written or as the tokenizer writes it, else -1."""
        number = self.tokenizer.id(word)
        if number is None or self.rows[number] < 0:
            ids, _ = self.tokenizer.encode_flat([word])
            number = ids[0] if len(ids) == 1 else None
        return -1 if number is None else int(self.rows[number])

    def find(self, word: str) -> int:
        """The number of a word; FirthError, with the nearest spellings, for one without vector."""
        if (row := self.row(word)) >= 0:
            return row
        near = difflib.get_close_matches(word, self.words[:SPELLINGS], n=3)
        raise FirthError(
            f"{word!r} is none of the {len(self.words):,} words that have a vector"
            + (f"; near it are {', '.join(near)}" if near else "")
        )

    def neighbours(self, queries_ND, without_N: Sequence[Sequence[int]], top: int):
        """[(word, cosine), ...] of the words nearest to each vector, without those of some rows."""
        most = max(map(len, without_N), default=0)
        return [
            [(self.words[h.row], h.similarity) for h in hits if h.row not in without][:top]
            for hits, without in zip(
                nearest(self.vectors, queries_ND, top + most), without_N, strict=True
            )
        ]

    def encode(self, texts: Sequence[Text], *, layer: int = -1, pool: str = "mean", **_):
        """float32 [N, D]: the means of the vectors of the texts' words."""
        lines = ((f"text {number}", text) for number, text in enumerate(texts, 1))
        return np.stack([v.values[0] for v in self.texts(lines, Pooling((0,), pool))])

    def texts(
        self, lines: Iterable[tuple[str, Text]], pooling: Pooling, max_length: int | None = None
    ) -> Iterator[Vector]:
        """The vector of each text, values float32 [1, D], or with pool "none" [words, 1, D].

        Words without a vector are left out; a text without any other has zeros. `lines` are (name,
        text or pair). `max_length` cuts texts to so many tokens. Raises FirthError for pool "cls".
        """
        if pooling.pool not in ("mean", "none"):
            raise FirthError(
                f"pool={pooling.pool!r}: word vectors have no token that stands for a text; take "
                "mean or none"
            )
        return self._texts(iter(lines), pooling, max_length)

    def _texts(self, lines, pooling, max_length):
        empty = 0
        while window := list(itertools.islice(lines, TEXTS)):
            texts = [text for _, text in window]
            joined = [text if isinstance(text, str) else " ".join(text) for text in texts]
            flat, lengths = self.tokenizer.encode_flat(joined)
            for text, ids in zip(texts, np.split(flat, np.cumsum(lengths)[:-1]), strict=True):
                ids = ids[:max_length]
                ids = ids[self.rows[ids] >= 0]
                found = self.vectors[self.rows[ids]][:, None]
                empty += not len(ids)
                if pooling.pool == "mean":
                    found = found.sum(0) / max(len(ids), 1)
                if pooling.normalize:
                    norms = np.linalg.norm(found, axis=-1, keepdims=True)
                    found = found / np.maximum(norms, SMALLEST)
                yield Vector(text, ids, found)
        if empty:
            log.info("texts without a word that has a vector: %d; theirs are zero or empty", empty)
