"""The base of all views: rows in batches, each batch a function of its step alone.

A recipe names a view by its config (`ViewConfig`), which takes the fields of the data section. The
config knows the arrays of a row without any data. With a source it makes the view.
B rows, L length.
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
    """The fields of every view, and `numbers`: {name: dtype of one number for each row}."""
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
    token), example uint32 (the example's number within its epoch) and copy uint32 (the copy of the
    example: the epoch, or the number of the plan if plans repeat). It may have more. Several
    threads may use a view at once.

    Attributes:
      length: L, the most tokens of a row.
      fields: {name: (shape of one row, dtype)} of a batch. None in a shape is a size that may
        differ between batches.
    """

    length: int
    fields: Fields

    def batch(self, step: int, batch_size: int, index: int = 0, count: int = 1) -> Batch:
        """Slice `index` of `count` of the batch of `step`: B = batch_size / count rows.

        These are rows index * B .. (index + 1) * B - 1 of the batch, {name: [B, *shape]}. They
        depend only on the arguments. So a run resumes at any step, and the slices of any `count`
        add up to the same batch.

        Raises FirthError if `count` does not divide the batch, a number is out of range or the text
        is too short for a batch.
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

        Every slice gets the same number of batches. Padding rows fill the last ones. Their mask is
        False everywhere, so weight the values of a row by `mask.any(-1)`. `limit` is the most
        batches, spread evenly over the text.

        Raises FirthError as `batch` does, and for a `limit` below 1.
        """
        own = own_rows(batch_size, index, count)
        if limit is not None and limit < 1:
            raise FirthError(f"limit={limit} batches leave nothing to evaluate: expected >= 1")
        return self._sequential(batch_size, own, limit)

    def steps_per_epoch(self, batch_size: int) -> float:
        """How many batches the first pass over the text makes.

        Raises FirthError for a view that has no passes.
        """
        raise FirthError(f"{type(self).__name__} has no epochs to count; set steps")

    @abc.abstractmethod
    def _batch(self, step: int, batch_size: int, own: slice) -> Batch:
        """The rows `own` of the batch of `step` (0 or more)."""

    @abc.abstractmethod
    def _sequential(self, batch_size: int, own: slice, limit: int | None) -> Iterator[Batch]:
        """The rows `own` of each batch of one pass; `limit` is None, or 1 or more."""


def special_ids(tokenizer: Tokenizer, names: tuple[str, ...], needed: str) -> tuple[int, ...]:
    """The ids of special tokens; FirthError, quoting `needed`, if one is missing."""
    ids = tuple(getattr(tokenizer, name) for name in names)
    for name, number in zip(names, ids, strict=True):
        if number is None or number < 0:
            raise FirthError(f"{name}={number} is no token id: the tokenizer must have {needed}")
    return ids


@dataclass(frozen=True)
class Source:
    """The inputs of a view.

    store: the corpus. tokenizer: the store's tokenizer, for its special ids. seed: decides orders
    and random choices. documents: sorted numbers of the documents to use
    (`firth.data.views.selection.split_documents`), or None for all. cache: a file for the sizes of
    the view's epochs, or None.
    """

    store: Store
    tokenizer: Tokenizer
    seed: int = 0
    documents: np.ndarray | None = None
    cache: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ViewConfig(abc.ABC):
    """A view in a recipe: those fields of the data section that belong to the view.

    The constructor checks the fields and raises FirthError for a bad one. `min_documents` is the
    number of documents with text that the view needs. `continues` says whether a row continues the
    same row of the batch before, which a model's memory needs.
    """

    min_documents: ClassVar[int] = 1
    continues: ClassVar[bool] = False

    length: int

    @property
    @abc.abstractmethod
    def fields(self) -> Fields:
        """The `View.fields` of this view, known without any data."""

    @abc.abstractmethod
    def view(self, source: Source) -> View:
        """The view of a source; FirthError if the source lacks text or special tokens."""
