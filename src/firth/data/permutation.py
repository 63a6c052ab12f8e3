"""Stateless randomness and the order of examples: (seed, epoch, example number) decide everything.

A random number here is a hash of a key and a counter, so each can be computed on its own. A run
stores no generator state and replays nothing to resume. NumPy promises the streams of its bit
generators but not those of `Generator` methods (NEP 19); these few lines never change.
"""

import bisect
import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from firth.errors import FirthError
from firth.storage.local import write_text

FEISTEL_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def derive_key(*parts: int | str) -> int:
    """A 64-bit key that depends on every part, e.g. `derive_key(seed, "order", epoch)`."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def random_bits(key: int, counter_N: np.ndarray) -> np.ndarray:
    """uint64 [N]: 64 random bits for every counter (SplitMix64; Steele, Lea and Flood 2014)."""
    bits_N = counter_N.astype(np.uint64) * _GOLDEN + np.uint64(key)
    bits_N ^= bits_N >> np.uint64(30)
    bits_N *= _MIX_1
    bits_N ^= bits_N >> np.uint64(27)
    bits_N *= _MIX_2
    bits_N ^= bits_N >> np.uint64(31)
    return bits_N


def random_unit(key: int, counter_N: np.ndarray) -> np.ndarray:
    """float64 [N], uniform in [0, 1)."""
    return (random_bits(key, counter_N) >> np.uint64(11)) * 2.0**-53


def random_below(key: int, counter_N: np.ndarray, bound) -> np.ndarray:
    """int64 [N], uniform in 0..bound-1 (bias below bound / 2**32); `bound`: int or [N], < 2**31."""
    high_N = random_bits(key, counter_N) >> np.uint64(32)
    return (high_N * np.asarray(bound, np.uint64) >> np.uint64(32)).astype(np.int64)


def random_heads(key: int, counter_N: np.ndarray, tosses_N: np.ndarray) -> np.ndarray:
    """int64 [N]: heads in `tosses_N` throws of a fair coin, i.e. Binomial(tosses, 1/2), exactly."""
    heads_N = np.zeros(len(tosses_N), np.int64)
    active = np.flatnonzero(tosses_N)
    word = 0
    while len(active):
        bits = random_bits(derive_key(key, word), counter_N[active])
        unused = np.maximum(64 * (word + 1) - tosses_N[active], 0)
        heads_N[active] += np.bitwise_count(bits >> unused.astype(np.uint64))
        word += 1
        active = active[tosses_N[active] > 64 * word]
    return heads_N


def permute(rank_N: np.ndarray, size: int, key: int) -> np.ndarray:
    """int64 [N]: the images of `rank_N` (each in 0..size-1) under the permutation of `key`.

    An alternating Feistel network permutes a grid of about sqrt(size) x sqrt(size) cells. The few
    images outside 0..size-1 walk along their cycle until they are inside (Black and Rogaway 2002,
    "Ciphers with arbitrary finite domains", sections 4 and 5). O(1) memory.
    """
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    keys = [derive_key(key, number) for number in range(FEISTEL_ROUNDS)]
    image_N = _feistel(rank_N.astype(np.uint64), rows, columns, keys)
    while len(outside := np.flatnonzero(image_N >= size)):
        image_N[outside] = _feistel(image_N[outside], rows, columns, keys)
    return image_N.astype(np.int64)


def _feistel(cell_N: np.ndarray, rows: int, columns: int, keys: list[int]) -> np.ndarray:
    # A hash of one half shifts the other, so every round is invertible: a bijection.
    modulus, other = np.uint64(rows), np.uint64(columns)
    half_N, other_N = cell_N // other, cell_N % other
    for key in keys:
        # One bit less than 64: if the sum wrapped, the shift would not be invertible.
        half_N = (half_N + (random_bits(key, other_N) >> np.uint64(1))) % modulus
        half_N, other_N, modulus, other = other_N, half_N, other, modulus
    return half_N * other + other_N  # an even number of rounds: the halves are back in place


def own_rows(batch_size: int, index: int, count: int) -> slice:
    """The rows of a batch in slice `index` of `count` equal slices.

    Raises FirthError if `count` does not divide the batch, or there is no such slice.
    """
    if batch_size < 1 or count < 1 or batch_size % count:
        raise FirthError(
            f"a batch of {batch_size} rows cannot be divided into {count} equal slices: choose a "
            f"positive batch_size that is a multiple of {count}"
        )
    if not 0 <= index < count:
        raise FirthError(f"there is no slice {index} of {count}: expected 0 <= index < {count}")
    rows = batch_size // count
    return slice(index * rows, (index + 1) * rows)


class Epochs:
    """Maps a global example number to its epoch; each epoch has its own size.

    `count(plan)` is the number of examples of one plan. Epoch e uses plan e, or e % period if
    `period` is positive. Counting a plan can cost as much as making it, so the JSON file `cache`
    may hold the sizes for a run that resumes in a late epoch. A damaged file or one with another
    `identity` is ignored and replaced.
    """

    def __init__(
        self,
        count: Callable[[int], int],
        period: int,
        cache: str | os.PathLike | None = None,
        identity: str = "",
    ):
        self.period = period
        self._count = count
        self._identity = identity
        self._cache = Path(cache) if cache is not None else None
        self._sizes = self._read()
        self._ends: list[int] = []  # examples up to the end of plan 0, 1, ...

    def plan(self, epoch: int) -> int:
        """The number of the plan that `epoch` uses."""
        return epoch % self.period if self.period else epoch

    def size(self, epoch: int) -> int:
        """The number of examples of `epoch`."""
        plan = self.plan(epoch)
        if plan not in self._sizes:
            self.record(plan, self._count(plan))
        return self._sizes[plan]

    def record(self, plan: int, size: int) -> None:
        """Record the size of a new plan.

        Raises FirthError if the cache had another size, because examples were misplaced.
        """
        known = self._sizes.get(plan)
        if known == size:
            return
        if known is not None:
            raise FirthError(
                f"{self._cache}: says that plan {plan} has {known} examples, but it has {size}; "
                "delete the file"
            )
        self._sizes[plan] = size
        self._write()

    def locate(self, number: int) -> tuple[int, int]:
        """(epoch, rank within that epoch) of a global example number."""
        while not self._ends or (
            number >= self._ends[-1] and not (self.period and len(self._ends) == self.period)
        ):
            self._ends.append((self._ends or [0])[-1] + self.size(len(self._ends)))
        rounds = number // self._ends[-1]  # of all the plans; 0 while there are new ones
        number -= rounds * self._ends[-1]
        epoch = bisect.bisect_right(self._ends, number)
        return rounds * self.period + epoch, number - (self._ends[epoch - 1] if epoch else 0)

    def _read(self) -> dict[int, int]:
        try:
            record = json.loads(self._cache.read_text()) if self._cache else {}
            if record["identity"] == self._identity:
                return {int(plan): int(size) for plan, size in record["sizes"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # missing, damaged or of another form: it is only a cache
        return {}

    def _write(self) -> None:
        if self._cache is None:
            return
        record = json.dumps({"identity": self._identity, "sizes": self._sizes})
        try:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._cache, record)
        except OSError as error:  # a run can continue without a cache
            warnings.warn(f"cannot write epoch sizes to {self._cache}: {error}", stacklevel=2)
