"""ELMo's character ids against the rule word by word."""

import numpy as np
import pytest

from firth.errors import FirthError
from firth.tokenizers.spelling import CHARACTERS, spell


def by_rule(word: str, places: int) -> list[int]:
    """One word: 259, bytes + 1, 260, then 261; a sentence's ends have the byte 257 or 258."""
    code = {"<S>": [256], "</S>": [257]}.get(word, list(word.encode()[: places - 2]))
    ids = [258, *code, 259]
    return [i + 1 for i in ids + [260] * (places - len(ids))]


@pytest.mark.parametrize("places", [50, 6, 3])
def test_ids_are_those_of_the_rule(places):
    words = ["the", "<S>", "naïve", "", "x" * 60, "</S>", "日本語", "e\u0301", "<S>", "<s>", "\x00"]
    ids, lengths = spell(words, places)
    assert ids.dtype == np.int32 and ids.shape == (len(words), places)
    assert ids.tolist() == [by_rule(word, places) for word in words]
    assert (ids < CHARACTERS).all() and (ids > 0).all()
    assert lengths.tolist() == [places - by_rule(word, places).count(261) for word in words]


def test_known_words():
    """The ids that the released code gives these words, plus one."""
    ids, _ = spell(["<S>", "</S>", "a"])
    assert ids[0, :4].tolist() == [259, 257, 260, 261]
    assert ids[1, :4].tolist() == [259, 258, 260, 261]
    assert ids[2, :4].tolist() == [259, ord("a") + 1, 260, 261]


def test_what_cannot_be_written_is_left_out():
    assert spell(["a\ud800b"])[0].tolist() == spell(["ab"])[0].tolist()
    assert spell([])[0].shape == (0, 50)
    with pytest.raises(FirthError, match="2 places are too few"):
        spell(["a"], 2)
