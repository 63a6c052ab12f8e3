"""A table that numbers words many at a time: numpy's part of a word cache.

Python needs an object and a look-up for each running word, some 400 ns. Here a word of up to 15
bytes is two integers, which numpy makes, hashes and compares for a whole text at once, some 60 ns a
word. The few longer words go through a dictionary.

N words of one call.
"""

import numpy as np

_LONGEST = 15  # bytes of a word in the table; byte 16 of its two integers is its length
_PADDING = bytes(16)  # so that 16 bytes can be read from any word on
_LOW, _HIGH = (
    np.array(
        [int.from_bytes((b"\xff" * n + _PADDING)[half : half + 8], "little") for n in range(16)],
        np.uint64,
    )
    for half in (0, 8)
)
_LENGTHS = np.arange(16, dtype=np.uint64) << np.uint64(56)
_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)  # of xxHash and splitmix


class WordTable:
    """Words, as bytes, numbered from 1 in the order in which they came; 0 is no word."""

    def __init__(self):
        self._count = 1
        self._low = np.full(1 << 10, ~np.uint64(0))  # of each number; no word is all ones
        self._high = self._low.copy()
        self._slots = np.zeros(1 << 12, np.int32)  # open addressing: the number in a slot, or 0
        self._long = {}

    def __len__(self):
        return self._count - 1

    def number(self, text: bytes, begins, ends) -> tuple[np.ndarray, list[bytes]]:
        """The numbers of the words text[begin:end], int32 [N], and the new ones among them.

        Begins and ends are int64 [N], in order. The new words have the highest numbers.
        """
        sizes = ends - begins
        padded = text + _PADDING
        eights = np.ndarray(len(text) + 9, "<u8", padded, strides=(1,))  # the 8 bytes from each
        clipped = np.minimum(sizes, _LONGEST)
        low = eights[begins] & _LOW[clipped]
        high = (eights[begins + 8] & _HIGH[clipped]) | _LENGTHS[clipped]
        long = np.flatnonzero(sizes > _LONGEST)
        slots = self._first_slots(low, high)
        numbers = self._slots[slots]
        unknown = (self._low[numbers] != low) | (self._high[numbers] != high)
        unknown[long] = False
        rows = np.flatnonzero(unknown)
        added = self._search(numbers, low, high, rows)
        new = [text[b:e] for b, e in zip(begins[added], ends[added], strict=True)]
        if len(long):
            words = [text[b:e] for b, e in zip(begins[long], ends[long], strict=True)]
            numbers[long] = [self._number_of_long(word, new) for word in words]
        return numbers, new

    def _number_of_long(self, word: bytes, new: list[bytes]) -> int:
        number = self._long.get(word)
        if number is None:
            self._reserve(1)
            number = self._long[word] = self._count
            self._count += 1
            new.append(word)
        return number

    def _first_slots(self, low, high) -> np.ndarray:
        mixed = low * _ODD[0] ^ high * _ODD[1]
        mixed ^= mixed >> np.uint64(32)
        mixed *= _ODD[0]
        return (mixed >> np.uint64(65 - len(self._slots).bit_length())).astype(np.int64)

    def _search(self, numbers, low, high, rows) -> np.ndarray:
        """Find the words of the rows beyond their first slot, or add them; sets their numbers.

        Returns the rows whose words are new, one row a word, in the order of their numbers.
        """
        self._reserve(len(rows))
        slots = self._first_slots(low[rows], high[rows])
        added = []
        while len(rows):
            empty = np.flatnonzero(self._slots[slots] == 0)
            if len(empty):
                # Several rows may claim a slot; the last one gets it. Claims are below zero.
                claims = -1 - np.arange(len(empty), dtype=np.int32)
                self._slots[slots[empty]] = claims
                winners = empty[self._slots[slots[empty]] == claims]
                fresh = np.arange(self._count, self._count + len(winners), dtype=np.int32)
                self._slots[slots[winners]] = fresh
                self._low[fresh], self._high[fresh] = low[rows[winners]], high[rows[winners]]
                self._count += len(winners)
                added.append(rows[winners])
            found = self._slots[slots]
            same = (self._low[found] == low[rows]) & (self._high[found] == high[rows])
            numbers[rows[same]] = found[same]
            rows, slots = rows[~same], (slots[~same] + 1) & (len(self._slots) - 1)
        return np.concatenate(added) if added else rows

    def _reserve(self, more: int) -> None:
        """Make room for so many more words: at most half of the slots are in use."""
        if self._count + more > len(self._low):
            room = 1 << (self._count + more).bit_length()
            self._low, self._high = (
                np.concatenate((keys, np.full(room - len(keys), ~np.uint64(0))))
                for keys in (self._low, self._high)
            )
        if self._count + more > len(self._slots) // 2:
            self._slots = np.zeros(4 << (self._count + more).bit_length(), np.int32)
            known = np.flatnonzero(self._high != ~np.uint64(0)).astype(np.int32)
            slots = self._first_slots(self._low[known], self._high[known])
            while len(known):  # these are different words, so the last claim stays
                free = self._slots[slots] == 0
                self._slots[slots[free]] = known[free]
                left = self._slots[slots] != known
                known, slots = known[left], (slots[left] + 1) & (len(self._slots) - 1)
