"""Words as character ids, as ELMo's released code and models have them (Peters et al. 2018).

A word is a begin mark, its bytes in UTF-8, an end mark and padding, 50 places in all. 0 is no word:
padding of a text. Ids are those of the released tables plus one.

N words, W places.
"""

from collections.abc import Sequence

import numpy as np

from firth.errors import FirthError

PLACES = 50  # of a word
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = range(257, 262)  # bytes are 1 .. 256
CHARACTERS = 262  # ids 0 .. 261
BEGIN, END = "<S>", "</S>"  # the words that stand for the ends of a sentence
_MARKS = {BEGIN: SENTENCE_BEGIN, END: SENTENCE_END}


def spell(words: Sequence[str], places: int = PLACES) -> tuple[np.ndarray, np.ndarray]:
    """(ids int32 [N, places], how many of them each word has before its padding, int32 [N]).

    Words lose the bytes that have no place beside their two marks. "<S>" and "</S>" have one byte,
    a mark of their own. Characters that UTF-8 cannot write are left out. Raises FirthError for
    fewer than 3 places.
    """
    if places < 3:
        raise FirthError(f"{places} places are too few for a word: expected 3 or more")
    codes = [word.encode("utf-8", "ignore")[: places - 2] for word in words]
    length_N = np.fromiter(map(len, codes), np.int64, len(codes))
    flat = np.frombuffer(b"".join(codes), np.uint8)
    row_N = np.arange(len(codes))
    first = np.repeat(np.cumsum(length_N) - length_N, length_N)
    ids = np.full((len(codes), places), PADDING, np.int32)
    ids[np.repeat(row_N, length_N), 1 + np.arange(len(flat)) - first] = flat.astype(np.int32) + 1
    for row, word in enumerate(words):
        if word in _MARKS:
            ids[row, 1:] = PADDING
            ids[row, 1], length_N[row] = _MARKS[word], 1
    ids[:, 0] = WORD_BEGIN
    ids[row_N, length_N + 1] = WORD_END
    return ids, (length_N + 2).astype(np.int32)


def unspell(ids: np.ndarray) -> list[str]:
    """The words of character ids [N, places], without the bytes that had no place."""
    words = []
    for row in ids:
        inner = row[1 : int(np.argmax(row == WORD_END))]
        mark = next((word for word, code in _MARKS.items() if list(inner) == [code]), None)
        code = bytes(int(i) - 1 for i in inner if 0 < i <= 256)
        words.append(mark or code.decode("utf-8", "replace"))
    return words
