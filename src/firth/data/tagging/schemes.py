"""Schemes that mark entities by the tags of words, all read as BIO (Ramshaw and Marcus 1995).

IOB1   I-X; B-X only where an entity follows one of its own type (the files of CoNLL-2003).
BIO    B-X at the first word of every entity, I-X within (IOB2).
BIOES  and BILOU: also a last word (E, L) and an entity of one word (S, U).
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

_TAG = re.compile(r"O|[BIELSU]-.+")
_BIO = {"E": "I", "L": "I", "S": "B", "U": "B"}
_LAST = tuple(_BIO)  # prefixes of an entity's last word


def marks_entities(tags: Sequence[str]) -> bool:
    """Whether a set of tags is one of entities: O and PREFIX-TYPE, and one such at least."""
    return all(map(_TAG.fullmatch, tags)) and any(tag != "O" for tag in tags)


def misspelt(tags: Sequence[str]) -> int | None:
    """The place of the first tag that is none of an entity's, among tags that nearly all are.

    That is, at most one in a hundred is not, and more of them mark entities; None otherwise.
    """
    odd = [n for n, tag in enumerate(tags) if not _TAG.fullmatch(tag)]
    inside = len(tags) - len(odd) - tags.count("O")
    return odd[0] if odd and len(odd) <= 0.01 * len(tags) and len(odd) < inside else None


def to_bio(tags: Sequence[str]) -> list[str]:
    """The tags of one sentence in BIO, whichever scheme they have.

    An I-X that follows no word of an X begins an entity, and so does one after an entity's last
    word, as conlleval counts them.
    """
    found, unfinished = [], ""  # the type of an entity that may go on
    for tag in tags:
        prefix, _, kind = tag.partition("-")
        if kind:
            inside = _BIO.get(prefix, prefix) == "I" and unfinished == kind
            tag = f"{'I' if inside else 'B'}-{kind}"
        found.append(tag)
        unfinished = "" if prefix in _LAST else kind
    return found


class Misplaced(NamedTuple):
    """The first tag of a file that its scheme does not allow.

    word: its number among all words. before: the tag of the word before it, "O" at the beginning of
    a sentence. tag: "" where it is the sentence's end. scheme: which. count: how many there are.
    """

    word: int
    before: str
    tag: str
    scheme: str
    count: int


def misplaced(sentences: Iterable[Sequence[str]]) -> Misplaced | None:
    """What is wrong with the tags of entities of a file's sentences; None if nothing is.

    Their scheme is BIOES if a tag has one of its prefixes; else BIO or IOB1, the one that fewer
    tags break.
    """
    sentences = list(sentences)
    wide = any(tag[0] in "ELSU" for tags in sentences for tag in tags)
    wrong, number = {"BIOES": []} if wide else {"BIO": [], "IOB1": []}, 0
    for tags in sentences:
        before = "O"
        for tag in (*tags, ""):
            same = before[2:] == tag[2:]
            if wide:
                goes_on = tag[:1] in ("I", "E", "L")
                broken = {"BIOES": goes_on != (before[0] in "BI") or (goes_on and not same)}
            else:
                broken = {"BIO": tag[:1] == "I" and not same, "IOB1": tag[:1] == "B" and not same}
            for scheme, breaks in broken.items():
                if breaks:
                    wrong[scheme].append((number - (not tag), before, tag))
            number, before = number + bool(tag), tag
    scheme, places = min(wrong.items(), key=lambda item: len(item[1]))
    return Misplaced(*places[0], scheme, len(places)) if places else None


def spans(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """(begin, end, type) of the entities of one sentence: words begin to end - 1."""
    found = []
    for i, tag in enumerate(to_bio(tags)):
        if tag.startswith("B-"):
            found.append((i, i + 1, tag[2:]))
        elif tag.startswith("I-"):
            begin, _, kind = found.pop()
            found.append((begin, i + 1, kind))
    return found


def allowed(labels: Sequence[str]) -> np.ndarray:
    """Bool [C + 1, C]: whether BIO lets a tag (column) follow another (row; the last: the start).

    I-X follows B-X and I-X alone. All is allowed where the tags mark no entities.
    """
    size = len(labels)
    table = np.ones((size + 1, size), bool)
    if marks_entities(labels):
        for j, tag in enumerate(labels):
            if tag.startswith("I-"):
                table[:, j] = [before[2:] == tag[2:] for before in (*labels, "O")]
    return table
