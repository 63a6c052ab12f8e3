"""Write a corpus store; it appears complete or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from firth.data.corpus.manifest import ARRAYS, VERSION, manifest_text, token_dtype
from firth.errors import FirthError
from firth.storage.local import sha256
from firth.tokenizers.base import Tokenizer


class UnfinishedError(FirthError):
    """A file could not be written; once there is room, the same command can go on."""


class StoreWriter:
    """Writes a store from parts in corpus order; its memory does not grow with the store.

        with StoreWriter("store", tokenizer) as writer:
            writer.append(tokens, sentence_lengths, document_lengths)

    The store appears at `path` once the block ends without an exception. The manifest takes the
    `description` entries (`input`, `options`, ...) as they are. Raises FirthError if `path` exists
    or the write fails (on a full disk, say).
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
            shutil.rmtree(self._folder, ignore_errors=True)  # from a killed run
            self._folder.mkdir(parents=True)
            dtypes = (self._dtype, np.dtype(np.int64), np.dtype(np.int64))
            self._files = [
                _ArrayFile(self._folder / n, d) for n, d in zip(ARRAYS, dtypes, strict=True)
            ]
        return self

    def append(self, tokens, sentence_lengths, document_lengths, continued: bool = False) -> None:
        """Append tokens [t], the lengths of their sentences in tokens and documents in sentences.

        With `continued` the first document continues the newest one, so a document may span parts.
        A document length may be 0 (the store omits a document without text), a sentence length may
        not. Raises ValueError if the lengths do not add up.
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
                with contextlib.suppress(OSError):  # an earlier error reported the full disk
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
    """A one-dimensional .npy file, written in sequence; its length is known only at the end."""

    def __init__(self, path: Path, dtype: np.dtype):
        self._path = path
        self._dtype = dtype
        self._length = 0
        self._file = path.open("w+b")
        self._write_header()
        self._begin = self._file.tell()

    def _write_header(self) -> None:
        """Write the header for the current length; numpy's padding leaves room for any length."""
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
    """The beginnings of consecutive runs of these lengths; the first run begins at `first`."""
    return first + np.cumsum(lengths, dtype=np.int64) - lengths


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError on a write (a full disk, a denied folder) into an UnfinishedError."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise UnfinishedError(
            f"cannot write {where}: {error.strerror or error}; make room or choose another folder, "
            "then run the same command again"
        ) from error
