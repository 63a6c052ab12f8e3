# ruff: noqa: RUF001  (characters that look like others are what these tests are about)
"""Tokenizers against transformers, sentencepiece and the papers' algorithms in plain Python."""

import itertools
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import unicodedata
from collections import Counter

import numpy as np
import pytest

from firth.errors import FirthError
from firth.tokenizers.load import load_tokenizer, train_tokenizer

SENTENCES = [
    "The vase broke when it fell off the table in the hall.",
    "A broken vase cannot be mended by wishing that it were whole.",
    "The hall was dark and the table was small and the wishing well was dry.",
    "Nobody minded the noise of the fall, and nobody mended the vase.",
]

ODD_TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and   many spaces\tand\ttabs\r\nand lines\n\n",
    "Café naïve Ångström İstanbul ΣΊΣΥΦΟΣ ﬁne ½ ①",
    "cafe\u0301 e\u0301\u0323 \u0301lone mark",
    "中文字符 mixed 日本語カナ 한국어 ไทย हिन्दी",
    "عربى עברית русский ёлка",
    "emoji 😀 👩‍👩‍👧‍👦 🇩🇪 \u200d \ufe0f",
    "zero\u200bwidth soft\u00adhyphen bom\ufeff nbsp\u00a0thin\u2009space ideographic\u3000space",
    "control \x00 \x01 \x07 \x1b \x7f \x85 \ufffd chars",
    "punct $+^`~|<=> “quotes” ‘single’ — dash… ¿qué? «oui»",
    "don't we'll it's I'M they'Re o'clock 'tis",
    "x" * 99 + " " + "x" * 101 + " " + "ab" * 120,
    "3.14159 1,000,000 2019–20 10:30 a.m. U.S.A. e-mail@example.com http://a.b/c?d=e#f",
    "[MASK] [CLS] [SEP] [PAD] [UNK] <mask> <s> </s> <pad> ##ing [mask]",
    "snowman\u2603 math 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ℝ ∑ 𐍈 \U0010ffff",
    "line\u2028separator para\u2029graph \x0b\x0c\x1c\x1d",
]


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Strings of characters from every part of Unicode, letters and spaces more often."""
    rng = random.Random(seed)
    pools = [
        range(0x20, 0x7F), range(0x20, 0x7F), range(0x61, 0x7B), [0x20], [0x20, 0x09, 0x0A],
        range(0xA0, 0x250), range(0x300, 0x370), range(0x370, 0x600), range(0x900, 0xA00),
        range(0x2000, 0x2070), range(0x4E00, 0x4F00), range(0xAC00, 0xAC80),
        range(0x1F600, 0x1F640),
    ]  # fmt: skip
    return [
        "".join(chr(rng.choice(rng.choice(pools))) for _ in range(rng.randrange(60)))
        for _ in range(count)
    ]


def transformers_tokenizer(name, folder, **files):
    """A transformers tokenizer of the named class over copies of the given files."""
    import transformers

    for target, source in files.items():
        shutil.copy(source, folder / target.replace("__", "."))
    return getattr(transformers, name).from_pretrained(folder)


def assert_same(ours, theirs, texts, offsets=True):
    """Equal ids, and equal offsets of the tokens that stand for some text."""
    for text, encoded in zip(texts, ours.encode(texts), strict=True):
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        assert encoded.ids.tolist() == expected["input_ids"], text
        if offsets:
            spans = zip(encoded.offsets.tolist(), expected["offset_mapping"], strict=True)
            assert all((b, e) == their for (b, e), their in spans if b < e), text


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


@pytest.fixture(scope="module")
def articles(shared_data):
    """The paragraphs of the first articles of the Wikipedia sample."""
    import lzma

    path = shared_data("wikipedia_en_sample/articles.jsonl.xz")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(next(lines))["text"] for _ in range(150)]
    return [line for text in texts for line in text.split("\n") if line]


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


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_saved_layout_loads_in_transformers(kind, tmp_path, articles):
    import transformers

    vocab_size = {"wordpiece": 1500, "bpe": 1200, "unigram": 1000}[kind]
    tokenizer = train_tokenizer(kind, articles, vocab_size)
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == tokenizer.vocab_size <= vocab_size
    assert theirs.mask_token_id == tokenizer.mask_id and theirs.pad_token_id == tokenizer.pad_id
    texts = articles[:200]
    if kind == "unigram":  # ties between segmentations of equal score apart
        ours = [e.ids.tolist() for e in tokenizer.encode(texts)]
        same = [
            a == theirs(t, add_special_tokens=False)["input_ids"]
            for t, a in zip(texts, ours, strict=True)
        ]
        assert np.mean(same) > 0.98
    else:
        assert_same(tokenizer, theirs, texts)
    first = theirs("the vase")["input_ids"]
    assert (first[0], first[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
    again = load_tokenizer(tmp_path)
    assert again.describe() == tokenizer.describe() and again.chunks == tokenizer.chunks
    for file in tmp_path.glob("vocab.*"):  # the older layout means the same
        assert load_tokenizer(file).digest == tokenizer.digest
    restored = pickle.loads(pickle.dumps(tokenizer))
    assert restored.digest == tokenizer.digest
    assert restored.encode_flat(texts)[0].tolist() == tokenizer.encode_flat(texts)[0].tolist()


def reference_merges(texts, vocab, count, min_frequency):
    """BPE (Sennrich et al. 2016, algorithm 1) with WordPiece's ##; ties go to lower ids."""
    words = Counter(word for text in texts for word in text.split())
    ids = {token: n for n, token in enumerate(vocab)}
    spelled = {w: [c if n == 0 else f"##{c}" for n, c in enumerate(w)] for w in words}
    merged = []
    while len(merged) < count:
        pairs = Counter()
        for word, pieces in spelled.items():
            for pair in itertools.pairwise(pieces):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda p: (-pairs[p], ids[p[0]], ids[p[1]]), default=None)
        if best is None or pairs[best] < min_frequency:
            break
        new = best[0] + best[1].removeprefix("##")
        merged.append(new)
        ids.setdefault(new, len(ids))
        for word, pieces in spelled.items():
            joined, n = [], 0
            while n < len(pieces):
                if tuple(pieces[n : n + 2]) == best:
                    joined.append(new)
                    n += 2
                else:
                    joined.append(pieces[n])
                    n += 1
            spelled[word] = joined
    return merged


def test_trained_wordpiece_is_the_papers():
    texts = [s.lower().replace(".", "").replace(",", "") for s in SENTENCES]
    tokenizer = train_tokenizer("wordpiece", texts, 90)
    letters = sorted({c for t in texts for c in t if c != " "})
    tails = sorted({c for t in texts for w in t.split() for c in w[1:]})
    base = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in tails)]
    merges = reference_merges(texts, base, 90 - len(base), min_frequency=2)
    assert len(merges) > 20
    assert tokenizer.vocab == base + merges


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_training_is_deterministic(kind, tmp_path, shared_data):
    """Ties abound in little text, and the library's hash tables are seeded anew in each process."""
    corpus = shared_data("vocabs/bert-base-multilingual-cased-vocab.txt")
    program = (
        "import sys; from firth.tokenizers.load import train_tokenizer\n"
        "lines = open(sys.argv[2], encoding='utf-8').read().split('\\n')[:40000:7]\n"
        "print(train_tokenizer(sys.argv[1], lines, 3000).digest)"
    )
    digests = set()
    for threads in ("1", "2", "4"):
        done = subprocess.run(
            [sys.executable, "-c", program, kind, str(corpus)],
            env=os.environ | {"RAYON_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_casing_and_special_tokens_come_from_options():
    words = " ".join(SENTENCES).split() * 5
    cased = train_tokenizer("wordpiece", words, 200, lowercase=False)
    assert "T" in cased.vocab
    lower = train_tokenizer("wordpiece", ["Café résumé"] * 9, 60)
    assert "é" not in "".join(lower.vocab)
    accents = train_tokenizer("wordpiece", ["Café résumé"] * 9, 60, strip_accents=False)
    assert "##é" in accents.vocab and "C" not in accents.vocab
    named = train_tokenizer("bpe", words, 400, special_tokens={"pad": "<null>"})
    assert named.token(named.pad_id) == "<null>" and "<pad>" not in named.vocab


def test_config_beside_a_vocabulary_decides_casing(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\nvase\nVase\n##s\nvasé\n", encoding="utf-8")

    def tokens(**options):
        tokenizer = load_tokenizer(tmp_path, **options)
        return [tokenizer.token(n) for n in tokenizer.encode(["Vase vasés"])[0].ids]

    assert tokens() == ["Vase", "vasé", "##s"]  # a capital in the vocabulary: cased
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert tokens() == ["vase", "vase", "##s"]
    assert tokens(strip_accents=False) == ["vase", "vasé", "##s"]
    assert tokens(lowercase=False) == ["Vase", "vasé", "##s"]
    digests = {
        load_tokenizer(tmp_path, lowercase=low, strip_accents=strip).digest
        for low in (True, False)
        for strip in (True, False)
    }
    assert len(digests) == 4


def test_truncation_and_padding_of_published_files_are_dropped(shared_data, tmp_path):
    tokenizer = load_tokenizer(shared_data("vocabs/bert-base-uncased-vocab.txt"))
    tokenizer.save(tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    state["truncation"] = dict(direction="Right", max_length=8, strategy="LongestFirst", stride=0)
    state["padding"] = dict(
        strategy={"Fixed": 8}, direction="Right", pad_to_multiple_of=None, pad_id=0,
        pad_type_id=0, pad_token="[PAD]",
    )  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    again = load_tokenizer(tmp_path)
    assert again.digest == tokenizer.digest
    assert [len(e.ids) for e in again.encode(["a b", "a " * 50])] == [2, 50]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "there is no tokenizer in"),
        ({"tokenizer.json": "{not json"}, r"tokenizer.json:1: not valid JSON"),
        ({"tokenizer.json": '{"model": {}}'}, "is not a tokenizer"),
        ({"vocab.json": '{"a": 0}'}, "merges.txt"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b c\n"}, "merge 1 is 'a b c'"),
        ({"vocab.txt": "a\nb\n"}, r"no unknown token \(\[UNK\]\)"),
        ({"vocab.txt": "[UNK]\n", "tokenizer_config.json": '{"cls_token": "[X]"}'}, "cls token"),
        ({"spiece.model": "not a model"}, "is not a sentencepiece model"),
    ],
)
def test_bad_files_are_named(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(FirthError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_bad_requests_say_what_is_wrong(tmp_path):
    with pytest.raises(FirthError, match="no such directory"):
        load_tokenizer(tmp_path / "absent")
    with pytest.raises(FirthError, match="none of wordpiece, bpe, unigram"):
        train_tokenizer("words", SENTENCES, 100)
    with pytest.raises(FirthError, match=r"too small: .* alone take"):
        train_tokenizer("wordpiece", SENTENCES, 10)
    with pytest.raises(FirthError, match="unigram vocabulary of 5"):
        train_tokenizer("unigram", SENTENCES, 5)
    with pytest.raises(FirthError, match="keeps case"):
        train_tokenizer("bpe", SENTENCES, 400, lowercase=True)
