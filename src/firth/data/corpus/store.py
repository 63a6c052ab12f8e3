"""The corpus store: a tokenised corpus as flat arrays in a directory; views memory-map them.

    tokens.npy      uint16 (vocabulary <= 65,536) or uint32 [T]: all token ids, no special tokens
    sentences.npy   int64 [S+1]: where each sentence begins in tokens; the last entry is T
    documents.npy   int64 [D+1]: where each document begins in sentences; the last entry is S
    tokenizer/      the tokenizer in its published layout
    manifest.json   version, counts, tokenizer digest, options, size and sha256 of every file, and
                    the sha256 of this text without that entry

No sentence and no document is empty. With `firth prepare --sentences=newline` line ends are tokens.
The bytes depend only on the text, the tokenizer and the options: they hold no dates and no absolute
paths.
"""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from firth.data.corpus.manifest import ARRAYS, read_manifest
from firth.data.corpus.staging import stage
from firth.errors import FirthError
from firth.storage.local import sha256
from firth.storage.places import instead
from firth.storage.remote import is_url
from firth.tokenizers.base import Tokenizer
from firth.tokenizers.load import load_tokenizer

_COUNTED_AT_ONCE = 1 << 24  # tokens


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
        """T; the store has no special tokens."""
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
        """The frequency of each token of the vocabulary, int64 [vocab_size]; reads all tokens."""
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
        """Raise FirthError, naming the file, if a file has changed since the store was opened.

        Reads only files whose size, time or inode differ.
        """
        for name, entry in self.manifest["files"].items():
            stamp = _stamp(self.path / name)
            if self.stamps.setdefault(name, stamp) == stamp:
                continue
            try:
                _check_file(self.path / name, entry, verify=True)
            except FirthError as error:
                raise FirthError(f"the store has changed under this run: {error}") from None
            self.stamps[name] = stamp  # the same content with another time or inode

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise FirthError unless `tokenizer` maps text to ids exactly as the store's own does."""
        own = self.manifest["tokenizer"]
        if tokenizer.digest != own["digest"]:
            raise FirthError(
                f"{self.path} was made with another tokenizer ({own['kind']}, "
                f"{own['vocab_size']:,} tokens, digest {own['digest'][:12]}) than the one given "
                f"({tokenizer.kind}, {tokenizer.vocab_size:,} tokens, digest "
                f"{tokenizer.digest[:12]}); use {self.path / 'tokenizer'} or prepare the corpus "
                "again with the other one"
            )


def open_store(path: str | os.PathLike, verify: bool = True) -> Store:
    """Open the store in directory `path`, or download the store at a URL (gs://...) and open it.

    Always checks sizes, dtypes and lengths. `verify` also checks the sha256 of every file (one
    sequential read, about a second per gigabyte). Raises FirthError, naming the damaged file.
    """
    if is_url(path):
        path = stage(path)
    path = Path(path)
    manifest_path = path / "manifest.json"
    try:
        text = manifest_path.read_bytes()
    except OSError as error:
        raise FirthError(
            f"{path} is not a corpus store: cannot read manifest.json ({error.strerror})"
            f"{instead(path)}; make one with firth prepare"
        ) from None
    manifest = read_manifest(manifest_path, text)
    stamps = {name: _stamp(path / name) for name in manifest["files"]}
    for name, entry in manifest["files"].items():
        _check_file(path / name, entry, verify)
    tokens, sentences, documents = (_map_array(path / name) for name in ARRAYS)
    _check_lengths(path, manifest, tokens, sentences, documents)
    digest = hashlib.sha256(text).hexdigest()
    return Store(path, tokens, sentences, documents, manifest, digest, stamps)


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
            "(the same command downloads a remote store again) or prepare the corpus again"
        )


def _stamp(path: Path) -> tuple | None:
    """(size, time of the last change, inode), which change with a file; None without the file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


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
