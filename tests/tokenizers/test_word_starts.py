"""Which tokens of unigram vocabularies begin a word, as XLNet's and ALBERT's data code decides."""

import functools
import json
import lzma
import re

import jax
import numpy as np
import pytest
from helpers.quick import jit

from firth.objectives import spans
from firth.tokenizers.load import train_tokenizer
from firth.tokenizers.sentencepiece import load_pieces

# The rules of the two codes as expressions on a piece, written from their sets of characters.
XLNET = re.compile(r"[▁<].*|[!-&(-/:;?@\[-`{-~]", re.DOTALL)
ALBERT = re.compile(XLNET.pattern + r"|.*[^A-Za-z!-&(-/:;?@\[-`{-~].*", re.DOTALL)
RULES = {"XLNetTokenizer": XLNET, "AlbertTokenizer": ALBERT, "T5Tokenizer": re.compile("▁.*")}
RULES[""] = XLNET  # by its special tokens, where no file says what class it is of


@functools.cache
def xlnet(path, name):
    return load_pieces(path, {"tokenizer_class": name} if name else {})


@pytest.fixture
def vocabulary(shared_data):
    """The published XLNet vocabulary, as the tokenizer of a class."""
    return functools.partial(xlnet, shared_data("vocabs/xlnet-base-cased-spiece.model"))


@pytest.mark.parametrize("name", RULES)
def test_word_starts_are_those_of_the_released_code(vocabulary, name):
    tokenizer = vocabulary(name)
    specials = np.isin(np.arange(tokenizer.vocab_size), list(tokenizer.special_ids))
    expected = np.array([bool(RULES[name].fullmatch(piece)) for piece in tokenizer.vocab])
    assert len(specials) == 32_000 and 0 < specials.sum() < 10
    wrong = np.flatnonzero(tokenizer.word_starts != (expected | specials))
    assert [tokenizer.token(n) for n in wrong] == []


@pytest.mark.parametrize(
    ("name", "starts", "continues"),
    [
        ("XLNetTokenizer", '. , ( ) " - $ <eop> <sep>', "s ' > = 2 19 ing €"),
        ("AlbertTokenizer", ". , ( ) \" - $ <eop> <sep> 2 19 € ' > =", "s ing"),
        ("T5Tokenizer", "<sep> ▁the", ". , ( ) s 2 19 ing €"),
    ],
)
def test_what_begins_a_word(vocabulary, name, starts, continues):
    tokenizer = vocabulary(name)
    for pieces, expected in ((starts, True), (continues, False)):
        ids = [tokenizer.id(piece) for piece in pieces.split()]
        assert tokenizer.word_starts[ids].tolist() == [expected] * len(ids)


def test_the_share_of_the_tokens_of_text_that_begin_a_word(vocabulary, shared_data):
    """An eighth of Wikipedia's tokens begins a word beside those after a space."""
    with lzma.open(shared_data("wikipedia_en_sample/articles.jsonl.xz"), "rt") as lines:
        texts = [json.loads(line)["text"] for _, line in zip(range(60), lines, strict=False)]
    tokenizer = vocabulary("XLNetTokenizer")
    ids, _ = tokenizer.encode_flat(texts)
    spaced = np.array([piece.startswith("▁") for piece in tokenizer.vocab])[ids]
    assert not (spaced & ~tokenizer.word_starts[ids]).any()
    assert 0.10 < (tokenizer.word_starts[ids] & ~spaced).mean() < 0.14
    assert 0.01 < (~tokenizer.word_starts[ids]).mean() < 0.3


def test_digest_and_words_are_what_they_were(vocabulary):
    """Stores made before know their tokenizer again; words of text still go by spaces."""
    tokenizer = vocabulary("XLNetTokenizer")
    assert tokenizer.digest == "b136d5063ebd88518476c6fd9a4308429f1ffcedd15e85fef08df44d8c9a9b45"
    encoded = tokenizer.encode(["The cat (1) sat."])[0]
    pieces = [tokenizer.token(n) for n in encoded.ids]
    assert pieces == ["▁The", "▁cat", "▁", "(", "1", ")", "▁sat", "."]
    assert encoded.words.tolist() == [0, 1, 2, 2, 2, 2, 3, 3]


def test_a_full_stop_is_an_ngram_of_its_own():
    """Lone words chosen until all are: no run joins the stop to the word before it."""
    text = "The cat sat. The dog sat. A cat, a dog. " * 40
    tokenizer = train_tokenizer("unigram", [text], 60)
    ids = tokenizer.encode(["the cat sat. the dog"])[0].ids
    pieces = [tokenizer.token(n) for n in ids]
    stop, rows = pieces.index("."), 400
    begins = [n for n, piece in enumerate(pieces) if piece.startswith("▁")]
    place = jit(functools.partial(spans.place_spans, length_probs=[1.0]))
    tile = functools.partial(np.tile, reps=(rows, 1))
    sizes = place(
        jax.random.split(jax.random.key(0), rows),
        tile(np.ones(len(ids), bool)),
        tile(tokenizer.word_starts[ids]),
        np.full(rows, len(ids)),
    )
    assert (np.asarray(sizes)[:, stop] == 1).all()
    borders = sorted({*begins, stop, len(ids)})
    lengths = np.diff(borders)
    assert (np.asarray(sizes)[:, borders[:-1]] == lengths).all()
