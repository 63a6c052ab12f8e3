"""Files of word vectors that other tools read: word2vec's text and binary formats, GloVe's text.

text     a line a word: the word and its D numbers, with spaces between. word2vec's has a first line
         with the numbers of words and of dimensions; GloVe's (.glove.txt) has none, and its words
         may contain spaces.
binary   (.bin) the same first line, then for each word its bytes, a space, D float32 in
         little-endian order, and a line end.

V words, D dimensions.
"""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.errors import FirthError

GLOVE = ".glove.txt"
ENDINGS = (".vec", ".txt", ".bin")
LARGEST = 1 << 16  # bytes of a word in a binary file; a longer one means that it is no such file


def is_file_name(path: str | os.PathLike) -> bool:
    """Whether a path has the name of a file of word vectors, and is no folder."""
    return str(path).endswith(ENDINGS) and not Path(path).is_dir()


def write(path: Path, words: Sequence[str], vectors: np.ndarray) -> None:
    """Write words and vectors float32 [V, D] in the format that the ending of `path` says.

    The file appears whole or not. Text has nine digits, which give each float32 back. Raises
    FirthError for a word with white space, or an empty one, which no reader would find again.
    """
    bad = next((word for word in words if len(word.split()) != 1 or word != word.strip()), None)
    if bad is not None:
        raise FirthError(f"{path}: the word {bad!r} has white space, which separates words there")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    size, dim = vectors.shape
    try:
        with temporary.open("wb") as file:
            if not path.name.endswith(GLOVE):
                file.write(b"%d %d\n" % (size, dim))
            if path.suffix == ".bin":
                for word, row in zip(words, vectors.astype("<f4"), strict=True):
                    file.write(word.encode() + b" " + row.tobytes() + b"\n")
            else:
                line = " ".join(["%s", *["%.9g"] * dim]) + "\n"
                for word, row in zip(words, vectors, strict=True):
                    file.write((line % (word, *row.tolist())).encode())
        os.replace(temporary, path)
    except OSError as error:
        raise FirthError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> tuple[list[str], np.ndarray]:
    """(words, vectors float32 [V, D]) of a file in any of the formats.

    Raises FirthError, naming the line or the word, for a file that cannot be read, is cut off, has
    rows of different lengths or numbers that are not finite, and for a word that comes twice.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FirthError(f"cannot read {path}: {error.strerror}") from None
    words, vectors = (_read_binary if path.suffix == ".bin" else _read_text)(data, path)
    bad = np.flatnonzero(~np.isfinite(vectors).all(1))
    if len(bad):
        raise FirthError(
            f"{path}: the vector of {words[bad[0]]!r}, word {bad[0] + 1}, has a number that is not "
            "finite"
        )
    first = {}
    for number, word in enumerate(words):
        if first.setdefault(word, number) != number:
            raise FirthError(
                f"{path}: {word!r} stands there twice, as word {first[word] + 1} and {number + 1}"
            )
    return words, vectors


def _header(line: bytes) -> tuple[int, int] | None:
    """(words, dimensions) if a line is two whole numbers."""
    parts = line.split()
    return tuple(map(int, parts)) if len(parts) == 2 and all(p.isdigit() for p in parts) else None


def _read_text(data: bytes, path: Path):
    lines = data.split(b"\n")
    if not lines[-1].strip():
        lines.pop()
    announced = _header(lines[0]) if lines else None
    begin = 1 if announced else 0
    if len(lines) <= begin:
        raise FirthError(f"{path} holds no word vectors; expected a word and its numbers a line")
    dim = announced[1] if announced else len(lines[0].split()) - 1
    words, vectors = [], np.empty((len(lines) - begin, max(dim, 0)), np.float32)
    for number, line in enumerate(lines[begin:]):
        where = f"{path}:{number + begin + 1}"
        word, *fields = line.rstrip().rsplit(b" ", dim)
        if dim < 1 or len(fields) != dim or (row := _numbers(b" ".join(fields), dim)) is None:
            raise FirthError(f"{where}: expected a word and {max(dim, 1)} numbers, spaces between")
        try:
            words.append(word.decode())
        except UnicodeDecodeError:
            raise FirthError(f"{where}: the word is not UTF-8") from None
        vectors[number] = row
    if announced and len(words) != announced[0]:
        raise FirthError(
            f"{path} is cut off or damaged: its first line announces {announced[0]:,} words, and "
            f"it holds {len(words):,}"
        )
    return words, vectors


def _numbers(text: bytes, count: int) -> np.ndarray | None:
    """float32 [count] of a text; None for another number of numbers, or what is no number."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # of text that numpy cannot read
        try:
            row = np.fromstring(text, np.float32, sep=" ")
        except (DeprecationWarning, ValueError):
            return None
    return row if len(row) == count else None


def _read_binary(data: bytes, path: Path):
    head, _, _ = data[:LARGEST].partition(b"\n")
    announced = _header(head)
    if not announced or not all(announced):
        raise FirthError(
            f"{path} is no file of word vectors: a binary one begins with a line of two numbers, "
            "words and dimensions"
        )
    (size, dim), at = announced, len(head) + 1
    if size * dim * 4 > len(data):
        raise FirthError(
            f"{path} is cut off: {size:,} words of {dim:,} dimensions take more than its "
            f"{len(data):,} bytes"
        )
    words, vectors = [], np.empty((size, dim), np.float32)
    for number in range(size):
        space = data.find(b" ", at, at + LARGEST)
        if space < 0 or space + 1 + 4 * dim > len(data):
            raise FirthError(f"{path} is cut off or damaged at word {number + 1:,} of {size:,}")
        try:
            words.append(data[at:space].lstrip(b"\n").decode())
        except UnicodeDecodeError:
            raise FirthError(f"{path}: word {number + 1:,} of {size:,} is not UTF-8") from None
        vectors[number] = np.frombuffer(data, "<f4", dim, space + 1)
        at = space + 1 + 4 * dim
    return words, vectors
