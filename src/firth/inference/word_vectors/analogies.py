"""Analogies: `a` is to `b` as `c` is to which word? The one nearest to b - a + c (3CosAdd).

On vectors of length 1, without the three words of the question, as Mikolov et al. 2013 did. A file
of questions (questions-words.txt) has four words a line, and lines `: name` that begin sections.

Q questions, V words, D dimensions.
"""

from typing import NamedTuple

import numpy as np

from firth.errors import FirthError
from firth.inference.inputs import read_plain_lines
from firth.inference.vectors import SMALLEST
from firth.inference.word_vectors.model import WordModel

QUESTIONS = 256  # answered at a time
SYNTACTIC = "gram"  # how the names of sections on grammar begin


class Section(NamedTuple):
    """right of asked questions of a section; left_out have a word without vector."""

    name: str
    right: int
    asked: int
    left_out: int

    @property
    def accuracy(self) -> float:
        """The share of the asked ones; nan if none was asked."""
        return self.right / self.asked if self.asked else float("nan")


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors [..., D] of length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), SMALLEST)


def solve(model: WordModel, words: tuple[str, str, str], top: int) -> list[tuple[str, float]]:
    """The `top` answers to `a is to b as c is to ?`, [(word, cosine), ...].

    Raises FirthError, with the nearest spellings, for a word that has no vector.
    """
    rows = [model.find(word) for word in words]
    a, b, c = unit(model.vectors[rows])
    return model.neighbours((b - a + c)[None], [rows], top)[0]


def read_questions(path: str) -> list[tuple[str, list[tuple[str, ...]]]]:
    """[(section, [four words, ...]), ...] of a file; FirthError, naming the line, for others."""
    sections = []
    for name, line in read_plain_lines(path):
        words = tuple(line.split())
        if line.startswith(":"):
            sections.append((line[1:].strip(), []))
        elif len(words) == 4:
            if not sections:
                sections.append(("all", []))
            sections[-1][1].append(words)
        elif words:
            raise FirthError(f"{name}: {len(words)} words, expected four, or `: name` of a section")
    if not any(questions for _, questions in sections):
        raise FirthError(f"{path} has no questions; expected four words a line")
    return sections


def score(model: WordModel, sections, most_frequent: int = 0) -> list[Section]:
    """The Section of each, then those of "semantic", "syntactic" and "total".

    `most_frequent`: ask and answer with the first so many words alone (0: all). A word is looked up
    as it is written, then in lower case.
    """
    vectors_VD = unit(model.vectors[: most_frequent or None])
    found = [_score(model, vectors_VD, name, questions) for name, questions in sections]
    grammar = [section for section in found if section.name.startswith(SYNTACTIC)]
    meaning = [section for section in found if not section.name.startswith(SYNTACTIC)]
    sums = {"semantic": meaning, "syntactic": grammar, "total": found}
    return found + [
        Section(name, *(sum(column) for column in list(zip(*group, strict=True))[1:]))
        for name, group in sums.items()
        if group
    ]


def _score(model: WordModel, vectors_VD, name: str, questions) -> Section:
    rows_Q4 = np.array([[_row(model, word) for word in four] for four in questions]).reshape(-1, 4)
    known = ((rows_Q4 >= 0) & (rows_Q4 < len(vectors_VD))).all(1)
    rows_Q4, right = rows_Q4[known], 0
    for begin in range(0, len(rows_Q4), QUESTIONS):
        part = rows_Q4[begin : begin + QUESTIONS]
        a, b, c = (vectors_VD[part[:, column]] for column in range(3))
        scores_QV = (b - a + c) @ vectors_VD.T
        np.put_along_axis(scores_QV, part[:, :3], -np.inf, 1)
        right += int((scores_QV.argmax(1) == part[:, 3]).sum())
    return Section(name, right, len(rows_Q4), len(questions) - len(rows_Q4))


def _row(model: WordModel, word: str) -> int:
    return row if (row := model.row(word)) >= 0 else model.row(word.lower())
