"""Select the documents of a view, and copy ranges of their tokens into a batch.

T tokens, S sentences, D documents, R ranges, B rows, L length.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from firth.data.permutation import derive_key, random_bits
from firth.errors import FirthError

CHUNK_SENTENCES = 1 << 20  # to plan at once; bounds the memory of planning, not its result


@dataclass(frozen=True)
class Selection:
    """Documents of a store that have text, as ranges of sentences that have text."""

    tokens: np.ndarray  # uint16 or uint32 [T], usually mapped from disk
    sentences: np.ndarray  # int64 [S + 1], token offsets
    first: np.ndarray  # int64 [D], the first sentence of each selected document
    last: np.ndarray  # int64 [D], one past its last sentence

    @property
    def digest(self) -> str:
        """Hex hash of the numbers of the selected sentences (not of their tokens)."""
        return hashlib.sha256(self.first.tobytes() + self.last.tobytes()).hexdigest()

    def chunks(self) -> Iterator[slice]:
        """Runs of documents with about CHUNK_SENTENCES sentences each (or a single document)."""
        ends_D = np.cumsum(self.last - self.first)
        cuts = np.arange(CHUNK_SENTENCES, ends_D[-1], CHUNK_SENTENCES)
        bounds = np.unique(np.concatenate([[0], np.searchsorted(ends_D, cuts), [len(ends_D)]]))
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            yield slice(start, stop)


def select(store, documents: np.ndarray | None = None) -> Selection:
    """The non-empty documents of a store, or those among the sorted numbers `documents`.

    Raises FirthError if `documents` is not a sorted list of this store's documents, or if the
    selection has no tokens.
    """
    sentences, borders = _without_empty_sentences(store.sentences, store.documents)
    numbers = np.arange(len(borders) - 1) if documents is None else np.asarray(documents)
    if documents is not None and len(numbers):
        _check_numbers(numbers, len(borders) - 1)
    numbers = numbers.astype(np.int64)
    first, last = borders[numbers], borders[numbers + 1]
    filled = last > first
    if not filled.any():
        raise FirthError(
            f"no tokens in the selected documents: {len(numbers)} of {len(borders) - 1} documents "
            "were selected and all of them are empty; prepare a store with text, or select others"
        )
    return Selection(np.asarray(store.tokens), sentences, first[filled], last[filled])


def split_documents(
    store, fraction: float = 0.01, seed: int = 0, minimum: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """(training, held-out) document numbers, sorted int64: about `fraction` of them are held out.

    A hash of (seed, document number) decides. So the held-out documents come from everywhere in
    the corpus, and documents appended to it later move no other across. Each side gets at least
    `minimum` documents (sentence pairs need 2). Empty documents are on neither side.

    Raises FirthError if the store has too few documents or `fraction` is not within (0, 1).
    """
    if not 0 < fraction < 1:
        raise FirthError(
            f"fraction={fraction} of the documents cannot be held out: expected 0 < fraction < 1"
        )
    borders = np.asarray(store.sentences)[np.asarray(store.documents)]
    numbers = np.flatnonzero(np.diff(borders))
    if len(numbers) < 2 * minimum:
        raise FirthError(
            f"{len(numbers)} documents with text cannot be split: training and held-out data need "
            f"at least {minimum} each; prepare more documents, or mark their borders (blank lines)"
        )
    bits = random_bits(derive_key(seed, "split"), numbers)
    wanted = np.count_nonzero(bits < np.uint64(fraction * 2.0**64))
    heldout = np.zeros(len(numbers), bool)
    heldout[np.argsort(bits)[: np.clip(wanted, minimum, len(numbers) - minimum)]] = True
    return numbers[~heldout], numbers[heldout]


def ranges(first_R: np.ndarray, last_R: np.ndarray) -> np.ndarray:
    """int64 [sum(last - first)]: first[0], ..., last[0] - 1, first[1], ..., last[1] - 1, ..."""
    counts_R = last_R - first_R
    ends_R = np.cumsum(counts_R)
    return np.repeat(last_R - ends_R, counts_R) + np.arange(ends_R[-1] if len(ends_R) else 0)


def follow(following_N: np.ndarray) -> np.ndarray:
    """int64: the chain 0, following[0], following[following[0]], ... up to the last below N.

    This is the only Python loop of planning. Each link takes 40 ns; the array work costs more.
    """
    following, chain, place = following_N.tolist(), [], 0
    while place < len(following):
        chain.append(place)
        place = following[place]
    return np.array(chain, np.int64)


def copy_ranges(
    target_BL: np.ndarray,
    row_R: np.ndarray,
    column_R: np.ndarray,
    tokens_T: np.ndarray,
    start_R: np.ndarray,
    length_R: np.ndarray,
) -> None:
    """target[row, column : column + length] = tokens[start : start + length], for every range."""
    cell_R = row_R * target_BL.shape[1] + column_R
    source = ranges(start_R, start_R + length_R)
    target_BL.reshape(-1)[source + np.repeat(cell_R - start_R, length_R)] = tokens_T[source]


def template_rows(
    real_B: np.ndarray, length: int, cls_id: int, sep_id: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """(tokens int32 [B, L], mask bool [B, L]) of rows with `real_B` real tokens each.

    A row is [CLS], then only [SEP], then [PAD]. The caller copies text over the inner [SEP].
    """
    mask_BL = np.arange(length) < real_B[:, None]
    tokens_BL = np.where(mask_BL, np.int32(sep_id), np.int32(pad_id))
    tokens_BL[:, 0] = cls_id
    return tokens_BL, mask_BL


def _without_empty_sentences(sentences, documents) -> tuple[np.ndarray, np.ndarray]:
    sentences, documents = np.asarray(sentences), np.asarray(documents)
    filled = np.diff(sentences) > 0
    if filled.all():
        return sentences, documents
    number = np.concatenate([[0], np.cumsum(filled)])  # of a sentence without the empty ones
    return np.append(sentences[:-1][filled], sentences[-1]), number[documents]


def _check_numbers(numbers: np.ndarray, available: int) -> None:
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise FirthError(
            f"documents= has shape {numbers.shape} and type {numbers.dtype}: expected a sorted "
            "one-dimensional array of document numbers"
        )
    if (np.diff(numbers.astype(np.int64)) <= 0).any():
        raise FirthError("documents= must hold ascending document numbers without repetitions")
    if numbers[0] < 0 or numbers[-1] >= available:
        raise FirthError(
            f"documents= asks for {numbers[0]}..{numbers[-1]}, but the store has the documents "
            f"0..{available - 1}; split the store that the view is made of"
        )
