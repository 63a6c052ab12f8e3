r"""Labelled trees in the Penn Treebank's brackets, one a line, as the Stanford treebank has them.

    (3 (2 It) (4 (4 (2 's) (4 great)) (2 .)))

Every node has a label, its sentiment from 0 to 4. A sentence is the leaves with spaces between; its
label is that of the root (Socher et al. 2013). The escapes of the Penn Treebank are undone.
"""

import re
from pathlib import Path

import numpy as np

from firth.data.tasks.tables import Table, text_lines
from firth.errors import FirthError

LABELS = ("0", "1", "2", "3", "4")
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_TOKEN = re.compile(r"[()]|[^\s()]+")


def read_trees(path: str | Path) -> Table:
    """The sentence and the label of each tree of a file (plain, .gz or .xz).

    Returns a `Table` with the columns `sentence` and `label`, a string from "0" to "4". Empty lines
    are skipped. Raises FirthError, naming file and line, for a line that is no tree.
    """
    sentences, labels, rows = [], [], []
    for line, text in text_lines(path):
        if not text.strip():
            continue
        label, words = _parse(text, f"{path}:{line}")
        sentences.append(" ".join(words))
        labels.append(label)
        rows.append(line)
    return Table(str(path), {"sentence": sentences, "label": labels}, np.array(rows, np.int64))


def _parse(text: str, at: str) -> tuple[str, list[str]]:
    """(the label of the root, the words) of a tree."""
    tokens, words, parts = _TOKEN.findall(text), [], []  # parts: of each open node, so far
    for place, token in enumerate(tokens):
        if place and tokens[place - 1] == "(":
            if token not in LABELS:
                raise _malformed(at, f"the label {token!r} is not one of 0 to 4")
            continue
        if token == "(":
            parts.append(0)
            continue
        if token == ")":
            if not parts or not parts.pop():
                raise _malformed(at, "a bracket closes no node with a word")
        else:
            words.append(_word(token))
        if parts:  # a word, or a node that has ended, is a part of the node around it
            parts[-1] += 1
        elif token != ")" or place < len(tokens) - 1:
            raise _malformed(at, "there is text beside the tree")
    if parts or not words:
        raise _malformed(at, "a bracket is not closed" if parts else "it has no words")
    return tokens[1], words


def _word(token: str) -> str:
    return _ESCAPES.get(token, token).replace("\\/", "/").replace("\\*", "*")


def _malformed(at: str, why: str) -> FirthError:
    return FirthError(f"{at}: not a labelled tree like (3 (2 It) (4 works)): {why}")
