"""Words without a vocabulary: every word gets an id when it is first seen."""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from firth.tokenizers.base import Encoding

_WORD = re.compile(r"\S+")


class OpenWords:
    """Cuts texts at white space and numbers their words, for models that read characters.

    Attributes: kind, "open"; vocab, the words in the order of their ids, of which the first, "", is
    no word but padding. A word keeps its id as long as the object lives.
    """

    kind = "open"
    pad_id = 0

    def __init__(self):
        self.vocab = [""]
        self._ids = {"": 0}

    @property
    def vocab_size(self) -> int:
        """The number of ids so far."""
        return len(self.vocab)

    def token(self, number: int) -> str:
        """The word with this id."""
        return self.vocab[number]

    def id(self, word: str) -> int:
        """The id of a word, new or not."""
        if word not in self._ids:
            self._ids[word] = len(self.vocab)
            self.vocab.append(word)
        return self._ids[word]

    def encode(self, texts: Sequence[str], special: bool = False) -> list[Encoding]:
        """Number the words of texts; there are no special tokens."""
        del special
        return [self._encoding(text) for text in texts]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The words of ids with spaces between them."""
        del skip_special
        return " ".join(self.vocab[number] for number in ids if number)

    def _encoding(self, text: str) -> Encoding:
        found = list(_WORD.finditer(text))
        ids = np.fromiter((self.id(match[0]) for match in found), np.int32, len(found))
        spans = np.array([match.span() for match in found], np.int32).reshape(-1, 2)
        return Encoding(ids, spans, np.arange(len(found), dtype=np.int32))
