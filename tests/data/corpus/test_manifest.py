"""The manifest of a corpus store: its dtype of tokens, its version."""

import json

import numpy as np
import pytest

from firth.data.corpus.manifest import token_dtype
from firth.data.corpus.store import open_store
from firth.data.corpus.writer import StoreWriter
from firth.errors import FirthError


def test_token_dtype_holds_every_id():
    assert token_dtype(65_536) == np.uint16 and token_dtype(65_537) == np.uint32


def test_a_store_of_another_version_is_refused(tmp_path, tokenizer):
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        writer.append([1], [1], [1])
    path = tmp_path / "store" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 3}))
    with pytest.raises(FirthError, match="version 3, but this Firth reads versions 1 and 2"):
        open_store(tmp_path / "store")
    with pytest.raises(FirthError, match="not a corpus store"):
        open_store(tmp_path)
