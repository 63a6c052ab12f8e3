"""Read corpora: text, JSONL, CSV and TFDS, plain or compressed, in blocks of bounded size.

`find_sources` turns the user's inputs into sources. `read_blocks` cuts a source into consecutive
blocks of a few megabytes. `read_batches` joins the blocks of small sources. `read_documents`
decodes and parses one block; it does nearly all of the work. Cuts depend only on the input and the
block size, so any process can work on any batch in any order.
"""

import csv
import glob
import gzip
import json
import lzma
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from firth.data import tfds_reader
from firth.errors import FirthError
from firth.storage.remote import about, is_url, list_files, open_binary

BLOCK_BYTES = 2 << 20  # of text, about half a million tokens
LONGEST_RECORD = 64 << 20  # bytes of one JSONL line or CSV row
FORMATS = ("text", "jsonl", "csv", "tsv")

# Names that object stores give to a file's version or to its time of writing.
_VERSIONS = ("md5Hash", "etag", "ETag", "mtime", "LastModified", "created")
_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Input:
    """One input: a file, or a TFDS split (`tfds:NAME[:version][:split]`)."""

    name: str
    format: str
    bytes: int  # as stored
    tfds: tfds_reader.Texts | None = None

    def fingerprint(self) -> list:
        """Address, size and time of modification (or checksum), which change with the input."""
        if self.tfds:
            return list(self.tfds[:3])
        if is_url(self.name):
            known = about(self.name)
            return [self.name, self.bytes, *(str(known[k]) for k in _VERSIONS if k in known)]
        return [os.path.abspath(self.name), self.bytes, os.stat(self.name).st_mtime_ns]

    def describe(self) -> dict:
        """The entry in a manifest: the base name and the size."""
        name = self.name if self.tfds else os.path.basename(self.name)
        return {"name": name, "bytes": self.bytes}


@dataclass(frozen=True)
class Block:
    """A part of one source.

    content: whole lines as bytes ("text", "jsonl"), or a list of texts, one for each document.
    Lines longer than a block are cut at a space. continued: the first document continues the last
    one of the previous block. begins_line: the first byte begins a line. offset, line: where the
    block begins in the (decompressed) source, lines from 1. position: bytes of the source, as
    stored, read so far.
    """

    source: str
    format: str
    content: bytes | list[str]
    continued: bool
    begins_line: bool
    offset: int
    line: int
    position: int


class Batch(NamedTuple):
    """Blocks for one unit of work, and the bytes of all sources, as stored, read so far."""

    blocks: list[Block]
    position: int


def find_sources(
    inputs: Sequence[str],
    format: str | None = None,
    tfds_dir: str | None = None,
    tfds_download: bool = False,
) -> list[Input]:
    """The files and URLs that match the patterns, and the TFDS splits, without duplicates.

    The matches of each pattern are sorted. `format` is one of FORMATS; None means the one of the
    extension (.jsonl, .csv, .tsv, else text; before .gz or .xz). `tfds_dir` is TFDS's data_dir
    (None: its default). `tfds_download` lets TFDS download a missing dataset. Raises FirthError for
    a pattern that matches nothing or a directory, and for a missing dataset or split.
    """
    sources = {}
    for pattern in inputs:
        if tfds_reader.is_name(pattern):
            texts = tfds_reader.find_texts(pattern, tfds_dir, tfds_download)
            sources[texts.name] = Input(texts.name, "tfds", texts.bytes, texts)
            continue
        names = _find_files(pattern)
        if not names:
            raise FirthError(f"--input {pattern}: no such file, and the pattern matches none")
        for name in names:
            if os.path.isdir(name):
                raise FirthError(f"--input {name} is a directory; write '{name.rstrip('/')}/*'")
            if os.path.islink(name) and not os.path.exists(name):
                raise FirthError(
                    f"--input {name} is a link to {os.readlink(name)}, which does not exist; "
                    "mend or remove the link"
                )
            remote = is_url(name)
            size = int(about(name)["size"]) if remote else os.stat(name).st_size
            place = name if remote else os.path.abspath(name)
            sources[place] = Input(name, format or _format_of(name), size)
    return list(sources.values())


def _find_files(pattern: str) -> list[str]:
    if is_url(pattern):
        return list_files(pattern)
    return [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern, recursive=True))


def _format_of(name: str) -> str:
    path = Path(name)
    suffix = (Path(path.stem) if path.suffix in _OPENERS else path).suffix.lower()
    return {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv"}.get(suffix, "text")


def read_batches(
    sources: Sequence[Input], field: str, errors: str, block_bytes: int = BLOCK_BYTES
) -> Iterator[Batch]:
    """The blocks of all sources in order; small ones share a batch."""
    blocks, size, before = [], 0, 0
    for source in sources:
        for block in read_blocks(source, field, errors, block_bytes):
            blocks.append(block)
            size += (
                len(block.content)
                if isinstance(block.content, bytes)
                else sum(map(len, block.content))
            )
            if size >= block_bytes // 2:
                yield Batch(blocks, before + block.position)
                blocks, size = [], 0
        before += source.bytes
    if blocks:
        yield Batch(blocks, before)


def read_blocks(
    source: Input, field: str, errors: str, block_bytes: int = BLOCK_BYTES
) -> Iterator[Block]:
    """Cut a source into blocks of about `block_bytes` of text.

    Raises FirthError for an unreadable or damaged file, and for bad CSV and TFDS.
    """
    if source.tfds:
        yield from _blocks_of_texts(
            source, tfds_reader.read_texts(source.tfds, field, errors), block_bytes
        )
        return
    try:
        with open_binary(source.name) as stored:
            opener = _OPENERS.get(Path(source.name).suffix)
            file = opener(stored) if opener else stored
            if source.format in ("csv", "tsv"):
                texts = _read_table(source, file, field, errors)
                texts = ((text, stored.tell()) for text in texts)
                yield from _blocks_of_texts(source, texts, block_bytes)
            else:
                yield from _blocks_of_lines(source, file, stored, block_bytes)
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise FirthError(
            f"{source.name} is damaged: it does not decompress ({error}); fetch it again"
        ) from None
    except OSError as error:
        raise FirthError(f"cannot read {source.name}: {error.strerror or error}") from None


def _blocks_of_lines(
    source: Input, file: BinaryIO, stored: BinaryIO, block_bytes: int
) -> Iterator[Block]:
    rest, offset, line, begins_line = b"", 0, 1, True
    while True:
        # JSONL records must stay whole, so a line longer than a block is read to its end.
        data = rest + file.read(max(block_bytes - len(rest), block_bytes // 4))
        at_end = len(data) == len(rest)
        cut = len(data) if at_end else data.rfind(b"\n") + 1
        if not cut and len(data) >= block_bytes and source.format == "text":
            cut = _cut_long_line(data)
        if not cut and len(data) > LONGEST_RECORD:
            raise FirthError(
                f"{source.name}:{line}: a line of more than {LONGEST_RECORD >> 20} MiB; "
                "split this document"
            )
        content, rest = data[:cut], data[cut:]
        if content:
            yield Block(
                source.name,
                source.format,
                content,
                continued=offset > 0 and source.format == "text",
                begins_line=begins_line,
                offset=offset,
                line=line,
                position=stored.tell(),
            )
            offset += cut
            line += content.count(b"\n")
            begins_line = content.endswith(b"\n")
        if at_end:
            return


def _cut_long_line(data: bytes) -> int:
    """The cut in a line that fills a block: after its last space, else before a character."""
    cut = data.rfind(b" ") + 1
    if not cut:
        cut = len(data)
        while cut > len(data) - 4 and data[cut - 1] & 0xC0 == 0x80:  # inside a UTF-8 sequence
            cut -= 1
        cut -= 1
    return max(cut, 0)


def _blocks_of_texts(
    source: Input, texts: Iterator[tuple[str, int]], block_bytes: int
) -> Iterator[Block]:
    """Blocks of whole texts, from (text, bytes of the source read so far)."""
    content, size, position = [], 0, 0
    for text, position in texts:
        content.append(text)
        size += len(text)
        if size >= block_bytes:
            yield Block(source.name, source.format, content, False, True, 0, 0, position)
            content, size = [], 0
    if content:
        yield Block(source.name, source.format, content, False, True, 0, 0, position)


def _read_table(source: Input, file: BinaryIO, field: str, errors: str) -> Iterator[str]:
    """The column `field` of a CSV or TSV file with a header, one text for each row."""
    csv.field_size_limit(LONGEST_RECORD)
    dialect = dict(delimiter="\t", quoting=csv.QUOTE_NONE) if source.format == "tsv" else {}
    reader = csv.reader(_decoded_lines(source.name, file, errors), **dialect)
    try:
        header = next(reader, [])
        if header and field not in header:
            raise FirthError(
                f"{source.name}:1: no column {field!r}; the columns are {', '.join(header)}; "
                "choose one with --field"
            )
        for row in reader:
            if len(row) != len(header) and row:
                raise FirthError(
                    f"{source.name}:{reader.line_num}: {len(row)} columns where the header has "
                    f"{len(header)}"
                )
            if row:
                yield row[header.index(field)]
    except csv.Error as error:
        raise FirthError(f"{source.name}:{reader.line_num}: not valid CSV ({error})") from None


def _decoded_lines(name: str, file: BinaryIO, errors: str) -> Iterator[str]:
    offset = 0
    for number, line in enumerate(file, 1):
        yield _decode(line, name, errors, offset, number)
        offset += len(line)


def _decode(data: bytes, name: str, errors: str, offset: int, line: int) -> str:
    try:
        text = data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise FirthError(
            f"{name}:{line}: not UTF-8: byte 0x{data[error.start]:02x} at offset "
            f"{offset + error.start:,}; convert the file, or replace such bytes with "
            "--errors=replace"
        ) from None
    return text.removeprefix("\ufeff") if offset == 0 else text


def read_documents(block: Block, field: str, document: str, errors: str) -> list[str]:
    """The documents of a block.

    In a block of text the first document may continue the last one of the previous block, and any
    document may be empty. `document` is "blank-line" (blank lines separate documents) or "file".

    Raises FirthError with file and line for bytes that are not UTF-8 (unless `errors` is
    "replace"), lines that are not JSON objects and records without the field.
    """
    if isinstance(block.content, list):
        return block.content
    text = _decode(block.content, block.source, errors, block.offset, block.line)
    if block.format == "jsonl":
        return _parse_lines(text, block, field, errors)
    if document == "file":
        return [text]
    if not block.begins_line:
        return _BLANK_LINES.split(text)
    # With a line end before it, a blank line at the head separates documents like any other.
    first, *rest = _BLANK_LINES.split("\n" + text)
    return [first.removeprefix("\n"), *rest]


def _parse_lines(text: str, block: Block, field: str, errors: str) -> list[str]:
    """The field of each line of JSONL, without blank lines."""
    texts = []
    for number, line in enumerate(text.split("\n"), block.line):
        if not line or line.isspace():
            continue
        where = f"{block.source}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise FirthError(
                f"{where}: not valid JSON: {error.msg} at column {error.colno}"
            ) from None
        if not isinstance(record, dict):
            raise FirthError(f"{where}: expected a JSON object, found {type(record).__name__}")
        value = record.get(field)
        if field not in record:
            raise FirthError(
                f"{where}: no field {field!r}; the fields are {', '.join(record)}; choose one "
                "with --field"
            )
        if not isinstance(value, str):
            raise FirthError(f"{where}: field {field!r} is not text but {type(value).__name__}")
        texts.append(_without_surrogates(value, where, errors))
    return texts


def _without_surrogates(text: str, where: str, errors: str) -> str:
    r"""The text; FirthError, or a replacement, for half a surrogate pair from a \ud800 escape."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "strict":
            raise FirthError(
                f"{where}: half a surrogate pair (\\u{ord(text[error.start]):04x}) is not text; "
                "replace such characters with --errors=replace"
            ) from None
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
