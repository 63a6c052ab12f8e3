"""Files of sentences whose words have tags, a word a line and an empty line after a sentence.

columns  columns with white space between, as of the CoNLL shared tasks. A line whose first column
         is -DOCSTART- begins a document and is no sentence (Tjong Kim Sang and De Meulder 2003).
tsv      the same with tabs between, so that a column may hold spaces.
conllu   Universal Dependencies (Nivre et al. 2020): ten columns, tabs between. Ranges of words
         (2-3) and empty nodes (2.1) are no words; `# newdoc` begins a document.
txt      a sentence a line, its words with spaces between; without tags. An empty line begins a
         document.

Each may be plain, .gz or .xz. S sentences, T words.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.data.tasks.tables import listed, shown_path, text_lines
from firth.errors import FirthError

OF_WORDS = ("columns", "conllu")  # which no file of whole texts has
FORMATS = (*OF_WORDS, "tsv", "txt")
OTHER = ("csv", "json", "jsonl")  # endings of files that would make no sense as columns
FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
DOCUMENT = "-DOCSTART-"
DEFAULTS = {"columns": ("0", "-1"), "tsv": ("0", "-1"), "conllu": ("form", "upos")}


@dataclass(frozen=True)
class Sentences:
    """Consecutive sentences of one file.

    Attributes:
      source: the file in messages.
      words: [T]. tags: [T] as the file spells them, or None.
      offsets: int64 [S + 1], where each sentence begins among the words; the last is T.
      documents: int64, the first sentence of each document; only 0 without borders.
      lines: int64 [T], the 1-based line of each word.
    """

    source: str
    words: list[str]
    tags: list[str] | None
    offsets: np.ndarray
    documents: np.ndarray
    lines: np.ndarray

    def __len__(self):
        return len(self.offsets) - 1

    def split(self, flat: Sequence) -> list[list]:
        """A list [T] as one list a sentence."""
        ends = self.offsets.tolist()
        return [list(flat[a:b]) for a, b in itertools.pairwise(ends)]


def format_of(path: str | Path) -> str:
    """The format of a file by its ending, before .gz or .xz, also if it is one of OTHER;
    "columns" for an unknown one.
    """
    path = Path(path)
    suffix = (path.with_suffix("") if path.suffix in (".gz", ".xz") else path).suffix
    return suffix[1:] if suffix[1:] in (*FORMATS, *OTHER) else "columns"


def read_sentences(
    path: str | Path,
    word: str = "",
    tag: str = "",
    *,
    format: str = "",
    tagged: bool = True,
    usual: str = "",
    options: tuple[str, str] = ("--text", "--label"),
) -> Sentences:
    """Read a file.

    Args:
      path: the file, or "-" for standard input.
      word, tag: a column: its number from 0, or from -1 backwards; a field of CoNLL-U; or a name in
        the first line of a tsv file. "" takes the first and the last column, form and upos.
      format: one of FORMATS; "" goes by the ending of the file, and takes standard input for
        "txt" unless it has tags.
      tagged: read tags; otherwise the tags are None, and the column of tags may be missing.
      usual: the column of words where `word` is "" and the file has more than one.
      options: how the user names the two columns, for errors.

    Raises FirthError, naming file and line, for a column that is missing, a line with another
    number of columns than the first, an empty word or tag, and a file without sentences.
    """
    shown = shown_path(path)
    kind = format or ("txt" if str(path) == "-" and not tagged else format_of(path))
    if kind in OTHER:
        raise FirthError(
            f"{shown}: a file of words with tags has another form; expected .txt (a sentence a "
            "line), .tsv, .conllu, or another ending for columns with white space between"
        )
    if kind not in FORMATS:
        raise FirthError(f"{shown}: format {kind!r} is unknown; expected {', '.join(FORMATS)}")
    if kind == "txt":
        if tagged:
            raise FirthError(
                f"{shown} is plain text, which has no tags; expected a word and its tag a line "
                "(.conllu, .tsv, or any other ending for columns)"
            )
        lines = _texts(path)
    else:
        given = (word or usual, tag)
        chosen = tuple(a or b for a, b in zip(given, DEFAULTS[kind], strict=True))
        lines = _words(path, kind, chosen if tagged else chosen[:1], options, shown, not word)
    words, tags, numbers, offsets, documents = [], [], [], [0], [0]
    for line, found in lines:
        if found is None or found == DOCUMENT:  # a sentence ends; perhaps a document begins
            if len(words) > offsets[-1]:
                offsets.append(len(words))
            if found == DOCUMENT and documents[-1] < len(offsets) - 1:
                documents.append(len(offsets) - 1)
            continue
        words.append(found[0])
        tags.append(found[-1])
        numbers.append(line)
    if len(words) > offsets[-1]:
        offsets.append(len(words))
    if documents[-1] == len(offsets) - 1 and len(documents) > 1:
        documents.pop()  # a border after the last sentence
    if not words:
        raise FirthError(f"{shown}: no sentences; expected a word a line, and empty lines between")
    return Sentences(
        shown,
        words,
        tags if tagged else None,
        np.array(offsets, np.int64),
        np.array(documents, np.int64),
        np.array(numbers, np.int64),
    )


def _texts(path) -> Iterator[tuple[int, tuple | None]]:
    """(line, (word,)) of each word of a text, (line, None) after each line, or (line, DOCUMENT)."""
    for line, text in text_lines(path, blank=True):
        yield from ((line, (word,)) for word in text.split())
        yield line, None if text.strip() else DOCUMENT


def _words(path, kind: str, chosen, options, shown: str, free: bool) -> Iterator[tuple]:
    """(line, (word, tag)), (line, None) after a sentence, (line, DOCUMENT) before a document."""
    places, count, first = None, 0, 0
    for line, text in text_lines(path, blank=True):
        if kind == "conllu" and text.startswith("#"):
            if text.removeprefix("#").strip().split(" ")[0] == "newdoc":
                yield line, DOCUMENT
            continue
        # Other white space, such as the space of "10 000" that does not break, is part of a word.
        fields = re.split("[ \t]+", text.strip(" \t")) if kind == "columns" else text.split("\t")
        if not text.strip():
            yield line, None
            continue
        at = f"{shown}:{line}"
        if places is None:
            count, first = 10 if kind == "conllu" else len(fields), line
            names = FIELDS if kind == "conllu" else fields if kind == "tsv" else ()
            if free and count == 1 and chosen[0] not in names:
                chosen = ("0", *chosen[1:])
            places = [
                _place(at, name, count, names, o) for name, o in zip(chosen, options, strict=False)
            ]
            if len(set(places)) < len(places):
                raise FirthError(
                    f"{at}: word and tag are the same column of {count}; choose others by "
                    f"{options[0]} and {options[1]}"
                )
            if kind == "tsv" and any(name in fields and not _is_number(name) for name in chosen):
                continue  # the line that names the columns
        if len(fields) != count:
            said = "CoNLL-U has" if kind == "conllu" else f"as in line {first}:"
            between = "tabs" if kind != "columns" else "white space"
            raise FirthError(
                f"{at}: {len(fields)} columns with {between} between, expected {count} "
                f"({said} {listed(names) if names and kind == 'conllu' else count})"
            )
        if kind == "conllu" and not fields[0].isdigit():
            if not fields[0].replace("-", "", 1).replace(".", "", 1).isdigit():
                raise FirthError(f"{at}: {fields[0]!r} is no number of a word, as 1, 2-3 or 2.1")
            continue
        found = tuple(fields[place] for place in places)
        if found[0] == DOCUMENT:
            yield line, DOCUMENT
            continue
        if not all(map(str.strip, found)):
            raise FirthError(f"{at}: an empty {'word' if not found[0].strip() else 'tag'}")
        yield line, found


def _is_number(name: str) -> bool:
    return name.removeprefix("-").isdigit()


def _place(at: str, name: str, count: int, names: Sequence[str], option: str) -> int:
    """The number of a column, from 0."""
    if name in names:
        return list(names).index(name)
    if not _is_number(name):
        there = f"there are: {listed(names)}" if names else "columns have numbers here, 0, 1 or -1"
        raise FirthError(f"{at}: no column {name!r} ({option}); {there}")
    if not -count <= int(name) < count:
        raise FirthError(
            f"{at}: no column {name} ({option}); the line has {count}: 0 to {count - 1}, or "
            f"-{count} to -1"
        )
    return int(name) % count
