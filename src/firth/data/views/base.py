"""What every view has: rows in batches, each batch a function of its step alone.

A recipe names a view by its config (`ViewConfig`), which is made of the fields of the data section.
The config knows what arrays a row has without any data. With a source it makes the view.
Legend: B rows, L length.
"""

import abc
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from firth.data.corpus.store import Store
from firth.data.permutation import own_rows
from firth.errors import FirthError
from firth.tokenizers.base import Tokenizer

Batch = dict[str, np.ndarray]
Fields = dict[str, tuple[tuple[int | None, ...], np.dtype]]


def row_fields(length: int | None, **numbers: np.typing.DTypeLike) -> Fields:
    """The fields that every view has, and `numbers`: {name: type of one number a row}."""
    shapes = {
        "tokens": ((length,), np.int32),
        "segments": ((length,), np.int32),
        "mask": ((length,), bool),
        "example": ((), np.uint32),
        "copy": ((), np.uint32),
        **{name: ((), kind) for name, kind in numbers.items()},
    }
    return {name: (shape, np.dtype(kind)) for name, (shape, kind) in shapes.items()}


class View(abc.ABC):
    """Rows in batches. A subclass makes them in `_batch` and `_sequential`.

    Every view has the fields tokens int32 [L], segments int32 [L], mask bool [L] (True = real
    token), example uint32 (its number within its epoch) and copy uint32 (which copy of the example
    it is: the epoch, or the number of the plan where plans repeat). It may have more. A view may be
    used from several threads.

    Attributes:
      length: L; no row has more tokens.
      fields: {name: (shape of one row, dtype)} of what a batch holds. None in a shape is a size
        that is the same within a batch only.
    """

    length: int
    fields: Fields

    def batch(self, step: int, batch_size: int, index: int = 0, count: int = 1) -> Batch:
        """Slice `index` of `count` of the batch of `step`: B = batch_size / count rows.

        These are rows index * B .. (index + 1) * B - 1 of the batch, {name: [B, *shape]}. Nothing
        but the arguments decides what they hold. So a run resumes at any step, and the slices of
        any `count` add up to the same batch.

        Raises FirthError where the batch cannot be divided, a number is out of range or there is
        too little text for a batch.
        """
        own = own_rows(batch_size, index, count)
        step = operator.index(step)
        if step < 0:
            raise FirthError(f"there is no batch for step {step}: expected step >= 0")
        return self._batch(step, batch_size, own)

    def sequential(
        self, batch_size: int, index: int = 0, count: int = 1, limit: int | None = None
    ) -> Iterator[Batch]:
        """One pass for evaluation: slice `index` of `count` of each batch, in a fixed order.

        Every slice gets the same number of batches. The last ones are filled up with rows of
        padding, whose mask is False everywhere: weight what belongs to a row by `mask.any(-1)`.
        With `limit`, at most so many batches, spread evenly over the text.

        Raises FirthError as `batch` does, and for a `limit` below 1.
        """
        own = own_rows(batch_size, index, count)
        if limit is not None and limit < 1:
            raise FirthError(f"limit={limit} batches leave nothing to evaluate: expected >= 1")
        return self._sequential(batch_size, own, limit)

    @abc.abstractmethod
    def _batch(self, step: int, batch_size: int, own: slice) -> Batch:
        """The rows `own` of the batch of `step`, which is 0 or more."""

    @abc.abstractmethod
    def _sequential(self, batch_size: int, own: slice, limit: int | None) -> Iterator[Batch]:
        """The rows `own` of each batch of one pass; `limit` is None, or 1 or more."""


def special_ids(tokenizer: Tokenizer, names: tuple[str, ...], needed: str) -> tuple[int, ...]:
    """The ids of special tokens; FirthError, saying what is `needed`, where one is missing."""
    ids = tuple(getattr(tokenizer, name) for name in names)
    for name, number in zip(names, ids, strict=True):
        if number is None or number < 0:
            raise FirthError(f"{name}={number} is no token id: the tokenizer must have {needed}")
    return ids


@dataclass(frozen=True)
class Source:
    """What a view is made from.

    store: the corpus. tokenizer: the one that the store was prepared with, for its special ids.
    seed: what orders and choices depend on. documents: sorted numbers of the documents to use
    (`firth.data.views.selection.split_documents`), or None for all. cache: a file where a view may
    keep the sizes of its epochs, or None.
    """

    store: Store
    tokenizer: Tokenizer
    seed: int = 0
    documents: np.ndarray | None = None
    cache: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ViewConfig(abc.ABC):
    """A view as a recipe describes it: the fields of the data section that are the view's own.

    Making one checks its fields and raises FirthError for a bad one. `min_documents` is how many
    documents with text a view needs.
    """

    min_documents: ClassVar[int] = 1

    length: int

    @property
    @abc.abstractmethod
    def fields(self) -> Fields:
        """The `View.fields` of this view, known without any data."""

    @abc.abstractmethod
    def view(self, source: Source) -> View:
        """The view of a source; FirthError where it lacks text or special tokens."""
