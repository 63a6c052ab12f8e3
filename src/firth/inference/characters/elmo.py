"""ELMo ready for use: words by their characters, each distinct word read once.

B rows, L length, W characters of a word, P width of one direction.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np

from firth.errors import FirthError
from firth.inference.encoder import Encoder
from firth.inference.execution.ahead import computed
from firth.models.elmo.words import check_characters, read, word_batches
from firth.models.model import bound
from firth.tokenizers.open_words import OpenWords
from firth.tokenizers.spelling import spell, unspell
from firth.weights.read import Saved

MOST = 1 << 18  # words whose vectors are kept


class ElmoEncoder(Encoder):
    """An `Encoder` whose tokens are the words of a text, cut at white space.

    Every text has vectors for its words alone. `tokens=` takes character ids int [B, L, W], as
    `firth.tokenizers.spelling.spell` makes them. The softmax, if the model has one, is computed
    only where `heads` names it.

    Attributes: those of `Encoder`; `tokenizer` numbers all words seen. `remembers`: keep vectors
    that the character CNN made of words, up to 262,144 of them; if False, every occurrence of a
    word is read anew, with the same result.
    """

    def __init__(self, saved: Saved, *, dtype: str | None = None, heads=True):
        super().__init__(saved, dtype=dtype, heads=() if isinstance(heads, bool) else heads)
        config = self.model.encoder.config
        check_characters(config, saved.source)
        self.tokenizer = OpenWords()
        self.remembers = True
        self._rows = np.full(1, -1, np.int64)  # the row of each word in _vectors, or -1
        self._vectors = np.zeros((0, config.width), np.float32)
        self._kept = 0

    @functools.cached_property
    def with_softmax(self) -> "ElmoEncoder":
        """The same model with its softmax over words."""
        return ElmoEncoder(self.saved, heads=("bilm",))

    def inputs(self, ids):
        """Vectors of words, float32 [B, L, P], or character ids [B, L, W] as they are read."""
        if ids.ndim == 3:
            return ids
        numbers, place = np.unique(ids, return_inverse=True)
        if not self.remembers:
            return self._spelled(numbers)[place.reshape(ids.shape)]
        grown = self.tokenizer.vocab_size - len(self._rows)
        self._rows = np.concatenate([self._rows, np.full(grown, -1)])
        new = numbers[self._rows[numbers] < 0]
        if self._kept + len(new) > MOST:
            self._rows[:], self._kept, new = -1, 0, numbers
        self._keep(new)
        return self._vectors[self._rows[numbers]][place.reshape(ids.shape)]

    def _spelled(self, numbers):
        """Character ids of words, int32 [words, W]; padding is no word."""
        words = [self.tokenizer.token(number) for number in numbers]
        ids, _ = spell(words, self.model.encoder.config.max_characters)
        ids[np.asarray(numbers) == self.tokenizer.pad_id] = 0
        return ids

    def _keep(self, numbers):
        """Read words and keep their vectors, those of like length together."""
        config = self.model.encoder.config
        if (size := self._kept + len(numbers)) > len(self._vectors):
            more = np.zeros((max(size, len(self._vectors)), config.width), np.float32)
            self._vectors = np.concatenate([self._vectors, more])
        program = self.program(("words",), lambda: bound(self.model, read))
        words = [self.tokenizer.token(number) for number in numbers]
        batches = ((chosen, (ids,)) for chosen, ids in word_batches(words, config))
        for chosen, found in computed(program, self.params, batches):
            rows = self._kept + np.arange(len(chosen))
            self._vectors[rows], self._rows[numbers[chosen]] = found[: len(chosen)], rows
            self._kept += len(chosen)

    def in_turn(self, batches: Iterable[Sequence[str]]) -> Iterator[list[np.ndarray]]:
        """Represent batches of texts, each row going on in the state of that row before.

        The released code runs so: the vectors of a text depend on the texts that came before it.
        Rows beyond those of the batches before begin with zeros.

        Yields for each batch the hidden states float32 [N + 1, words, D] of its texts.
        """
        memory = jax.tree.map(np.asarray, self.model.encoder.empty_memory(0))
        apply = self.program(("in turn",), lambda: self._go_on)
        for texts in batches:
            ids, _, mask = self.pad(self.tokenise(texts))
            more = max(len(ids) - len(next(iter(memory.values()))), 0)
            memory = {
                name: np.concatenate([x, np.zeros((more, *x.shape[1:]), x.dtype)])
                for name, x in memory.items()
            }
            before = {name: x[: len(ids)] for name, x in memory.items()}
            found, *after = apply(self.params, self.inputs(ids), mask, *before.values())
            for name, part in zip(before, after, strict=True):
                memory[name][: len(ids)] = part
            yield [np.asarray(found)[:, row, :size] for row, size in enumerate(mask.sum(1))]

    def _go_on(self, params, tokens, mask_BL, *memory):
        names = self.model.encoder.empty_memory(0)
        before = dict(zip(names, memory, strict=True))

        def encode(model, *batch):
            return model.encoder(*batch, memory=before)

        out = bound(self.model, encode)(params, tokens, None, mask_BL)
        return out.hidden.astype(np.float32), *(out.memory[name] for name in names)

    def _checked(self, tokens, segments, mask):
        """The user's character ids; FirthError if they do not fit the model."""
        ids, config = np.asarray(tokens), self.model.encoder.config
        if ids.ndim != 3 or not ids.size or not np.issubdtype(ids.dtype, np.integer):
            raise FirthError(
                f"tokens are {ids.dtype} {list(ids.shape)}; expected character ids, integers of "
                "shape [B, L, W], as firth.tokenizers.spelling.spell makes them"
            )
        if ids.min() < 0 or ids.max() >= config.characters:
            raise FirthError(
                f"character ids range from {ids.min()} to {ids.max()}, outside 0 .. "
                f"{config.characters - 1}, the rows of the character table"
            )
        mask = np.ones(ids.shape[:2], bool) if mask is None else np.asarray(mask).astype(bool)
        if mask.shape != ids.shape[:2] or (mask[:, 1:] > mask[:, :-1]).any():
            raise FirthError(
                f"mask is {list(mask.shape)}; expected {list(ids.shape[:2])}, with the words of "
                "a row before its padding"
            )
        return ids.astype(np.int32), np.zeros(mask.shape, np.int32), mask

    def _names(self, ids) -> list:
        return super()._names(ids) if ids.ndim == 1 else unspell(ids)
