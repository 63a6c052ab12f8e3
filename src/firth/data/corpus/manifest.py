"""The manifest of a corpus store (manifest.json) and the layout of the files beside it."""

import hashlib
import json
import os

import numpy as np

from firth.errors import FirthError

VERSION = 2  # 1 is the same without the manifest's own checksum
ARRAYS = ("tokens.npy", "sentences.npy", "documents.npy")


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned type for every id: uint16 up to 65,536 ids, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def read_manifest(path: str | os.PathLike, text: bytes) -> dict:
    """Parse the manifest `text` of `path`; FirthError if it is damaged or of another version."""
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
    """The text of a manifest with its own checksum."""
    manifest = {name: value for name, value in manifest.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    return json.dumps(manifest | {"sha256": digest}, indent=2, ensure_ascii=False) + "\n"
