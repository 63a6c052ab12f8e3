"""The corpus store: a tokenised corpus as flat arrays in a directory, memory-mapped by every view.

    tokens.npy      uint16 (vocabulary <= 65,536) or uint32 [T]: all token ids, no special tokens
    sentences.npy   int64 [S+1]: where each sentence begins in tokens; the last entry is T
    documents.npy   int64 [D+1]: where each document begins in sentences; the last entry is S
    tokenizer/      the tokenizer in its published layout
    manifest.json   version, counts, tokenizer digest, options, size and sha256 of every file, and
                    the sha256 of this text without that entry

No sentence and no document is empty. Line ends are tokens where `firth prepare` was asked for them
(--sentences=newline). The bytes are a function of the text, the tokenizer and the options alone: no
dates, no absolute paths.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from firth.data.tokenize import load_tokenizer
from firth.data.tokenizer import Tokenizer
from firth.errors import FirthError
from firth.files import sha256
from firth.paths import is_url

VERSION = 2  # 1 is the same without the manifest's own checksum
ARRAYS = ("tokens.npy", "sentences.npy", "documents.npy")
_COUNTED_AT_ONCE = 1 << 24  # tokens


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrowest unsigned type that holds every id: uint16 up to 65,536 ids, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


@dataclass(frozen=True)
class Store:
    """An open corpus store; the arrays are read-only memory maps.

    Attributes: path; tokens [T] (uint16 or uint32); sentences int64 [S+1], token offsets;
    documents int64 [D+1], sentence offsets; manifest, the decoded JSON; digest, the sha256 of
    manifest.json, which covers the sha256 of every other file.
    """

    path: Path
    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    manifest: dict
    digest: str
    stamps: dict[str, tuple] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_tokens(self) -> int:
        """T, special tokens not counted."""
        return len(self.tokens)

    @property
    def num_sentences(self) -> int:
        """S."""
        return len(self.sentences) - 1

    @property
    def num_documents(self) -> int:
        """D."""
        return len(self.documents) - 1

    def token_counts(self) -> np.ndarray:
        """How often each token of the vocabulary occurs, int64 [vocab_size]; reads all tokens."""
        counts = np.zeros(self.manifest["tokenizer"]["vocab_size"], np.int64)
        for begin in range(0, self.num_tokens, _COUNTED_AT_ONCE):
            part = self.tokens[begin : begin + _COUNTED_AT_ONCE]
            counts += np.bincount(part, minlength=len(counts))
        return counts

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the store, loaded from the store's own copy."""
        tokenizer = load_tokenizer(self.path / "tokenizer")
        self.check_tokenizer(tokenizer)
        return tokenizer

    def check_unchanged(self) -> None:
        """Raise FirthError, naming the file, where one is no longer what was opened.

        Only files with another size, time or inode than before are read.
        """
        for name, entry in self.manifest["files"].items():
            stamp = _stamp(self.path / name)
            if self.stamps.setdefault(name, stamp) == stamp:
                continue
            try:
                _check_file(self.path / name, entry, verify=True)
            except FirthError as error:
                raise FirthError(f"the store has changed under this run: {error}") from None
            self.stamps[name] = stamp  # touched, or replaced by the same

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise FirthError unless `tokenizer` maps text to ids exactly as the store's own does."""
        made = self.manifest["tokenizer"]
        if tokenizer.digest != made["digest"]:
            raise FirthError(
                f"{self.path} was made with another tokenizer ({made['kind']}, "
                f"{made['vocab_size']:,} tokens, digest {made['digest'][:12]}) than the one given "
                f"({tokenizer.kind}, {tokenizer.vocab_size:,} tokens, digest "
                f"{tokenizer.digest[:12]}); use {self.path / 'tokenizer'} or prepare the corpus "
                "again with the other one"
            )


def open_store(path: str | os.PathLike, verify: bool = True) -> Store:
    """Open the store in directory `path`, or at a URL (gs://...), of which it makes a local copy.

    Sizes, dtypes and lengths are always checked; `verify` also checks the sha256 of every file
    (one sequential read, about a second per gigabyte). Raises FirthError naming the damaged file.
    """
    if is_url(path):
        from firth.data.staging import stage

        path = stage(path)
    path = Path(path)
    manifest_path = path / "manifest.json"
    try:
        text = manifest_path.read_bytes()
    except OSError as error:
        raise FirthError(
            f"{path} is not a corpus store: cannot read manifest.json ({error.strerror}); "
            "make one with firth prepare"
        ) from None
    manifest = read_manifest(manifest_path, text)
    stamps = {name: _stamp(path / name) for name in manifest["files"]}
    for name, entry in manifest["files"].items():
        _check_file(path / name, entry, verify)
    tokens, sentences, documents = (_map_array(path / name) for name in ARRAYS)
    _check_lengths(path, manifest, tokens, sentences, documents)
    digest = hashlib.sha256(text).hexdigest()
    return Store(path, tokens, sentences, documents, manifest, digest, stamps)


def read_manifest(path: str | os.PathLike, text: bytes) -> dict:
    """The manifest in `text`, found at `path`; FirthError unless it is one of this version."""
    try:
        manifest = json.loads(text)
        version = manifest["version"]
        complete = {"tokenizer", "tokens", "sentences", "documents", "dtype"} <= manifest.keys()
        complete = complete and set(ARRAYS) <= manifest["files"].keys()
    except (ValueError, KeyError, TypeError, AttributeError):
        version, complete = None, False
    if version is not None and version not in (1, VERSION):
        raise FirthError(
            f"{path}: store version {version!r}, but this Firth reads versions 1 and {VERSION}; "
            "prepare the corpus again"
        )
    if complete and version != 1:
        complete = manifest_text(manifest).encode(errors="surrogatepass") == text
    if not complete:
        raise FirthError(f"{path} is damaged (not a store manifest); prepare the corpus again")
    return manifest


def manifest_text(manifest: dict) -> str:
    """The text of a manifest, its own checksum filled in."""
    manifest = {name: value for name, value in manifest.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    return json.dumps(manifest | {"sha256": digest}, indent=2, ensure_ascii=False) + "\n"


def _check_file(path: Path, entry: dict, verify: bool) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise FirthError(
            f"{path}: {error.strerror}, but the manifest lists it; prepare the corpus again"
        ) from None
    if size != entry["bytes"]:
        raise FirthError(
            f"{path} is damaged: {size:,} bytes where the manifest says {entry['bytes']:,}; "
            "copy it again or prepare the corpus again"
        )
    if verify and sha256(path) != entry["sha256"]:
        raise FirthError(
            f"{path} is damaged: its sha256 is not the manifest's; remove it and copy it again "
            "(one staged from a URL is, by the same command) or prepare the corpus again"
        )


def _stamp(path: Path) -> tuple | None:
    """What changes when a file does: size, time of its last change, inode; None if it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _map_array(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise FirthError(f"{path} is damaged: {error}; prepare the corpus again") from None


def _check_lengths(path, manifest, tokens, sentences, documents) -> None:
    expected = {
        "tokens.npy": (tokens, manifest["dtype"], manifest["tokens"]),
        "sentences.npy": (sentences, "int64", manifest["sentences"] + 1),
        "documents.npy": (documents, "int64", manifest["documents"] + 1),
    }
    for name, (array, dtype, length) in expected.items():
        if array.shape != (length,) or array.dtype != dtype:
            raise FirthError(
                f"{path / name} is damaged: {array.dtype} {array.shape} where the manifest says "
                f"{dtype} ({length},); prepare the corpus again"
            )
    if sentences[-1] != len(tokens) or documents[-1] != len(sentences) - 1:
        raise FirthError(
            f"{path}: the last offsets ({sentences[-1]}, {documents[-1]}) are not the numbers of "
            f"tokens and sentences ({len(tokens)}, {len(sentences) - 1}); prepare the corpus again"
        )


class StoreWriter:
    """Writes a store from parts appended in corpus order, in memory that does not grow with it.

        with StoreWriter("store", tokenizer) as writer:
            writer.append(tokens, sentence_lengths, document_lengths)

    The store appears at `path` complete, when the block ends without an exception, or not at all.
    `description` entries (`input`, `options`, ...) are put into the manifest as they are.
    Raises FirthError when `path` exists or cannot be written (a full disk, say).
    """

    def __init__(self, path: str | os.PathLike, tokenizer: Tokenizer, **description):
        self.path = Path(path)
        self.num_tokens = self.num_sentences = self.num_documents = 0
        self._tokenizer = tokenizer
        self._description = description
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._in_document = False  # does the newest document have a sentence yet?
        self._folder = self.path.with_name(self.path.name + ".writing")

    def __enter__(self) -> "StoreWriter":
        if self.path.exists():
            raise FirthError(f"{self.path} exists; remove it or choose another path")
        with explained(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)  # left by a run that was killed
            self._folder.mkdir(parents=True)
            dtypes = (self._dtype, np.dtype(np.int64), np.dtype(np.int64))
            self._files = [
                _ArrayFile(self._folder / n, d) for n, d in zip(ARRAYS, dtypes, strict=True)
            ]
        return self

    def append(self, tokens, sentence_lengths, document_lengths, continued: bool = False) -> None:
        """Append tokens [t], the lengths of their sentences in tokens and documents in sentences.

        `continued` says that the first document is more of the newest one, so that a document may
        span parts. A document length may be 0 (a document without text is left out of the store);
        a sentence length may not. Raises ValueError when the lengths do not add up.
        """
        tokens, sentence_lengths, document_lengths = (
            np.asarray(a) for a in (tokens, sentence_lengths, document_lengths)
        )
        if sentence_lengths.sum() != len(tokens) or np.any(sentence_lengths < 1):
            raise ValueError("sentence_lengths must be positive and sum to the number of tokens")
        if document_lengths.sum() != len(sentence_lengths) or np.any(document_lengths < 0):
            raise ValueError("document_lengths must sum to the number of sentences")
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self._tokenizer.vocab_size:
            raise ValueError(f"token ids must lie in [0, {self._tokenizer.vocab_size})")
        begins = document_lengths > 0
        if len(begins):
            open_at_end = bool(begins[-1]) or (continued and len(begins) == 1 and self._in_document)
            if continued and self._in_document:
                begins[0] = False
            self._in_document = open_at_end
        tokens_file, sentences_file, documents_file = self._files
        tokens_file.write(tokens)
        sentences_file.write(_starts(self.num_tokens, sentence_lengths))
        documents_file.write(_starts(self.num_sentences, document_lengths)[begins])
        self.num_tokens += len(tokens)
        self.num_sentences += len(sentence_lengths)
        self.num_documents += int(begins.sum())

    def __exit__(self, error_type, error, traceback) -> None:
        try:
            if error_type is None:
                with explained(self._folder):
                    self._finish()
        finally:
            for file in self._files:
                with contextlib.suppress(OSError):  # a full disk has been reported already
                    file.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _finish(self) -> None:
        _, sentences_file, documents_file = self._files
        sentences_file.write(np.array([self.num_tokens]))
        documents_file.write(np.array([self.num_sentences]))
        for file in self._files:
            file.finish()
        self._tokenizer.save(self._folder / "tokenizer")
        files = sorted(p for p in self._folder.rglob("*") if p.is_file())
        manifest = {
            "format": "firth corpus store",
            "version": VERSION,
            "tokens": self.num_tokens,
            "sentences": self.num_sentences,
            "documents": self.num_documents,
            "dtype": str(self._dtype),
            "tokenizer": self._tokenizer.describe(),
            **self._description,
            "files": {
                p.relative_to(self._folder).as_posix(): {
                    "bytes": p.stat().st_size,
                    "sha256": sha256(p),
                }
                for p in files
            },
        }
        (self._folder / "manifest.json").write_text(manifest_text(manifest), encoding="utf-8")
        self._folder.rename(self.path)


class _ArrayFile:
    """A one-dimensional .npy file of a length not known beforehand, written in sequence."""

    def __init__(self, path: Path, dtype: np.dtype):
        self._path = path
        self._dtype = dtype
        self._length = 0
        self._file = path.open("w+b")
        self._write_header()
        self._begin = self._file.tell()

    def _write_header(self) -> None:
        """The header for the present length; numpy pads it so that every length fits its place."""
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._length,),
        }
        np.lib.format.write_array_header_1_0(self._file, header)

    def write(self, values: np.ndarray) -> None:
        with explained(self._path):
            self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._length += len(values)

    def finish(self) -> None:
        with explained(self._path):
            self._file.seek(0)
            self._write_header()
            if self._file.tell() != self._begin:
                raise AssertionError(f"{self._path}: the .npy header has outgrown its place")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _starts(first: int, lengths: np.ndarray) -> np.ndarray:
    """Where runs of the given lengths begin when they follow one another from `first` on."""
    return first + np.cumsum(lengths, dtype=np.int64) - lengths


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the system's error on a write (a full disk, a denied folder) into a FirthError."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise FirthError(
            f"cannot write {where}: {error.strerror or error}; make room or choose another folder, "
            "then run the same command again"
        ) from error
