"""Views with a plan for each epoch: the plan decides its rows before the view makes the first one.

Example g of a run (g = step * batch_size + row) belongs to an epoch and has a rank in it. A
permutation with the key (seed, epoch) maps the rank to the number of an example of that epoch's
plan. Nothing else matters, so a run resumes without replaying anything. B rows, L length.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from firth.data.permutation import Epochs, derive_key, permute
from firth.data.views.base import (
    Batch,
    Fields,
    Source,
    View,
    ViewConfig,
    row_fields,
    special_ids,
)
from firth.errors import FirthError
from firth.tokenizers.base import Tokenizer

SHORTEST = 8
PLANS_KEPT = 2  # a batch may straddle two epochs
PLAN_VERSION = 1  # raise it if a change of code changes plans: cached epoch sizes expire


@dataclass(frozen=True, kw_only=True)
class PlannedConfig(ViewConfig):
    """Rows of at most `length` tokens.

    With `dupe_factor` > 0, epoch e is the copy e % dupe_factor: each copy has one plan and one set
    of static masks. With 0 every epoch is a copy of its own.
    """

    dupe_factor: int = 0

    def __post_init__(self):
        if self.length < SHORTEST:
            raise FirthError(
                f"length={self.length} is too short for an example: expected >= {SHORTEST}"
            )
        if self.dupe_factor < 0:
            raise FirthError(
                f"dupe_factor={self.dupe_factor}: expected 0 (new plans for ever) or more"
            )

    @property
    def fields(self) -> Fields:
        """The fields of every view."""
        return row_fields(self.length)


class Planner(Protocol):
    """Plans the rows of an epoch and then makes them.

    Attributes:
      varies: whether plans differ; if not, epochs differ only in their order.
      special: the ids of [CLS], [SEP] and [PAD].
      identity: a text that changes with anything that changes the sizes of plans.
    """

    varies: bool
    special: tuple[int, int, int]
    identity: str

    def plan(self, number: int):
        """Make plan `number`; its `len` is the number of its examples."""

    def assemble(self, plan, example_B: np.ndarray) -> Batch:
        """Make the rows of these examples of a plan, without `example` and `copy`."""


def cls_sep_pad(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """The ids of [CLS], [SEP] and [PAD]; FirthError if the tokenizer lacks one of them."""
    names = ("cls_id", "sep_id", "pad_id")
    return special_ids(tokenizer, names, "[CLS], [SEP] and [PAD] (or their counterparts)")


class PlannedView(View):
    """Examples of fixed length from a planner's plan for each epoch.

    If plans vary, the source's `cache` holds the sizes of planned epochs. Without it a run that
    resumes in epoch e first plans all earlier epochs to know their sizes.
    """

    def __init__(self, config: PlannedConfig, planner: Planner, source: Source):
        self.length = config.length
        self.fields = config.fields
        self._planner = planner
        self._seed = source.seed
        self._dupe_factor = config.dupe_factor
        self._lock = threading.RLock()
        self._plans: OrderedDict[int, object] = OrderedDict()
        cache = source.cache if planner.varies else None
        identity = "" if cache is None else source.store.digest
        self._epochs = Epochs(
            lambda number: len(self._plan(number)),
            period=config.dupe_factor if planner.varies else 1,
            cache=cache,
            identity=f"{PLAN_VERSION} {source.seed} {planner.identity} {identity}",
        )

    def epoch_size(self, epoch: int) -> int:
        """The number of examples of an epoch; plans the epoch if its size is unknown."""
        with self._lock:
            return self._epochs.size(epoch)

    def steps_per_epoch(self, batch_size: int) -> float:
        """See `View`; the last batch of an epoch may go on into the next."""
        return self.epoch_size(0) / batch_size

    def _batch(self, step: int, batch_size: int, own: slice) -> Batch:
        number = step * batch_size + own.start
        stop = step * batch_size + own.stop
        parts = []
        while number < stop:
            with self._lock:
                epoch, rank = self._epochs.locate(number)
                size = self._epochs.size(epoch)
            until = min(stop, number + size - rank)
            rank_B = np.arange(rank, rank + until - number)
            key = derive_key(self._seed, "order", epoch)
            parts.append(self._examples(epoch, permute(rank_B, size, key)))
            number = until
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.fields}

    def _sequential(self, batch_size: int, own: slice, limit: int | None) -> Iterator[Batch]:
        """The examples of epoch 0, each once and in order, in batches of one shape."""
        rows = own.stop - own.start
        size = self.epoch_size(0)
        used = size if limit is None else min(size, limit * batch_size)

        def batches():
            for start in range(own.start, used + own.start, batch_size):
                chosen_B = np.arange(start, max(start, min(start + rows, used)))
                batch = self._examples(0, chosen_B * size // used)
                yield self._padded(batch, rows) if len(chosen_B) < rows else batch

        return batches()

    def _examples(self, epoch: int, example_B: np.ndarray) -> Batch:
        with self._lock:
            plan = self._plan(self._epochs.plan(epoch))
        copy = epoch % self._dupe_factor if self._dupe_factor else epoch
        batch = self._planner.assemble(plan, example_B)
        batch["example"] = example_B.astype(np.uint32)
        batch["copy"] = np.full(len(example_B), copy, np.uint32)
        return {name: batch[name] for name in self.fields}

    def _plan(self, number: int):
        if number in self._plans:
            self._plans.move_to_end(number)
        else:
            while len(self._plans) >= PLANS_KEPT:
                self._plans.popitem(last=False)
            self._plans[number] = self._planner.plan(number)
            self._epochs.record(number, len(self._plans[number]))
        return self._plans[number]

    def _padded(self, batch: Batch, rows: int) -> Batch:
        _, _, pad_id = self._planner.special
        padded = {}
        for name, (shape, dtype) in self.fields.items():
            padded[name] = np.full((rows, *shape), pad_id if name == "tokens" else 0, dtype)
            padded[name][: len(batch[name])] = batch[name]
        return padded
