"""Word2vec and GloVe as a sequence of steps, each of which trains on one piece of the corpus.

V words, D dimensions.
"""

import dataclasses
import logging

import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.models.word_vectors import cooccurrence, glove, word2vec
from firth.models.word_vectors.vocabulary import huffman, kept_share, noise_steps
from firth.recipe import suggest
from firth.run.word_vectors.corpus import Corpus

log = logging.getLogger("firth")
CELLS = 1 << 20  # of GloVe's matrix, a step


@dataclasses.dataclass(frozen=True)
class Common:
    """The fields of the model section that both families have; see the recipes."""

    dim: int = 100
    window: int = 5
    min_count: int = 5
    max_words: int = 0

    def __post_init__(self):
        for name in ("dim", "window", "min_count", "negative"):
            if getattr(self, name, 1) < 1:
                raise FirthError(f"model.{name}={getattr(self, name)}: expected at least 1")
        for name in ("max_words", "sample"):
            if getattr(self, name, 0) < 0:
                raise FirthError(f"model.{name}={getattr(self, name)}: expected 0 or more")


@dataclasses.dataclass(frozen=True)
class Word2VecFields(Common):
    """Those of word2vec."""

    architecture: str = "skipgram"
    loss: str = "negative"
    negative: int = 5
    sample: float = 1e-3

    def __post_init__(self):
        super().__post_init__()
        known = {"architecture": word2vec.ARCHITECTURES, "loss": word2vec.LOSSES}
        for name, values in known.items():
            if (value := getattr(self, name)) not in values:
                raise FirthError(f"model.{name}={value!r}: expected one of {', '.join(values)}")


@dataclasses.dataclass(frozen=True)
class GloveFields(Common):
    """Those of GloVe."""

    x_max: float = 100.0
    alpha: float = 0.75
    legacy_rates: bool = False

    def __post_init__(self):
        super().__post_init__()
        if not self.x_max > 0:
            raise FirthError(f"model.x_max={self.x_max:g}: expected more than 0")


def fields_of(spec: dict) -> Common:
    """The fields of a model section; FirthError for one that the family does not have."""
    spec = dict(spec)
    kind = METHODS[spec.pop("family")].Fields
    known = [field.name for field in dataclasses.fields(kind)]
    if unknown := sorted(spec.keys() - set(known)):
        raise FirthError(
            f"model.{unknown[0]} is no field of word vectors{suggest(unknown[0], known)}"
        )
    return kind(**spec)


class Word2Vec:
    """Skip-gram or CBOW: `epochs` times through the pieces of the corpus in their order.

    Attributes: steps, how many there are; tokens, those of the corpus in a step.
    """

    Fields, Tables = Word2VecFields, word2vec.Tables

    def __init__(self, corpus: Corpus, fields: Word2VecFields, epochs: int, lr: float, seed: int):
        self.corpus, self.lr, self.seed, self.dim = corpus, lr, seed, fields.dim
        self.sizes = word2vec.sizes_of(
            fields.architecture, fields.loss, fields.window, fields.negative
        )
        counts = corpus.words.counts
        self.kept, self.noise = kept_share(counts, fields.sample), noise_steps(counts)
        self.codes = None
        if fields.loss == "hierarchical":
            self.codes = tuple(map(jnp.asarray, huffman(counts)))
        self.steps, self.tokens = epochs * corpus.pieces, len(corpus) / corpus.pieces

    def initial(self) -> word2vec.Tables:
        """The tables before the first step."""
        return word2vec.initial(len(self.corpus.words), self.dim, self.seed)

    def rate(self, step: int) -> float:
        """The learning rate before a step: linear to zero, never below the least."""
        return self.lr * max(1 - step / self.steps, word2vec.LEAST_RATE)

    def prepare(self, step: int) -> word2vec.Chunk:
        """The piece of a step; its draws depend on the seed and the step alone."""
        draw = np.random.default_rng([self.seed, step])
        words, units = self.corpus.piece(step % self.corpus.pieces)
        rates = (self.rate(step), self.rate(step + 1))
        return word2vec.make_chunk(words, units, self.kept, self.noise, self.sizes, rates, draw)

    def train(self, tables, chunk):
        """(tables, sum of the losses, what to divide it by) after a step."""
        return word2vec.train_chunk(tables, chunk, self.codes, self.sizes)

    def vectors(self, tables) -> np.ndarray:
        """float32 [V, D]."""
        return np.asarray(tables.inputs)


class Glove:
    """GloVe: counts the corpus, then goes `epochs` times through the cells in a random order."""

    Fields, Tables = GloveFields, glove.Tables

    def __init__(self, corpus: Corpus, fields: GloveFields, epochs: int, lr: float, seed: int):
        self.fields, self.lr, self.seed, self.size = fields, lr, seed, len(corpus.words)
        # All places at once, since pairs reach from piece to piece: 16 bytes a token.
        words = corpus.rows[np.asarray(corpus.tokens)]
        units = np.searchsorted(corpus.borders, np.arange(len(words)), "right")
        self.cells = cooccurrence.count(words, units, self.size, fields.window)
        count = len(self.cells.rows)
        log.info("counted %s pairs of words that stand near each other", f"{count:,}")
        self.pieces = -(-count // CELLS)
        self.capacity = -(-min(count, CELLS) // glove.BATCH) * glove.BATCH
        self.steps, self.tokens = epochs * self.pieces, len(corpus) / self.pieces
        self._epoch, self._order = -1, None

    def initial(self) -> glove.Tables:
        """The tables before the first step."""
        return glove.initial(self.size, self.fields.dim, self.seed)

    def rate(self, step: int) -> float:
        """AdaGrad's rate, the same at every step."""
        return self.lr

    def prepare(self, step: int) -> glove.Chunk:
        """The cells of a step; their order depends on the seed and the epoch alone."""
        epoch, piece = divmod(step, self.pieces)
        if epoch != self._epoch:
            draw = np.random.default_rng([self.seed, epoch])
            self._epoch, self._order = epoch, draw.permutation(len(self.cells.rows))
        chosen = self._order[piece * CELLS : (piece + 1) * CELLS]
        return glove.make_chunk(
            self.cells, chosen, self.capacity, self.fields.x_max, self.fields.alpha
        )

    def train(self, tables, chunk):
        """(tables, sum of the losses, what to divide it by) after a step."""
        tables, loss = glove.train_chunk(tables, chunk, self.lr, self.fields.legacy_rates)
        return tables, loss, np.count_nonzero(chunk.weights)

    def vectors(self, tables) -> np.ndarray:
        """float32 [V, D]."""
        return glove.vectors_of(tables)


METHODS = {"word2vec": Word2Vec, "glove": Glove}
