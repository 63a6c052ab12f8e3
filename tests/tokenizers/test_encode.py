# ruff: noqa: RUF001  (characters that look like others are what these tests are about)
"""Texts as tokens, against transformers, sentencepiece and the BERT code in plain Python."""

import itertools
import json
import random
import shutil
import unicodedata
from collections import Counter

import numpy as np
import pytest
from helpers.texts import ODD_TEXTS, SENTENCES, assert_same, random_texts

from firth.tokenizers import sentencepiece
from firth.tokenizers.load import load_tokenizer


def transformers_tokenizer(name, folder, **files):
    """A transformers tokenizer of the named class over copies of the given files."""
    import transformers

    for target, source in files.items():
        shutil.copy(source, folder / target.replace("__", "."))
    return getattr(transformers, name).from_pretrained(folder)


def plain(texts):
    """Without the strings that transformers takes for special tokens."""
    marks = (
        "[MASK]",
        "[CLS]",
        "[SEP]",
        "[PAD]",
        "[UNK]",
        "<mask>",
        "<s>",
        "</s>",
        "<pad>",
        "<unk>",
    )
    for mark in marks:
        texts = [text.replace(mark, "") for text in texts]
    return texts


@pytest.mark.parametrize("case", ["uncased", "cased"])
def test_wordpiece_equals_transformers(shared_data, tmp_path, articles, case):
    vocab = shared_data(f"vocabs/bert-base-{case}-vocab.txt")
    ours = load_tokenizer(vocab)  # casing found from the vocabulary
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": case == "uncased", "tokenizer_class": "BertTokenizer"})
    )
    theirs = transformers_tokenizer("BertTokenizer", tmp_path, vocab__txt=vocab)
    assert_same(ours, theirs, plain(ODD_TEXTS) + random_texts(300) + articles)
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (
        theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id,
        theirs.mask_token_id,
    )  # fmt: skip


def reference_wordpiece(text, vocab, lowercase):
    """The BERT code's tokenizer (systems.md 11.1) for ASCII text."""
    if lowercase:
        text = text.lower()
    words = "".join(f" {c} " if not c.isalnum() and not c.isspace() else c for c in text).split()
    for word in words:
        pieces, begin = [], 0
        while begin < len(word):
            candidates = (
                ("##" if begin else "") + word[begin:end] for end in range(len(word), begin, -1)
            )
            piece = next((c for c in candidates if c in vocab), None)
            if piece is None:
                pieces = ["[UNK]"]
                break
            pieces.append(piece)
            begin += len(piece) - 2 * (begin > 0)
        yield pieces


def test_wordpiece_is_greedy_longest_match(shared_data):
    tokenizer = load_tokenizer(shared_data("vocabs/bert-base-uncased-vocab.txt"))
    rng = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,'-$ABC   "
    texts = ["".join(rng.choices(letters, k=80)) for _ in range(100)] + SENTENCES
    for text, encoded in zip(texts, tokenizer.encode(texts), strict=True):
        words = list(reference_wordpiece(text, set(tokenizer.vocab), lowercase=True))
        assert [tokenizer.token(n) for n in encoded.ids] == [p for word in words for p in word]
        assert encoded.words.tolist() == [n for n, word in enumerate(words) for _ in word]
        starts = tokenizer.word_starts[encoded.ids]
        assert starts.tolist() == [n == 0 for word in words for n in range(len(word))]


def test_byte_level_bpe_equals_transformers(shared_data, tmp_path, articles):
    vocab = shared_data("vocabs/roberta-base-vocab.json")
    merges = shared_data("vocabs/roberta-base-merges.txt")
    theirs = transformers_tokenizer(
        "RobertaTokenizer", tmp_path, vocab__json=vocab, merges__txt=merges
    )
    ours = load_tokenizer(vocab)
    assert_same(ours, theirs, plain(ODD_TEXTS) + random_texts(300) + articles)
    (tmp_path / "gpt2").mkdir()
    theirs = transformers_tokenizer(
        "GPT2Tokenizer",
        tmp_path / "gpt2",
        vocab__json=shared_data("vocabs/gpt2-encoder.json"),
        merges__txt=shared_data("vocabs/gpt2-vocab.bpe"),
    )
    ours = load_tokenizer(tmp_path / "gpt2")
    assert ours.cls_id is None and ours.mask_id is None
    assert_same(ours, theirs, plain(ODD_TEXTS) + random_texts(300) + articles, offsets=False)


def test_byte_level_bpe_decodes_to_the_text(shared_data):
    tokenizer = load_tokenizer(shared_data("vocabs/roberta-base-vocab.json"))
    texts = ODD_TEXTS + random_texts(300)
    for text, encoded in zip(texts, tokenizer.encode(texts), strict=True):
        assert tokenizer.decode(encoded.ids, skip_special=False) == text
    starts = {tokenizer.token(n) for n in np.flatnonzero(tokenizer.word_starts)}
    assert {"Ġthe", "<mask>"} <= starts and not {"the", "ing", "."} & starts


def official_xlnet_text(text: str) -> str:
    """What the XLNet code does to text before sentencepiece (its `preprocess_text`)."""
    text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if not unicodedata.combining(c))


def test_unigram_equals_sentencepiece(shared_data, articles):
    import sentencepiece

    path = shared_data("vocabs/xlnet-base-cased-spiece.model")
    ours, model = load_tokenizer(path), sentencepiece.SentencePieceProcessor(model_file=str(path))
    quoted = ["``Quoted'' text with ''two'' kinds", "a`` b'' ``"]
    texts = [t for t in ODD_TEXTS if "control" not in t and "zero" not in t] + quoted + articles
    for text, encoded in zip(texts, ours.encode(texts), strict=True):
        ids = model.encode(official_xlnet_text(text), out_type=int)
        if encoded.ids.tolist() != ids:  # only ever another choice among equally probable ones
            assert Counter(encoded.ids.tolist()) == Counter(ids), text
    same = [
        e.ids.tolist() == model.encode(official_xlnet_text(t), out_type=int)
        for t, e in zip(articles, ours.encode(articles), strict=True)
    ]
    assert np.mean(same) > 0.99


def test_unigram_equals_transformers(shared_data, tmp_path, articles):
    path = shared_data("vocabs/xlnet-base-cased-spiece.model")
    theirs = transformers_tokenizer("XLNetTokenizer", tmp_path, spiece__model=path)
    # transformers 5 cuts text at the model's user-defined symbols as if they were special tokens,
    # and drops all marks (Mn, Mc, Me) where the XLNet code drops combining characters.
    texts = [t for t in ODD_TEXTS[:7] + articles if not set(t) & set('.(),"-–£€')]
    texts += [t.translate({ord(c): " " for c in '.(),"-–£€'}) for t in articles]
    assert len(texts) > 1000
    texts = [t for t in texts if "हिन्दी" not in t]
    assert_same(load_tokenizer(path), theirs, texts)


def test_control_pieces_are_special(shared_data):
    """No objective may choose or hide them."""
    tokenizer = load_tokenizer(shared_data("vocabs/xlnet-base-cased-spiece.model"))
    control = ("<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>")
    assert {tokenizer.token(n) for n in tokenizer.special_ids} >= {*control}


def test_a_flat_encoding_folds_as_any_other(shared_data):
    tokenizer = load_tokenizer(shared_data("vocabs/xlnet-base-cased-spiece.model"))
    texts = ["A na\u00efve ``caf\u00e9''", "", "two  words"]
    flat, lengths = tokenizer.encode_flat(texts)
    ids = [encoded.ids.tolist() for encoded in tokenizer.encode(texts)]
    assert lengths.tolist() == [len(row) for row in ids]
    assert flat.tolist() == [number for row in ids for number in row]


def test_folding_alone_is_folding_with_spans():
    """The fast way against the one that goes character by character."""
    rng = random.Random(0)
    letters = ["``", "''", "`", "'", "Σ", "ς", "İ", "ﬁ", "é", "e\u0301\u0316", "A", "\uac01", "㎭"]
    letters += [chr(rng.randrange(0x20, 0x3000)) for _ in range(300)]
    for choice in itertools.product((False, True), repeat=3):
        folding = sentencepiece._Folding(*choice)
        for _ in range(1000):
            text = "".join(rng.choices(letters[:13], k=4) + rng.choices(letters, k=4))
            assert folding.fold(text) == folding(text)[0]


def test_words_are_encoded_as_texts(shared_data):
    tokenizer = load_tokenizer(shared_data("vocabs/xlnet-base-cased-spiece.model"))
    for words in (["na\u00efve", "", "vase", "''66''"], ["a  vase", "b"], []):
        found, expected = tokenizer.encode_words(words), tokenizer.encode_flat(words)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_offsets_and_words_point_into_the_text(shared_data):
    for name in ("bert-base-cased-vocab.txt", "roberta-base-vocab.json"):
        tokenizer = load_tokenizer(shared_data(f"vocabs/{name}"))
        for text, encoded in zip(SENTENCES, tokenizer.encode(SENTENCES), strict=True):
            for number, (begin, end) in zip(encoded.ids, encoded.offsets, strict=True):
                token = tokenizer.token(number).removeprefix("##").removeprefix("Ġ")
                assert text[begin:end] == token
    tokenizer = load_tokenizer(shared_data("vocabs/xlnet-base-cased-spiece.model"))
    text = "The ﬁnest ``Ångström'' unit"
    encoded = tokenizer.encode([text])[0]
    words = {}
    for number, (begin, end) in zip(encoded.words.tolist(), encoded.offsets.tolist(), strict=True):
        words.setdefault(number, [begin, end])[1] = end
    spans = [text[begin:end] for begin, end in words.values()]
    assert spans == ["The", "ﬁnest", "``Ångström''", "unit"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("bert-base-uncased-vocab.txt", "the [MASK] fell", ["the", "[MASK]", "fell"]),
        ("roberta-base-vocab.json", "the <mask> fell", ["the", "<mask>", "Ġfell"]),
        ("xlnet-base-cased-spiece.model", "the <mask> fell", ["▁the", "<mask>", "▁fell"]),
    ],
)
def test_special_tokens_in_text_only_when_asked(shared_data, name, text, expected):
    tokenizer = load_tokenizer(shared_data(f"vocabs/{name}"))
    encoded = tokenizer.encode([text], special=True)[0]
    assert [tokenizer.token(n) for n in encoded.ids] == expected
    assert encoded.words.tolist() == [0, 1, 2]
    begin, end = encoded.offsets[1]
    assert text[begin:end] == tokenizer.special_tokens["mask"]
    encoded = tokenizer.encode([text])[0]
    assert not set(encoded.ids.tolist()) & tokenizer.special_ids
    assert [tokenizer.token(n) for n in tokenizer.encode_flat([text])[0]] == [
        tokenizer.token(n) for n in encoded.ids
    ]
    if name.startswith("bert"):
        assert [tokenizer.token(n) for n in encoded.ids] == ["the", "[", "mask", "]", "fell"]
    with_ends = [tokenizer.cls_id, *encoded.ids, tokenizer.sep_id]
    assert tokenizer.decode(with_ends) == tokenizer.decode(encoded.ids)
    assert tokenizer.special_tokens["sep"] in tokenizer.decode(with_ends, skip_special=False)
