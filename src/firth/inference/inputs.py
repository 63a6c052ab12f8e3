"""Input texts: one, or a pair, on each line of a file, for a model that reads them."""

import contextlib
import sys
from collections.abc import Iterator

from firth.errors import FirthError
from firth.models.model import reads_backward

Text = str | tuple[str, str]


def read_lines(path: str, errors: str = "strict") -> Iterator[tuple[str, Text]]:
    """(file:line, text) of each line; a line with a tab is a pair. "-" is standard input.

    An empty line is an empty text, so row i is always line i. Raises FirthError with the line
    number for bytes that are not UTF-8 and for more than one tab.
    """
    for name, line in read_plain_lines(path, errors):
        yield name, parse_line(name, line)


def read_plain_lines(path: str, errors: str = "strict") -> Iterator[tuple[str, str]]:
    """As `read_lines`, but tabs stay in the line."""
    name = "standard input" if path == "-" else path
    with _open(path) as file:
        begin = 0
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
            except UnicodeDecodeError as error:
                raise FirthError(
                    f"{name}:{number}: not UTF-8 at byte {begin + error.start} of the file; "
                    "convert it, or give --errors=replace"
                ) from None
            begin += len(line)
            yield f"{name}:{number}", text.rstrip("\r\n")


def parse_line(name: str, text: str) -> Text:
    """A text, or a pair if there is a tab; FirthError, naming the line, for more tabs."""
    parts = text.split("\t")
    if len(parts) > 2:
        raise FirthError(f"{name}: {len(parts)} texts between tabs, expected one or two")
    return parts[0] if len(parts) == 1 else tuple(parts)


def count_lines(path: str) -> int | None:
    """Number of lines of a file, None for standard input; FirthError if all lines are blank."""
    if path == "-":
        return None
    with _open(path) as file:
        count, blank = 0, True
        for line in file:
            count, blank = count + 1, blank and not line.strip()
    if blank:
        raise FirthError(f"{path} is empty; expected one text a line")
    return count


def check_direction(encoder) -> None:
    """Raise FirthError for a model that reads texts from their end, and so can only label."""
    if reads_backward(encoder.model.encoder.config):
        raise FirthError(
            f"{encoder.saved.source} reads texts from their end (model.backward), and is used to "
            "label them alone; expected a model that reads them from their beginning"
        )


def _open(path: str):
    if path == "-" and sys.stdin is None:
        raise FirthError("standard input is closed; expected one text a line, or name a file")
    try:
        return contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb")
    except OSError as error:
        raise FirthError(f"cannot read {path}: {error.strerror}") from None
