"""Words numbered by numpy must be those that a dictionary numbers."""

import random

import numpy as np

from firth.tokenizers.word_table import WordTable


def number(table, words):
    text = b" ".join(words)
    sizes = np.array([len(word) for word in words], np.int64)
    begins = np.concatenate(([0], np.cumsum(sizes + 1)))[:-1].astype(np.int64)
    return table.number(text, begins, begins + sizes)


def assert_numbers(table, known, words):
    numbers, new = number(table, words)
    unseen = set(words) - known.keys()
    assert sorted(new) == sorted(unseen), "each new word comes once"
    known.update({word: n for n, word in enumerate(new, len(known) + 1)})
    assert numbers.tolist() == [known[word] for word in words]
    assert len(table) == len(known)


def test_numbers_of_a_dictionary():
    """Lengths on both sides of 8 and 15 bytes, zero bytes, and many more words than slots."""
    rng = random.Random(0)
    table, known = WordTable(), {}
    for count in (1, 2, 500, 20_000, 20_000, 60_000, 3):
        words = [
            bytes(rng.choices(b"\x00\x01a\xff", k=rng.randrange(20))) for _ in range(count // 2)
        ]
        words += [b"w%d" % rng.randrange(30_000) for _ in range(count - len(words))]
        assert_numbers(table, known, words)
        assert_numbers(table, known, words)
    assert len(known) > 30_000


def test_words_that_differ_in_one_place():
    word = b"abcdefghijklmnopqrst"
    words = [word[:n] for n in range(len(word) + 1)]
    words += [word[:n] + b"\x00" for n in range(len(word))]
    words += [word[:n] + b"#" + word[n + 1 :] for n in range(len(word))]
    words += [word[:15].replace(bytes([c]), b"#") for c in word[:15]]
    table, known = WordTable(), {}
    assert_numbers(table, known, words * 3)


def test_words_that_share_a_slot():
    class Crowded(WordTable):
        def _first_slots(self, low, high):
            return super()._first_slots(low, high) & 3 | len(self._slots) - 4

    table, known = Crowded(), {}
    for count in (5, 40, 700):
        words = [prefix + b"%d" % n for prefix in (b"", b"eight888") for n in range(count)]
        assert_numbers(table, known, words * 2)


def test_no_words():
    numbers, new = WordTable().number(b"", np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert numbers.tolist() == []
    assert new == []
