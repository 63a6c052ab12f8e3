"""Batches of several tasks that take turns; each is of one task.

The task of a step is drawn from (seed, step) alone, so that a run goes on at any step with the same
batches. ELECTRA's code mixes the examples of all tasks in every batch (Clark et al. 2020, released
code, run_finetuning.py); batches of one task keep texts of like length together.
"""

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from firth.data.permutation import derive_key, random_unit
from firth.data.tasks.buckets import Buckets, Tokenised
from firth.data.views.base import Batch, View
from firth.errors import FirthError

BLOCK = 4096  # steps whose tasks are drawn at once


class TaskBuckets(Buckets):
    """The examples of one of several tasks.

    The extra fields are task int32, its `number`, and labels float32 [W]: a class's index or a
    score at place 0, or 1 at each of several labels. W is `width`, that of the widest task.
    """

    def __init__(
        self,
        tokenised: Tokenised,
        lengths: Sequence[int] | None = None,
        seed: int = 0,
        *,
        number: int,
        width: int,
    ):
        super().__init__(tokenised, lengths, seed)
        self.number, self.width = number, width
        self.fields["task"] = ((), np.dtype(np.int32))
        if "labels" in self.fields:
            self.fields["labels"] = ((width,), np.dtype(np.float32))

    def _assemble(self, example_B: np.ndarray, length: int, epoch: int) -> Batch:
        batch = super()._assemble(example_B, length, epoch)
        rows = len(example_B)
        batch["task"] = np.full(rows, self.number, np.int32)
        if "labels" in batch:
            labels_BC = batch["labels"].reshape(rows, -1)
            batch["labels"] = np.zeros((rows, self.width), np.float32)
            batch["labels"][:, : labels_BC.shape[1]] = labels_BC
        return batch


class Mixture(View):
    """The batches of several tasks, each batch of one.

    A task's probability is in proportion to its batches an epoch to the `power`: 1 is what mixing
    all examples gives, 0 makes all tasks alike. Its batches come in the order of its own view, so
    that each of its examples comes once in every pass over it. An epoch has as many steps as all
    tasks have batches; a task that is drawn more often begins its next pass earlier.
    """

    def __init__(self, parts: Sequence[View], seed: int = 0, power: float = 1.0):
        if power < 0:
            raise FirthError(f"data.task_power={power:g}: expected 0 or more")
        self.parts, self.power = tuple(parts), power
        self.length = max(part.length for part in parts)
        self.fields = self.parts[0].fields
        self._key = derive_key(seed, "tasks")
        self._block = functools.lru_cache(maxsize=8)(self._draw)
        self._before = functools.lru_cache(maxsize=8)(self._count_before)

    def steps_per_epoch(self, batch_size: int) -> int:
        """The batches of all tasks."""
        return sum(part.steps_per_epoch(batch_size) for part in self.parts)

    def probabilities(self, batch_size: int) -> np.ndarray:
        """float64 [tasks]: how likely a step is of each task."""
        sizes = np.array([part.steps_per_epoch(batch_size) for part in self.parts], np.float64)
        return sizes**self.power / (sizes**self.power).sum()

    def place(self, step: int, batch_size: int) -> tuple[int, int]:
        """(the number of a step's task, how many steps before it are of that task)."""
        block, place = divmod(step, BLOCK)
        drawn = self._block(block, batch_size)
        task = int(drawn[place])
        before = self._before(block, batch_size)[task] + np.count_nonzero(drawn[:place] == task)
        return task, int(before)

    def _draw(self, block: int, batch_size: int) -> np.ndarray:
        """int64 [BLOCK]: the tasks of a block of steps."""
        borders = np.cumsum(self.probabilities(batch_size))[:-1]
        steps = np.arange(block * BLOCK, (block + 1) * BLOCK)
        return np.searchsorted(borders, random_unit(self._key, steps), side="right")

    def _count_before(self, block: int, batch_size: int) -> np.ndarray:
        """int64 [tasks]: the steps of each task before a block."""
        counts = np.zeros(len(self.parts), np.int64)
        for number in range(block):
            counts += np.bincount(self._draw(number, batch_size), minlength=len(self.parts))
        return counts

    def _batch(self, step: int, batch_size: int, own: slice) -> Batch:
        task, visit = self.place(step, batch_size)
        return self.parts[task]._batch(visit, batch_size, own)

    def _sequential(self, batch_size: int, own: slice, limit: int | None) -> Iterator[Batch]:
        for part in self.parts:
            yield from part._sequential(batch_size, own, limit)
