"""Schemes that mark entities by the tags of words, all read as BIO (Ramshaw and Marcus 1995).

IOB1   I-X; B-X only where an entity follows one of its own type (the files of CoNLL-2003).
BIO    B-X at the first word of every entity, I-X within (IOB2).
BIOES  and BILOU: also a last word (E, L) and an entity of one word (S, U).
"""

import re
from collections.abc import Sequence

import numpy as np

_TAG = re.compile(r"O|[BIELSU]-.+")
_BIO = {"E": "I", "L": "I", "S": "B", "U": "B"}


def marks_entities(tags: Sequence[str]) -> bool:
    """Whether a set of tags is one of entities: O and PREFIX-TYPE, and one such at least."""
    return all(map(_TAG.fullmatch, tags)) and any(tag != "O" for tag in tags)


def to_bio(tags: Sequence[str]) -> list[str]:
    """The tags of one sentence in BIO, whichever scheme they have.

    An I-X that follows no word of an X begins an entity, as conlleval counts it.
    """
    found, before = [], "O"
    for tag in tags:
        prefix, _, kind = tag.partition("-")
        if kind:
            prefix = _BIO.get(prefix, prefix)
            inside = prefix == "I" and before[2:] == kind
            tag = f"{'I' if inside else 'B'}-{kind}"
        found.append(tag)
        before = tag
    return found


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
