"""Texts one row after another, in memory independent of their number: TXT, CSV, TSV and JSONL.

A text file has a text a line, a tab before a second text. The others have named columns. "-" is
standard input.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from firth.data.tasks.columns import label_column, text_columns
from firth.data.tasks.tables import (
    checked_text,
    csv_records,
    json_records,
    listed,
    present,
    ragged,
    shown_path,
    text_lines,
    tsv_records,
)
from firth.errors import FirthError

FORMATS = ("txt", "csv", "tsv", "jsonl")
_SUFFIXES = {"": "txt", "text": "txt", "ndjson": "jsonl"} | {name: name for name in FORMATS}
_TEXTS = ("text", "text_pair")  # the columns of a text file


class Row(NamedTuple):
    """One row: where it is ("test.csv:3"), all its columns, and its text or pair of texts.

    Of a question with choices, the text is (context, the texts beside it).
    """

    at: str
    fields: dict
    text: str | tuple


class Rows:
    """The rows of a file, as often as one iterates, or of standard input or a pipe, once.

    Attributes:
      name: the file in messages.
      format: one of FORMATS.
      columns: the names of the first row's columns.
      texts: the column of the text, or the two columns of a pair.
      choices: the columns of choices, () of texts; size: how many choices each question has.
    """

    choices: tuple[str, ...] = ()
    size: int = 0

    def __init__(
        self,
        path: str | Path,
        texts: Sequence[str] = (),
        *,
        format: str | None = None,
        errors: str = "strict",
        option: str = "--text",
    ):
        """Read the first row.

        Args:
          path: the file (also .gz or .xz), or "-".
          texts: the columns of the text or of the two texts; () finds them by their names.
          format: one of FORMATS; None means that of the file's extension, "txt" for standard input.
          errors: "strict" or "replace", for bytes that are not UTF-8.
          option: how the user names columns, for errors.

        Raises FirthError for a file that is missing or empty or whose format is unknown, and for
        columns that are missing or not clear.
        """
        self.name, self.format = shown_path(path), format or format_of(path)
        if self.format not in FORMATS:
            raise FirthError(
                f"--format {self.format} is one of words with tags, and the model reads whole "
                f"texts; expected one of {', '.join(FORMATS)}"
            )
        self._records = functools.partial(_READERS[self.format], path, errors)
        pipe = str(path) == "-" or (Path(path).exists() and not Path(path).is_file())
        self._once = self._records() if pipe else None
        records = self._once or self._records()
        first = next(records, None)
        if first is None:
            raise FirthError(f"{self.name} has no rows; expected {_EXPECTED[self.format]}")
        if self._once:
            self._once = itertools.chain([first], self._once)
        line, fields = first
        self.columns = tuple(fields)
        if self.format == "txt" and texts:
            raise FirthError(
                f"{self.name} is plain text and has no columns, but {option} reads "
                f"{' and '.join(texts)}; give a .jsonl, .csv or .tsv file, or leave {option} out"
            )
        if len(texts) > 2:
            raise FirthError(f"{option}={','.join(texts)}: expected one column, or two for pairs")
        at = f"{self.name}:{line if self.format == 'jsonl' else 1}"  # a table's header is there
        present(at, texts, (), fields)
        known = self.columns if self.format == "txt" else texts
        self._read_first(f"{self.name}:{line}", fields)
        self.texts = tuple(known) or self._text_columns(at, option)

    def _text_columns(self, at: str, option: str) -> tuple[str, ...]:
        return text_columns(self.columns, at, option)

    def _read_first(self, at: str, fields: dict) -> None:
        """Take what else a subclass needs from the first row."""

    def label(self, name: str | None = None, option: str = "--label") -> str:
        """The column of the label: `name`, else by its name; FirthError where that is not clear."""
        at = f"{self.name}:1"
        if name is None:
            return label_column(self.columns, at, option)
        return present(at, [name], (), self.columns)[0]

    def __iter__(self) -> Iterator[Row]:
        """Every row in turn; raises FirthError, naming its line, for one that is malformed."""
        for line, fields in self._once or self._records():
            at = f"{self.name}:{line}"
            texts = tuple(self._text(at, fields, name) for name in self.texts)
            yield self._row(at, fields, texts)

    def _row(self, at: str, fields: dict, texts: tuple[str, ...]) -> Row:
        return Row(at, fields, texts if len(texts) == 2 else texts[0])

    def count(self, check: Callable[[Row], object] = bool) -> int | None:
        """Read and check all rows and count them; None for what comes only once."""
        return None if self._once else sum(1 for row in self if (check(row), True))

    def _text(self, at: str, fields: dict, name: str) -> str:
        if name not in fields:
            raise FirthError(f"{at}: no column {name!r}; there are: {listed(fields)}")
        return checked_text(at, name, fields[name])


def format_of(path: str | Path) -> str:
    """The format of a file by its extension, before .gz or .xz; "txt" for standard input.

    Raises FirthError for an unknown extension.
    """
    path = Path(path)
    suffix = (path.with_suffix("") if path.suffix in (".gz", ".xz") else path).suffix
    kind = _SUFFIXES.get(suffix.lower().removeprefix("."))
    if kind is None:
        raise FirthError(
            f"{path}: the format of {suffix!r} is unknown; expected .txt, .csv, .tsv or .jsonl, "
            "or --format"
        )
    return kind


def _text_records(path, errors) -> Iterator[tuple[int, dict]]:
    count = 0
    for line, text in text_lines(path, errors, blank=True):  # so that row i is line i
        texts = text.split("\t")
        if len(texts) != (count or min(len(texts), 2)):
            raise FirthError(
                f"{shown_path(path)}:{line}: {len(texts)} texts between tabs, expected "
                f"{f'{count}, as in line 1' if count else 'one or two'}"
            )
        count = len(texts)
        yield line, dict(zip(_TEXTS, texts, strict=False))


def _table_records(read, path, errors) -> Iterator[tuple[int, dict]]:
    records = read(path, errors)
    line, names = next(records, (1, []))
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise FirthError(f"{shown_path(path)}:{line}: several columns are called {repeated[0]!r}")
    for line, record in records:
        if len(record) != len(names):
            raise ragged(f"{shown_path(path)}:{line}", record, names)
        yield line, dict(zip(names, record, strict=True))


_READERS = {
    "txt": _text_records,
    "csv": functools.partial(_table_records, csv_records),
    "tsv": functools.partial(_table_records, tsv_records),
    "jsonl": json_records,
}
_TABLE = "a line with the names of the columns, and a row a text"
_EXPECTED = {"txt": "a text a line", "csv": _TABLE, "tsv": _TABLE, "jsonl": "an object a line"}
