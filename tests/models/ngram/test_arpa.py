"""ARPA files: by hand, there and back, and as KenLM reads them."""

import numpy as np
import pytest

from firth.errors import FirthError
from firth.models.ngram import arpa
from firth.models.ngram.counts import count
from firth.models.ngram.smoothing import Smoothing, estimate

HAND = """\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-0.30103\t</s>
-99\t<s>\t-0.30103
-0.60206\t<unk>
-0.60206\ta\t-0.1249387

\\2-grams:
-0.1760913\t<s> a
-0.3010300\ta a

\\end\\
"""
# p(a | <s>) = 2/3 and 1/2 of the rest; the rest of 1 is 1/3, over 3/4 of the unigrams: 4/9
HAND = HAND.replace("<s>\t-0.30103", "<s>\t-0.3521825").replace("-0.1249387", "-0.1760913")


def sentences(seed):
    rng = np.random.default_rng(seed)
    lines = [[*rng.zipf(1.6, rng.integers(1, 8)).clip(max=120) + 1, 1] for _ in range(300)]
    tokens = np.array([token for line in lines for token in line])
    starts = np.zeros(len(tokens), bool)
    starts[np.cumsum([0, *map(len, lines[:-1])])] = True
    return lines, tokens, starts


SIZE = 123
WORDS = ["<unk>", "</s>", *(f"w{n}" for n in range(2, SIZE))]


@pytest.fixture(scope="module")
def model():
    _, tokens, starts = sentences(0)
    return estimate(count(tokens, starts, SIZE, 3), Smoothing(prune=(0, 0, 1)))


def test_a_file_written_by_hand(tmp_path):
    (tmp_path / "m.arpa").write_text(HAND)
    model, words = arpa.read(tmp_path / "m.arpa")
    assert words == ["<unk>", "</s>", "a"] and model.order == 2
    p = np.exp(model.score(np.array([2, 2, 0, 1]), np.array([True, False, False, False])))
    expected = [2 / 3, 1 / 2, 1 / 4 * 2 / 3, 1 / 2]
    np.testing.assert_allclose(p, expected, rtol=1e-5)


def test_there_and_back(model, tmp_path):
    arpa.write(model, WORDS, tmp_path / "m.arpa")
    again, words = arpa.read(tmp_path / "m.arpa")
    assert words == WORDS
    _, tokens, starts = sentences(1)
    np.testing.assert_allclose(again.score(tokens, starts), model.score(tokens, starts), rtol=1e-6)
    for one, other in zip(again.keys, model.keys, strict=True):
        np.testing.assert_array_equal(one, other)


def test_kenlm_gives_the_same_numbers(model):
    """What KenLM's Python package 0.3.0 says of the file that `write` makes of this model."""
    _, tokens, starts = sentences(1)
    log_probs = model.score(tokens, starts)
    assert log_probs.sum() == pytest.approx(-3840.104248, abs=1e-4)
    first = [-1.250881, -1.769686, -0.911182, -0.513253, -0.52445]  # log10, of a sentence
    np.testing.assert_allclose(log_probs[:5] / np.log(10), first, atol=2e-6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\end\\", "", "is cut off or damaged"),
        ("ngram 2=2", "ngram 2=3", "announces 4, 3 n-grams and holds 4, 2"),
        ("\\data\\", "data", r"no line \\data\\"),
        ("a a\n", "b a\n", r"m\.arpa:13: 'b a' has no 'b' to back off from: it is none of the 1-g"),
        ("a a\n", "a b\n", r"m\.arpa:13: 'a b' has no 'b'"),
        ("-0.3010300\ta a", "half\ta a", r"m\.arpa:13: expected a number, 2 words"),
        ("-0.3010300\ta a", "-0.2\ta a", "sum to 1.1.*, not to 1"),
        ("-0.30103\t</s>", "-0.2\t</s>", "of the 1-grams sum to"),
        ("-0.60206\t<unk>", "-0.60206\ta", "stands twice"),
        ("\t</s>", "\tend", "the 1-grams lack </s>"),
    ],
)
def test_files_that_are_not_right(old, new, message, tmp_path):
    assert HAND.count(old)
    (tmp_path / "m.arpa").write_text(HAND.replace(old, new, 1))
    with pytest.raises(FirthError, match=message):
        arpa.read(tmp_path / "m.arpa")


def test_tokens_with_spaces_are_refused(model, tmp_path):
    with pytest.raises(FirthError, match="the token 'a b' cannot stand in an ARPA file"):
        arpa.write(model, ["a b", *WORDS[1:]], tmp_path / "m.arpa")
    assert not list(tmp_path.iterdir())
