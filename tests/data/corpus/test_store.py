"""The corpus store: what goes in comes out, and damage is named."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from firth.data.corpus.manifest import token_dtype
from firth.data.corpus.store import open_store
from firth.data.corpus.writer import StoreWriter
from firth.errors import FirthError
from firth.tokenizers.load import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("wordpiece", ["the vase broke when it fell off the table"] * 3, 100)


def random_corpus(seed, size):
    """Documents of sentences of token ids; some documents are empty."""
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(0, size, rng.integers(1, 9)) for _ in range(rng.integers(0, 5))]
        for _ in range(60)
    ]


def append(writer, documents, continued=False):
    sentences = [s for document in documents for s in document]
    tokens = np.concatenate([*sentences, np.zeros(0, int)])
    writer.append(tokens, [len(s) for s in sentences], [len(d) for d in documents], continued)


def read(store):
    """The store as documents of sentences of ids."""
    sentences = np.split(store.tokens, store.sentences[1:-1])
    return [
        [s.tolist() for s in sentences[begin:end]]
        for begin, end in zip(store.documents, store.documents[1:], strict=False)
    ]


def as_lists(documents):
    return [[s.tolist() for s in d] for d in documents if d]


@pytest.mark.parametrize("seed", range(5))
def test_documents_come_back_however_they_were_cut(tmp_path, tokenizer, seed):
    documents = random_corpus(seed, tokenizer.vocab_size)
    rng = np.random.default_rng(seed)
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        rest, continued = documents, False
        while rest:
            take = int(rng.integers(0, 4))
            split = int(rng.integers(0, len(rest[0]) + 1)) if take == 0 else 0
            if take:
                append(writer, rest[:take], continued)
                rest, continued = rest[take:], False
            else:  # cut inside a document, perhaps before its first or after its last sentence
                append(writer, [rest[0][:split]], continued)
                rest, continued = [rest[0][split:], *rest[1:]], True
    store = open_store(tmp_path / "store")
    expected = as_lists(documents)
    assert read(store) == expected
    assert store.num_documents == len(expected) == store.manifest["documents"]
    assert store.num_sentences == sum(map(len, expected)) == store.manifest["sentences"]
    assert store.num_tokens == sum(len(s) for d in expected for s in d)
    assert store.sentences.dtype == store.documents.dtype == np.int64
    assert os.listdir(tmp_path) == ["store"]


def test_cuts_do_not_change_a_byte(tmp_path, tokenizer):
    documents = random_corpus(1, tokenizer.vocab_size)
    for name, step in (("one", 1), ("many", 7)):
        with StoreWriter(tmp_path / name, tokenizer, input=[]) as writer:
            for n in range(0, len(documents), step):
                append(writer, documents[n : n + step])
    for file in ("tokens.npy", "sentences.npy", "documents.npy", "manifest.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "many" / file).read_bytes()
    assert open_store(tmp_path / "one").digest == open_store(tmp_path / "many").digest


def test_token_dtype_holds_every_id():
    assert token_dtype(65_536) == np.uint16 and token_dtype(65_537) == np.uint32


def test_tokens_are_read_only(tmp_path, tokenizer):
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        writer.append([1, 2], [2], [1])
    store = open_store(tmp_path / "store")
    assert isinstance(store.tokens, np.memmap)
    with pytest.raises(ValueError):
        store.tokens[0] = 3


@pytest.mark.parametrize(
    "part", [([1, 2], [1], [1]), ([1], [1, 0], [2]), ([1], [1], [2]), ([10_000], [1], [1])]
)
def test_inconsistent_parts_are_refused_and_leave_nothing(tmp_path, tokenizer, part):
    with pytest.raises(ValueError), StoreWriter(tmp_path / "store", tokenizer) as writer:
        writer.append(*part)
    assert os.listdir(tmp_path) == []


def test_an_existing_store_is_not_replaced(tmp_path, tokenizer):
    (tmp_path / "store").mkdir()
    with pytest.raises(FirthError, match="exists"), StoreWriter(tmp_path / "store", tokenizer):
        pass


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


def truncate(data):
    return data[:-3]


def flip_a_bit(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, None])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_named(tmp_path, tokenizer, name, damage):
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        append(writer, random_corpus(0, tokenizer.vocab_size))
    path = tmp_path / "store" / name
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FirthError) as caught:
        store = open_store(tmp_path / "store")
        assert store.digest is None, "damage went unseen"
    assert os.path.basename(name) in str(caught.value)
    if damage is flip_a_bit and name != "manifest.json":
        open_store(tmp_path / "store", verify=False)  # sizes alone do not show it


def test_a_store_of_another_version_is_refused(tmp_path, tokenizer):
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        writer.append([1], [1], [1])
    path = tmp_path / "store" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 3}))
    with pytest.raises(FirthError, match="version 3, but this Firth reads versions 1 and 2"):
        open_store(tmp_path / "store")
    with pytest.raises(FirthError, match="not a corpus store"):
        open_store(tmp_path)


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path):
    """A file-size limit stands in for the full disk: write() fails with OSError just so."""
    program = """
import resource, sys, numpy as np
from firth.data.corpus.writer import StoreWriter
from firth.tokenizers.load import train_tokenizer
from firth.errors import FirthError
tokenizer = train_tokenizer("wordpiece", ["the vase broke"] * 3, 60)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    with StoreWriter(sys.argv[1] + "/store", tokenizer) as writer:
        for _ in range(100):
            writer.append(np.ones(100_000), [100_000], [1])
except FirthError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "cannot write" in done.stdout and "store" in done.stdout
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------- changed while it is in use


def test_a_file_that_changes_under_an_open_store_is_named(tmp_path, tokenizer):
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        append(writer, random_corpus(0, tokenizer.vocab_size))
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
