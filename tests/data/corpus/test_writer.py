"""Writing a corpus store: what goes in comes out, and a failure leaves nothing."""

import os
import subprocess
import sys

import numpy as np
import pytest
from helpers.corpora import append, random_ids

from firth.data.corpus.store import open_store
from firth.data.corpus.writer import StoreWriter
from firth.errors import FirthError


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
    documents = random_ids(seed, tokenizer.vocab_size)
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
    documents = random_ids(1, tokenizer.vocab_size)
    for name, step in (("one", 1), ("many", 7)):
        with StoreWriter(tmp_path / name, tokenizer, input=[]) as writer:
            for n in range(0, len(documents), step):
                append(writer, documents[n : n + step])
    for file in ("tokens.npy", "sentences.npy", "documents.npy", "manifest.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "many" / file).read_bytes()
    assert open_store(tmp_path / "one").digest == open_store(tmp_path / "many").digest


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
