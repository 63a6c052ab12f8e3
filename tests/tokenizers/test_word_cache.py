"""Remembering words must never change an id."""

import random

import numpy as np
import pytest

from firth.tokenizers.load import load_tokenizer, train_tokenizer
from firth.tokenizers.word_cache import CachedTokenizer, SpanTokenizer

WORDS = """the vase broke. “Quoted” café cafe\u0301 \u0301 中文字 don't 'tis a\tb c U.S. 3.14 [MASK]
<mask> ##s x\u00a0y \x00 ﬁne a\u3000b \u200d 😀 \ufdd0 \ufffd x\x1cy naïve \t""".replace("\n", " ")
WORDS = WORDS.split(" ")


def texts_of(words, count, seed):
    """Texts with single, double and no spaces between odd words, some ending in spaces."""
    rng = random.Random(seed)
    gaps = [" ", " ", " ", " ", "  ", "   ", "\t", " \t ", "\n ", ""]
    return [
        "".join(rng.choice(words) + rng.choice(gaps) for _ in range(rng.randrange(12)))
        for _ in range(count)
    ]


def assert_equal(cached, texts):
    expected, lengths = cached.tokenizer.encode_flat(texts)
    found, found_lengths = cached.encode_flat(texts)
    np.testing.assert_array_equal(found_lengths, lengths)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("bert-base-uncased-vocab.txt", "words"),
        ("bert-base-cased-vocab.txt", "words"),
        ("roberta-base-vocab.json", "spaced words"),
        ("xlnet-base-cased-spiece.model", "words"),
        ("t5-small-tokenizer.json", None),
    ],
)
@pytest.mark.parametrize("memory", [1 << 20, 20_000])
def test_same_ids_as_the_tokenizer(shared_data, name, chunks, memory):
    tokenizer = load_tokenizer(shared_data(f"vocabs/{name}"))
    assert tokenizer.chunks == chunks
    cached = CachedTokenizer(tokenizer, memory=memory)  # the small one forgets between calls
    for seed in range(5):
        assert_equal(cached, texts_of(WORDS, 150, seed))
    assert_equal(cached, [])
    assert_equal(cached, [""])
    assert_equal(cached, ["", "vase", "", " ", "a vase"])


def test_runs_of_spaces_that_are_tokens():
    code = ["if vase:\n    for piece in vase:\n        mend(piece)  # twice   over"] * 5
    tokenizer = train_tokenizer("bpe", code, 300)
    assert {"ĠĠĠ", "ĠĠ"} & set(tokenizer.vocab)
    assert_equal(CachedTokenizer(tokenizer), code + texts_of(WORDS, 300, seed=0))


def test_encode_words_is_encode_flat(shared_data):
    for name in ("bert-base-uncased-vocab.txt", "roberta-base-vocab.json"):
        tokenizer = load_tokenizer(shared_data(f"vocabs/{name}"))
        for words in (
            WORDS,
            [w for w in WORDS if "\ufdd0" not in w] * 40,
            [],
            ["", ""],
            ["\ufdd0"],
        ):
            expected, found = tokenizer.encode_flat(words), tokenizer.encode_words(words)
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_array_equal(found[1], expected[1])


def test_each_word_is_encoded_once_and_memory_stays_bounded():
    tokenizer = train_tokenizer("wordpiece", ["the vase broke"] * 3, 60)
    calls = []
    encode_words = tokenizer.encode_words
    tokenizer.encode_words = lambda words: calls.extend(words) or encode_words(words)
    cached = CachedTokenizer(tokenizer)
    for _ in range(3):
        cached.encode_flat(["the vase broke the vase", "the vase"])
    assert sorted(calls) == ["broke", "the", "vase"]
    cached = CachedTokenizer(tokenizer, memory=100_000)
    for n in range(200):
        cached.encode_flat([" ".join(f"w{n}x{k}" for k in range(50))])
        assert len(cached._table) < 1000


@pytest.mark.parametrize(
    "name",
    [
        "bert-base-cased-vocab.txt",
        "roberta-base-vocab.json",
        "xlnet-base-cased-spiece.model",
        "t5-small-tokenizer.json",
    ],
)
def test_same_characters_as_the_tokenizer(shared_data, name):
    tokenizer = load_tokenizer(shared_data(f"vocabs/{name}"))
    cached = SpanTokenizer(tokenizer, memory=20_000)
    several = (texts_of(WORDS, 400, seed) for seed in range(3))
    for texts in (*several, [], [""], ["", "vase", "", " ", "a vase"], ["x\u00a0", "\t", " \t"]):
        ids, spans, lengths = cached.encode_spans(texts)
        expected = tokenizer.encode(texts)
        assert lengths.tolist() == [len(one.ids) for one in expected]
        ends = np.cumsum(lengths)
        for one, begin, end in zip(expected, ends - lengths, ends, strict=True):
            np.testing.assert_array_equal(ids[begin:end], one.ids)
            np.testing.assert_array_equal(spans[begin:end], one.offsets)
        assert_equal(cached, texts)
