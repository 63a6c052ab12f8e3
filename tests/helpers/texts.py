# ruff: noqa: RUF001  (characters that look like others are what these tests are about)
"""Plain, odd and random texts for tests of tokenizers, and whether two tokenizers agree."""

import random

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


def assert_same(ours, theirs, texts, offsets=True):
    """Equal ids, and equal offsets of the tokens that stand for some text."""
    for text, encoded in zip(texts, ours.encode(texts), strict=True):
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        assert encoded.ids.tolist() == expected["input_ids"], text
        if offsets:
            spans = zip(encoded.offsets.tolist(), expected["offset_mapping"], strict=True)
            assert all((b, e) == their for (b, e), their in spans if b < e), text
