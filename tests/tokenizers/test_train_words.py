"""Word and character vocabularies, and the token that ends a text."""

import collections
import json
import pickle

import numpy as np
import pytest

from firth.errors import FirthError
from firth.tokenizers.load import load_tokenizer, train_tokenizer
from firth.tokenizers.word_cache import CachedTokenizer

LINES = [
    " the <unk> vase broke when it fell ",
    "nobody minded the fall , and N saw it",
    "the\u00a0vase\tfell  twice \u3000 é é E\u0301 \u0130\x1cx",
    "",
    "<eos> ends",
]


def tokens_of(tokenizer, text, **options):
    return [tokenizer.token(n) for n in tokenizer.encode([text], **options)[0].ids]


def test_every_type_has_an_id_the_frequent_ones_first():
    tokenizer = train_tokenizer("word", LINES)
    assert tokenizer.kind == "word" and tokenizer.vocab[:4] == ["<unk>", "<eos>", "the", "fell"]
    counts = collections.Counter(w for t in LINES for w in t.replace("\x1c", "_").split())
    types = {t.replace("_", "\x1c") for t in counts} | {"<unk>", "<eos>"}
    assert sorted(tokenizer.vocab) == sorted(types)
    frequencies = [counts[t.replace("\x1c", "_")] for t in tokenizer.vocab[2:]]
    assert frequencies == sorted(frequencies, reverse=True)
    assert tokenizer.vocab == train_tokenizer("word", reversed(LINES)).vocab
    assert (tokenizer.unk_id, tokenizer.end_id, tokenizer.pad_id) == (0, 1, None)
    assert tokenizer.special_ids == {0, 1} and tokenizer.word_starts.all()
    assert tokens_of(tokenizer, " the  cat\tfell\u2003") == ["the", "<unk>", "fell"]
    assert tokens_of(tokenizer, "a<unk>b <unk> <eos>") == ["<unk>"] * 2 + ["<eos>"]
    encoded = tokenizer.encode(["the cat  fell"])[0]
    assert encoded.offsets.tolist() == [[0, 3], [4, 7], [9, 13]]
    assert encoded.words.tolist() == [0, 1, 2]
    assert tokenizer.decode(encoded.ids, skip_special=False) == "the <unk> fell"


def test_rare_types_and_those_beyond_the_size_are_cut():
    assert train_tokenizer("word", LINES, 4).vocab == ["<unk>", "<eos>", "the", "fell"]
    frequent = train_tokenizer("word", LINES, min_frequency=2).vocab
    assert frequent == ["<unk>", "<eos>", "the", "fell", "it", "vase", "é"]
    lower = train_tokenizer("word", ["The THE Ångström", "É"], lowercase=True)
    assert lower.vocab == ["<unk>", "<eos>", "the", "angstrom", "e"]
    assert tokens_of(lower, "tHe ångström x") == ["the", "angstrom", "<unk>"]
    kept = train_tokenizer("word", ["The É"], lowercase=True, strip_accents=False)
    assert kept.vocab == ["<unk>", "<eos>", "the", "é"]
    named = train_tokenizer("word", LINES, special_tokens={"pad": "<pad>", "unk": "UNK"})
    assert named.vocab[:3] == ["UNK", "<pad>", "<eos>"] and "<unk>" in named.vocab[3:]
    assert (named.pad_id, named.unk_id) == (1, 0) and tokens_of(named, "cat") == ["UNK"]


def test_characters():
    tokenizer = train_tokenizer("char", [*LINES, "a\n\r\n😀"])
    characters = {c for line in LINES for c in line} | set("\n\r😀a")
    assert tokenizer.kind == "char" and set(tokenizer.vocab[2:]) == characters
    assert tokenizer.vocab[:3] == ["<unk>", "<eos>", " "] and tokenizer.word_starts.all()
    for text in [*LINES, "\n\r\n😀  <eos>", " "]:
        encoded = tokenizer.encode([text])[0]
        assert tokens_of(tokenizer, text) == list(text)
        assert encoded.offsets.tolist() == [[n, n + 1] for n in range(len(text))]
        assert tokenizer.decode(encoded.ids) == text
    assert tokens_of(tokenizer, "q") == ["<unk>"]
    assert tokens_of(tokenizer, "it<eos>", special=True) == ["i", "t", "<eos>"]
    lower = train_tokenizer("char", ["Éa"], lowercase=True)
    assert lower.vocab == ["<unk>", "<eos>", "a", "e"] and tokens_of(lower, "AÉ") == ["a", "e"]


@pytest.mark.parametrize("kind", ["word", "char"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_saved_layout_loads_here_and_in_transformers(tmp_path, kind, lowercase):
    import transformers

    tokenizer = train_tokenizer(kind, LINES, lowercase=lowercase)
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.describe() == tokenizer.describe() and again.vocab == tokenizer.vocab
    assert (again.end_id, again.chunks) == (tokenizer.end_id, tokenizer.chunks)
    assert (again.special_ids, again.kind) == (tokenizer.special_ids, kind)
    texts = [*LINES, "unknown Words 中文", "  ", "a  b", "\u0301 x"]
    ids, lengths = tokenizer.encode_flat(texts)
    assert lengths.tolist() == [len(e.ids) for e in tokenizer.encode(texts)]
    restored = pickle.loads(pickle.dumps(tokenizer))
    for other in (again, restored, CachedTokenizer(tokenizer), CachedTokenizer(restored)):
        other_ids, other_lengths = other.encode_flat(texts)
        assert np.array_equal(other_ids, ids) and np.array_equal(other_lengths, lengths)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.unk_token_id, theirs.eos_token_id) == (0, 1)
    plain = [text for text in texts if "<" not in text]  # which transformers takes for special
    expected = [tokenizer.encode_flat([text])[0].tolist() for text in plain]
    assert theirs(plain)["input_ids"] == expected


def test_kinds_differ_in_digest_and_casing_is_what_was_trained(tmp_path):
    digests = {
        train_tokenizer(kind, ["a b c"], lowercase=low).digest
        for kind in ("word", "char")
        for low in (True, False)
    }
    assert len(digests) == 4
    train_tokenizer("word", ["a B"]).save(tmp_path)
    with pytest.raises(FirthError, match="cannot be lowercased"):
        load_tokenizer(tmp_path, lowercase=True)


def test_bad_vocabularies_are_refused(tmp_path):
    with pytest.raises(FirthError, match="vocabulary of 2 is too small: special tokens alone"):
        train_tokenizer("word", LINES, 2)
    with pytest.raises(FirthError, match="no word that occurs at least 9 times"):
        train_tokenizer("word", LINES, min_frequency=9)
    with pytest.raises(FirthError, match="no char that occurs"):
        train_tokenizer("char", [])
    train_tokenizer("word", LINES).save(tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    state["model"]["unk_token"] = "[UNK]"
    (tmp_path / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(FirthError, match=r"unk token '\[UNK\]' is not in the vocabulary"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("bert-base-uncased-vocab.txt", "[SEP]"),
        ("roberta-base-vocab.json", "<|endoftext|>"),  # it has GPT-2's, and </s> too
        ("xlnet-base-cased-spiece.model", "<eod>"),
    ],
)
def test_the_token_that_ends_a_text(shared_data, name, end):
    tokenizer = load_tokenizer(shared_data(f"vocabs/{name}"))
    assert tokenizer.token(tokenizer.end_id) == end


def test_the_token_that_ends_a_text_follows_from_the_vocabulary(tmp_path):
    texts, own = ["a b c d"], {"sep": "<end>"}
    names = dict(cls="<s>", sep="<|endoftext|>")
    bpe = train_tokenizer("bpe", texts, 300, special_tokens=names)
    assert bpe.token(bpe.end_id) == "<|endoftext|>"
    wordpiece = train_tokenizer("wordpiece", texts, 300, special_tokens=own)
    assert wordpiece.token(wordpiece.end_id) == "<end>"
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    assert load_tokenizer(tmp_path).end_id is None
