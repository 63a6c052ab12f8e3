"""An open corpus store: what it refuses, and that damage is named."""

import os

import numpy as np
import pytest
from helpers.corpora import append, random_ids
from helpers.damage import flip, truncate

from firth.data.corpus.store import open_store
from firth.data.corpus.writer import StoreWriter
from firth.errors import FirthError
from firth.tokenizers.load import train_tokenizer


def test_tokens_are_read_only(tmp_path, tokenizer):
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        writer.append([1, 2], [2], [1])
    store = open_store(tmp_path / "store")
    assert isinstance(store.tokens, np.memmap)
    with pytest.raises(ValueError):
        store.tokens[0] = 3


def test_another_tokenizer_is_refused(tmp_path, tokenizer):
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        writer.append([1, 2], [2], [1])
    store = open_store(tmp_path / "store")
    store.check_tokenizer(tokenizer)
    assert store.tokenizer().digest == tokenizer.digest
    other = train_tokenizer("wordpiece", ["the vase broke"] * 3, 100, lowercase=False)
    with pytest.raises(FirthError, match="was made with another tokenizer"):
        store.check_tokenizer(other)


FILES = ("tokens.npy", "sentences.npy", "documents.npy", "tokenizer/vocab.txt", "manifest.json")


@pytest.mark.parametrize("harm", [truncate, flip, os.remove])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_named(tmp_path, tokenizer, name, harm):
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        append(writer, random_ids(0, tokenizer.vocab_size))
    path = tmp_path / "store" / name
    harm(path)
    with pytest.raises(FirthError) as caught:
        store = open_store(tmp_path / "store")
        assert store.digest is None, "damage went unseen"
    assert os.path.basename(name) in str(caught.value)
    if harm is flip and name != "manifest.json":
        open_store(tmp_path / "store", verify=False)  # sizes alone do not show it


# ------------------------------------------------------------------- changed while it is in use


def test_a_file_that_changes_under_an_open_store_is_named(tmp_path, tokenizer):
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        append(writer, random_ids(0, tokenizer.vocab_size))
    store = open_store(tmp_path / "store")
    store.check_unchanged()
    for name in ("tokens.npy", "documents.npy", "tokenizer/tokenizer.json"):
        path = store.path / name
        whole = path.read_bytes()
        path.write_bytes(whole)  # another time, the same bytes
        os.utime(path, ns=(0, 0))
        store.check_unchanged()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # in place, of the same size
        with pytest.raises(FirthError, match=f"changed under this run.*{name} is damaged"):
            store.check_unchanged()
        path.unlink()
        with pytest.raises(FirthError, match=f"changed under this run.*{name}"):
            store.check_unchanged()
        path.write_bytes(whole)  # another inode, the same bytes
        store.check_unchanged()
