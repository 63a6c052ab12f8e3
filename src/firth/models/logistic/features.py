"""Features of texts: n-grams, gappy bigrams, capitals and n-grams of characters.

A feature is a string, its group before a colon; see `Features.of`. N texts, F features.
"""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.sparse import csr_array

from firth.errors import FirthError

# A word with its apostrophes, or a single other character.
PATTERN = r"\w+(?:['\u2019]\w+)*|[^\w\s]"
WEIGHTINGS = ("counts", "binary", "tfidf")
SIDES = ("a ", "b ", "both ")  # before the features of a pair


@dataclasses.dataclass(frozen=True)
class Features:
    """Which features a text has.

    order: words of the longest n-grams; 0 for none.
    gap: the longest distance between the two words of a gappy bigram; 0 for none. Words side by
      side, at distance 1, are a bigram.
    capitals: the shape of words with capitals, and how many words have each.
    characters, characters_from: the longest and the shortest n-grams of characters; 0 for none.
    pattern: a regular expression; what it finds in a text are the words.
    lower: whether n-grams are of the text in lower case.

    Raises FirthError for a value out of range, and for settings without any feature.
    """

    order: int = 2
    gap: int = 0
    capitals: bool = False
    characters: int = 0
    characters_from: int = 2
    pattern: str = PATTERN
    lower: bool = True

    def __post_init__(self):
        for name in ("order", "gap", "characters"):
            if (value := getattr(self, name)) < 0:
                raise FirthError(f"model.{name}={value}: expected 0 for none, or more")
        if self.gap == 1:
            raise FirthError(
                "model.gap=1: two words side by side are a bigram (model.order=2); give a distance "
                "of 2 or more, or 0 for none"
            )
        if self.characters and not 1 <= self.characters_from <= self.characters:
            raise FirthError(
                f"model.characters_from={self.characters_from} is outside 1 .. {self.characters} "
                "(model.characters)"
            )
        if not (self.order or self.gap or self.capitals or self.characters):
            raise FirthError(
                "the model has no features; set model.order, model.gap, model.capitals or "
                "model.characters"
            )
        try:
            found = re.compile(self.pattern)
        except re.error as error:
            raise FirthError(
                f"model.pattern={self.pattern!r} is no regular expression: {error}"
            ) from None
        if found.groups:
            raise FirthError(
                f"model.pattern={self.pattern!r} has a group; write (?:...) for (...), so that the "
                "whole match is the word"
            )

    def of(self, text: str) -> Counter:
        """How often a text has each feature.

            word:not good    words side by side
            gap:not … good   two words with others between them, in their order
            capitals:INITIAL great, capitals:ALL great, capitals:MIXED great
                             the word has one capital, at its beginning; nothing but capitals, two
                             or more; others
            capitals:ALL     a word of that shape, whatever it is
            character:ood    characters side by side; white space counts as one space

        Words are joined by a space.
        """
        cased = re.findall(self.pattern, text)
        lowered = text.lower() if self.lower else text
        words = re.findall(self.pattern, lowered)
        found = Counter()
        for n in range(1, self.order + 1):
            found.update("word:" + " ".join(words[i : i + n]) for i in range(len(words) - n + 1))
        for distance in range(2, self.gap + 1):
            pairs = zip(words, words[distance:], strict=False)
            found.update(f"gap:{one} … {other}" for one, other in pairs)
        if self.capitals:
            shapes = [(shape, word.lower()) for word in cased if (shape := shape_of(word))]
            found.update(f"capitals:{shape} {word}" for shape, word in shapes)
            found.update(f"capitals:{shape}" for shape, _ in shapes)
        if self.characters:
            flat = " ".join(lowered.split())
            for n in range(self.characters_from, self.characters + 1):
                found.update(f"character:{flat[i : i + n]}" for i in range(len(flat) - n + 1))
        return found

    def of_texts(self, texts: Sequence[str]) -> Counter:
        """The features of one text, or of the two of a pair.

        Those of a pair begin with "a " or "b ", and with "both " where the two share them: then as
        often as the text that has them less often.
        """
        if len(texts) == 1:
            return self.of(texts[0])
        a, b = map(self.of, texts)
        found = Counter()
        for side, counts in zip(SIDES, (a, b, a & b), strict=True):
            found.update({side + name: count for name, count in counts.items()})
        return found


def shape_of(word: str) -> str:
    """INITIAL, ALL or MIXED of a word with capitals; "" of one without."""
    upper = sum(map(str.isupper, word))
    if not upper:
        return ""
    if upper == 1:
        return "INITIAL" if word[0].isupper() else "MIXED"
    return "MIXED" if any(map(str.islower, word)) else "ALL"


def vocabulary(counted: Iterable[Counter], least: int) -> list[str]:
    """The features that at least `least` texts have, sorted."""
    texts = Counter(itertools.chain.from_iterable(counted))
    return sorted(name for name, number in texts.items() if number >= least)


def matrix(counted: Sequence[Counter], columns: dict[str, int]) -> csr_array:
    """Float64 [N, F]: how often each text has each feature; others do not count."""
    values, places, ends = [], [], [0]
    for counts in counted:
        known = sorted((columns[name], n) for name, n in counts.items() if name in columns)
        places += [place for place, _ in known]
        values += [number for _, number in known]
        ends.append(len(places))
    shape = (len(ends) - 1, len(columns))
    return csr_array((np.array(values, float), np.array(places, np.int32), ends), shape)


def idf_of(counts_NF: csr_array) -> np.ndarray:
    """Float64 [F]: ln((1 + N) / (1 + texts with the feature)) + 1."""
    texts_F = np.bincount(counts_NF.indices, minlength=counts_NF.shape[1])
    return np.log((1 + counts_NF.shape[0]) / (1 + texts_F)) + 1


def weighted(counts_NF: csr_array, weighting: str, idf_F: np.ndarray | None = None) -> csr_array:
    """The values of the features, float64 [N, F].

    "counts" as they are; "binary", 1 where there is any; "tfidf", counts times `idf_F` [F], and
    each text divided by its Euclidean norm.
    """
    found = counts_NF.copy()
    if weighting == "binary":
        found.data[:] = 1
    if weighting == "tfidf":
        found.data *= idf_F[found.indices]
        norms_N = np.sqrt(found.multiply(found).sum(1))
        found.data /= np.repeat(np.where(norms_N > 0, norms_N, 1), np.diff(found.indptr))
    return found
