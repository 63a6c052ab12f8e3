"""Line ends as tokens of a store, and the counts published with language-modelling corpora."""

import gzip

import numpy as np
import pytest
from helpers.views import streams

from firth.commands.prepare import main
from firth.data.corpus.parts import Options
from firth.data.corpus.prepare import prepare
from firth.data.corpus.store import open_store
from firth.errors import FirthError
from firth.tokenizers.load import load_tokenizer, train_tokenizer

NO_IDS = {"cls_id": None, "sep_id": None, "pad_id": None}


def prepared(tmp_path, name, source, kind, *options):
    """The store of one file, with the tokenizer of the first file prepared under tmp_path."""
    arguments = ["--input", str(source), "--tokenizer", str(tmp_path / "tokenizer")]
    arguments += ["--output", str(tmp_path / name), f"--train-tokenizer={kind}", "--workers=1"]
    assert main([*arguments, *options]) == 0
    return open_store(tmp_path / name)


def line_of(store, ends):
    return streams(store, 35, end_id=store.tokenizer().end_id, ends=ends, **NO_IDS)


def test_line_ends_are_tokens_where_asked_for(tmp_path):
    text = "a b\n\n \n c\n\n\nb" + 40 * " b" + "\nlast"
    (tmp_path / "corpus.txt").write_text(text)
    tokenizer = train_tokenizer("word", text.split("\n"))
    options = Options(sentences="newline", document="file")
    stores = [
        prepare([str(tmp_path / "corpus.txt")], tokenizer, tmp_path / str(size), options, workers=1,
                block_bytes=size)
        for size in (1 << 20, 24)
    ]  # fmt: skip
    expected = text.replace("\n", " <eos> ").split()
    for store in stores:
        assert [tokenizer.token(n) for n in store.tokens] == expected
        assert store.num_documents == 1
    begins = [0, *(n + 1 for n, token in enumerate(expected) if token == "<eos>"), len(expected)]
    assert stores[0].sentences.tolist() == begins
    assert set(begins) < set(stores[1].sentences.tolist())  # a line that fills blocks is cut


def test_characters_of_a_corpus_are_kept(tmp_path):
    text = "two  spaces \n\n and a long line" + " of words" * 30 + "\n"
    (tmp_path / "corpus.txt").write_text(text)
    tokenizer = train_tokenizer("char", text.split("\n"))
    options = Options(sentences="newline", document="file")
    store = prepare([str(tmp_path / "corpus.txt")], tokenizer, tmp_path / "store", options,
                    workers=1, block_bytes=50)  # fmt: skip
    tokens = [tokenizer.token(n) for n in store.tokens]
    assert "".join("\n" if token == "<eos>" else token for token in tokens) == text


def test_line_ends_that_cannot_be_kept_are_refused(tmp_path):
    (tmp_path / "corpus.txt").write_text("a\n")
    source = [str(tmp_path / "corpus.txt")]
    words = train_tokenizer("word", ["a b"])
    with pytest.raises(FirthError, match="give --document=file"):
        prepare(source, words, tmp_path / "store", Options(sentences="newline"))
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    without = load_tokenizer(tmp_path / "vocab.txt")
    with pytest.raises(FirthError, match="this wordpiece tokenizer has none"):
        prepare(source, without, tmp_path / "store", Options(sentences="newline", document="file"))


@pytest.mark.parametrize("options", [["--sentences=line"], ["--sentences=newline"]])
def test_penn_treebank_has_the_published_counts(shared_data, tmp_path, options):
    """Mikolov et al. 2011: 10,000 types; the lines' ends are read as <eos>."""
    ends = "sentence" if options == ["--sentences=line"] else "none"
    counts = {"train": 929_589, "valid": 73_760, "test": 82_430}
    for split, count in counts.items():
        source = shared_data(f"ptb/ptb.{split}.txt.gz")
        store = prepared(tmp_path, split, source, "word", "--document=file", *options)
        tokenizer = store.tokenizer()
        assert line_of(store, ends).num_tokens == count
        assert tokenizer.vocab_size == 10_000
        assert np.all(store.token_counts()[2:] > 0) or split != "train"
        with gzip.open(source, "rt", encoding="utf-8") as file:
            assert store.num_sentences == sum(1 for _ in file)
    view = line_of(open_store(tmp_path / "train"), ends)
    assert view.steps(20) == 1327  # as in TensorFlow's tutorial
    row = [tokenizer.token(n) for n in view.batch(0, 20)["tokens"][0]]
    assert row[:2] == ["aer", "banknote"]
    assert row[22:28] == ["swapo", "wachter", "<eos>", "pierre", "<unk>", "N"]


def test_wikitext_2_has_the_published_counts(shared_data, tmp_path):
    """Merity et al. 2016: 33,278 types; every line end is <eos>, those of blank lines too."""
    counts = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
    for split, count in counts.items():
        source = shared_data(f"wikitext-2/wiki.{split}.tokens.gz")
        options = ["--sentences=newline", "--document=file"]
        store = prepared(tmp_path, split, source, "word", *options)
        assert store.num_tokens == line_of(store, "none").num_tokens == count
        assert store.tokenizer().vocab_size == 33_278
