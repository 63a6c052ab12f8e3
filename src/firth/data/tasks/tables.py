"""Tables of labelled text: the named columns of CSV, TSV and JSONL files (plain, .gz or .xz).

Reading is strict. A row with another number of columns than the header, a missing column, bytes
that are not UTF-8 and a damaged archive each raise a `FirthError` that names file and line.
"""

import contextlib
import csv
import difflib
import gzip
import json
import lzma
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.errors import FirthError

_OPEN = {".gz": gzip.open, ".xz": lzma.open}
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class Table:
    """The requested columns of one file.

    `columns[name]` lists one value for each row: str from CSV and TSV, any JSON value from JSONL.
    `rows` int64 [n] says where each row begins: the 1-based line of the file, or TFDS's `idx`.
    `skipped` counts the malformed rows that reading skipped.
    """

    source: str
    columns: dict[str, list]
    rows: np.ndarray
    skipped: int = 0


def find_file(directory: str | Path, name: str) -> Path | None:
    """`directory/name`, or the same with `.gz` or `.xz`; None if none of them exists."""
    plain = Path(directory).expanduser() / Path(name).expanduser()
    candidates = (plain.with_name(plain.name + suffix) for suffix in ("", *_OPEN))
    return next((path for path in candidates if path.is_file()), None)


def read_table(
    path: str | Path,
    required: Sequence[str],
    optional: Sequence[str] = (),
    header: Sequence[str] = (),
    ragged_allowed: int = 0,
) -> Table:
    """Read named columns of a `.csv`, `.tsv` or `.jsonl` file (also with `.gz` or `.xz`).

    CSV follows the quoting of RFC 4180. In TSV a quotation mark is an ordinary character (as
    `csv.QUOTE_NONE`), because GLUE's texts hold unbalanced ones. Empty lines are skipped.

    Args:
      path: the file; its extension gives the format.
      required: columns that the file must have.
      optional: columns to read if the file has them.
      header: names of all columns of a file without a header line.
      ragged_allowed: skip and count up to this many rows with a wrong number of columns.

    Raises:
      FirthError: naming file and line, for a missing column, a ragged row, text that is not UTF-8,
        malformed CSV or JSON, a damaged archive or an unknown format.
    """
    path = Path(path)
    if _kind(path) == ".jsonl":
        return _read_jsonl(path, required, optional)
    records = _records(path)
    names = list(header) or _names(path, records)
    wanted = present(f"{path}:1", required, optional, names)
    if repeated := [name for name in wanted if names.count(name) > 1]:
        raise FirthError(f"{path}:1: several columns are called {repeated[0]!r}")
    places = [names.index(name) for name in wanted]
    columns, rows, skipped = [[] for _ in wanted], [], 0
    for line, record in records:
        if len(record) != len(names):
            skipped += 1
            if skipped > ragged_allowed:
                raise ragged(f"{path}:{line}", record, names)
            continue
        rows.append(line)
        for column, place in zip(columns, places, strict=True):
            column.append(record[place])
    columns = dict(zip(wanted, columns, strict=True))
    return Table(str(path), columns, np.array(rows, np.int64), skipped)


def read_header(path: str | Path) -> list[str]:
    """The names of all columns: those of the header line, or of the first row of JSONL.

    Raises FirthError as `read_table` does, for what stands at the beginning of the file.
    """
    path = Path(path)
    if _kind(path) != ".jsonl":
        return _names(path, _records(path))
    for _, record in json_records(path):
        return list(record)
    raise FirthError(f"{path}: is empty; expected a row an example")


def _kind(path: Path) -> str:
    """The extension, without that of an archive; FirthError for an unknown one."""
    kind = (path.with_suffix("") if path.suffix in _OPEN else path).suffix
    if kind not in (".csv", ".tsv", ".jsonl"):
        raise FirthError(f"{path}: expected .csv, .tsv or .jsonl (plain, .gz or .xz), not {kind!r}")
    return kind


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    return csv_records(path) if _kind(path) == ".csv" else tsv_records(path)


def _names(path: Path, records) -> list[str]:
    """The fields of the next record, which is the header."""
    names = next(records, (1, []))[1]
    if not names:
        raise FirthError(f"{path}: is empty; expected a header line and a row an example")
    return names


def _read_jsonl(path: Path, required: Sequence[str], optional: Sequence[str]) -> Table:
    columns, rows = {}, []
    for line, record in json_records(path):
        at = f"{path}:{line}"
        if not columns:  # the first row decides which optional columns the file has
            columns = {name: [] for name in present(at, required, optional, record)}
        present(at, list(columns), (), record)
        if more := [name for name in optional if name in record and name not in columns]:
            raise FirthError(
                f"{at}: has {more[0]!r}, which {path}:{rows[0]} lacks; expected it in every row or "
                "in none"
            )
        rows.append(line)
        for name, column in columns.items():
            column.append(record[name])
    return Table(str(path), columns, np.array(rows, np.int64))


def present(at: str, required: Sequence[str], optional: Sequence[str], names) -> list[str]:
    """The required columns and the optional ones in `names`; FirthError if one is missing.

    The error lists the names there are, those like the missing one first.
    """
    for name in required:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
            there = listed(dict.fromkeys([*near, *names]))
            raise FirthError(f"{at}: no column {name!r}; there are: {there}")
    return [*required, *(name for name in optional if name in names)]


def checked_text(at: str, name: str, value) -> str:
    """A text of a column; FirthError, naming the place, for what is none or holds half a character.

    JSON can write a half of a pair ("\\ud800"), which no tokenizer reads.
    """
    if not isinstance(value, str):
        raise FirthError(f"{at}: {name!r} is {value!r:.40}, expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = value[error.start]
        raise FirthError(f"{at}: {name!r} holds {half!r}, which is no character") from None
    return value


def listed(names) -> str:
    """Names for an error message."""
    return ", ".join(map(repr, names)) or "none"


def ragged(at: str, record: Sequence[str], names: Sequence[str]) -> FirthError:
    """The error of a row that has another number of columns than the header."""
    return FirthError(
        f"{at}: row has {len(record)} columns, expected {len(names)} ({listed(names)})"
    )


def json_records(path: Path | str, errors: str = "strict") -> Iterator[tuple[int, dict]]:
    """(line, object) of each line of JSON that is not empty."""
    for line, text in text_lines(path, errors):
        at = f"{shown_path(path)}:{line}"
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FirthError(f"{at}: not a JSON value: {error}") from error
        if not isinstance(record, dict):
            raise FirthError(f"{at}: expected a JSON object with named fields")
        yield line, record


def tsv_records(path: Path | str, errors: str = "strict") -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of each line that is not empty; a quotation mark is an ordinary character."""
    for line, text in text_lines(path, errors):
        yield line, text.split("\t")


def csv_records(path: Path | str, errors: str = "strict") -> Iterator[tuple[int, list[str]]]:
    """(line where the record begins, fields); a quoted field may span several lines."""
    csv.field_size_limit(1 << 24)  # the default, 128 Ki characters, is too small for long documents
    lines = (text + "\n" for _, text in text_lines(path, errors, blank=True))
    reader = csv.reader(lines, strict=True)
    begin = 1
    try:
        for record in reader:
            if record:
                yield begin, record
            begin = reader.line_num + 1
    except csv.Error as error:
        raise FirthError(f"{shown_path(path)}:{begin}: malformed CSV: {error}") from error


def text_lines(
    path: Path | str, errors: str = "strict", blank: bool = False
) -> Iterator[tuple[int, str]]:
    """(1-based line number, line without its end), without a leading byte order mark.

    "-" is standard input. `errors` is "strict" or "replace", for bytes that are not UTF-8. Empty
    lines come with `blank` alone.
    """
    offset, shown = 0, shown_path(path)
    try:
        with _open(path) as file:
            for number, data in enumerate(file, 1):
                text = data.decode("utf-8", errors).rstrip("\r\n")
                offset += len(data)
                if number == 1:
                    text = text.removeprefix("\ufeff")
                if text or blank:
                    yield number, text
    except UnicodeDecodeError as error:
        at = f"{shown}:{number}: byte {offset + error.start}"
        raise FirthError(f"{at} is not UTF-8; convert the file to UTF-8") from error
    except _DAMAGED as error:
        suffix = Path(path).suffix
        raise FirthError(f"{shown}: truncated or damaged {suffix} file: {error}") from error
    except OSError as error:
        raise FirthError(f"{shown}: cannot be read: {error.strerror or error}") from error


def shown_path(path: Path | str) -> str:
    """The name of an input in messages."""
    return "standard input" if str(path) == "-" else str(path)


def _open(path: Path | str):
    if str(path) == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    return _OPEN.get(Path(path).suffix, open)(path, "rb")
