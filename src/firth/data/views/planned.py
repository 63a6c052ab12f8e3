"""Views turn a corpus store into examples; `batch(step)` is a pure function of the step.

Example g of a run (g = step * batch_size + row) belongs to an epoch and has a rank in it; a
stateless permutation keyed by (seed, epoch) turns the rank into the number of an example of that
epoch's plan. Nothing else decides, so a run resumes at any step, and slices of a batch for any
number of hosts are disjoint and add up to the same batch. Legend: B rows, L length.
"""

import operator
import threading
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from firth.data.permutation import Epochs, derive_key, own_rows, permute
from firth.data.views.packed import PackedPlanner
from firth.data.views.pairs import PairPlanner
from firth.data.views.selection import select, split_documents
from firth.data.views.streams import streams
from firth.errors import FirthError

__all__ = ["View", "packed", "pairs", "split_documents", "streams"]

SHORTEST = 8
PLANS_KEPT = 2  # a batch may straddle two epochs
PLAN_VERSION = 1  # raise it when a change of code changes plans: cached epoch sizes expire


def packed(
    store,
    length: int,
    *,
    cls_id: int,
    sep_id: int,
    pad_id: int,
    mode: str = "sentences",
    seed: int = 0,
    dupe_factor: int = 0,
    documents: np.ndarray | None = None,
) -> "View":
    """Rows [CLS] text [SEP] of at most `length` tokens; each corpus token once an epoch.

    `mode`: "sentences" fills a row with whole sentences, across documents with one more [SEP]
    between two (FULL-SENTENCES of Liu et al. 2019, section 4.2); "documents" never crosses a
    document border (DOC-SENTENCES); "blocks" cuts the text of all documents, without separators,
    every `length - 2` tokens. A sentence longer than a row is cut into pieces. `documents`: sorted
    numbers of the documents to use (`split_documents`), default all. `dupe_factor` only bounds the
    field `copy`, which keys static masking.

    Raises FirthError for a bad argument or where no token is selected.
    """
    _check_arguments(length, dupe_factor, cls_id=cls_id, sep_id=sep_id, pad_id=pad_id)
    planner = PackedPlanner(select(store, documents), length, mode, cls_id, sep_id, pad_id)
    return View(planner, seed=seed, dupe_factor=dupe_factor)


def pairs(
    store,
    length: int,
    *,
    cls_id: int,
    sep_id: int,
    pad_id: int,
    order: str = "nsp",
    seed: int = 0,
    short_seq_prob: float = 0.1,
    next_prob: float = 0.5,
    dupe_factor: int = 0,
    documents: np.ndarray | None = None,
    cache=None,
) -> "View":
    """Rows [CLS] A [SEP] B [SEP] of at most `length` tokens, with the extra field `next`.

    Devlin et al. 2018, appendix A.2, as in their code: a document gets a target of `length - 3`
    tokens, or with `short_seq_prob` uniform in [2, length - 3]; sentences are taken until they
    reach it and are split at random into A and B; B stays with `next_prob`, otherwise (and for a
    single sentence) it is replaced from another document and its sentences are used again. The
    longer segment is truncated at random ends. `next` is int32 [B]: 0 really next, 1 random. With
    `order="sop"` (Lan et al. 2019, section 3.1) B is swapped with A instead of being replaced,
    which leaves random only what has a single sentence, as in their code.

    Every epoch is planned anew; with `dupe_factor` > 0 epoch e repeats the plan e % dupe_factor,
    as BERT's static data do. `cache`: a JSON file that keeps the sizes of planned epochs, without
    which a run resumed in epoch e first plans those before it to know their sizes. `documents` as
    in `packed`.

    Raises FirthError for a bad argument, or where fewer than two documents have text or none has
    two sentences: the labels would mean nothing.
    """
    _check_arguments(length, dupe_factor, cls_id=cls_id, sep_id=sep_id, pad_id=pad_id)
    planner = PairPlanner(
        select(store, documents),
        length,
        order,
        seed,
        short_seq_prob,
        next_prob,
        cls_id,
        sep_id,
        pad_id,
    )
    identity = "" if cache is None else store.digest
    return View(planner, seed=seed, dupe_factor=dupe_factor, cache=cache, identity=identity)


class View:
    """Examples of fixed length drawn from a store; make one with `packed` or `pairs`.

    `length` is L. `fields` gives shape (of one example) and dtype of what a batch holds: tokens
    int32 [L], segments int32 [L], mask bool [L] (True = real token), example uint32 (its number
    within its plan), copy uint32 (the epoch, or epoch % dupe_factor) and labels int32 of the kind
    of view. May be used from several threads.
    """

    def __init__(self, planner, *, seed: int, dupe_factor: int = 0, cache=None, identity: str = ""):
        self.length = planner.length
        row, one = (self.length,), ()
        self.fields = {
            "tokens": (row, np.dtype(np.int32)),
            "segments": (row, np.dtype(np.int32)),
            "mask": (row, np.dtype(bool)),
            "example": (one, np.dtype(np.uint32)),
            "copy": (one, np.dtype(np.uint32)),
            **{label: (one, np.dtype(np.int32)) for label in planner.labels},
        }
        self._planner = planner
        self._seed = seed
        self._dupe_factor = dupe_factor
        self._lock = threading.RLock()
        self._plans: OrderedDict[int, object] = OrderedDict()
        self._epochs = Epochs(
            lambda number: len(self._plan(number)),
            period=dupe_factor if planner.varies else 1,
            cache=cache,
            identity=f"{PLAN_VERSION} {seed} {planner.identity} {identity}",
        )

    def epoch_size(self, epoch: int) -> int:
        """The number of examples of an epoch; plans it where it is not known yet."""
        with self._lock:
            return self._epochs.size(epoch)

    def batch(
        self, step: int, batch_size: int, index: int = 0, count: int = 1
    ) -> dict[str, np.ndarray]:
        """Slice `index` of `count` of the batch of `step`: B = batch_size / count rows.

        Rows index * B .. (index + 1) * B - 1 of the batch, whose fields are described by `fields`.
        Raises FirthError where the batch cannot be divided, or a number is out of range.
        """
        own = own_rows(batch_size, index, count)
        number = operator.index(step) * batch_size + own.start
        if number < 0:
            raise FirthError(f"there is no batch for step {step}: expected step >= 0")
        stop = number + own.stop - own.start
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

    def sequential(
        self, batch_size: int, index: int = 0, count: int = 1, limit: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """For evaluation: the examples of epoch 0, each once and in order, in batches of one shape.

        The last batch is filled up with rows of [PAD] whose mask is False everywhere: weight what
        belongs to a row by `mask.any(-1)`. With `limit`, at most so many batches, of examples
        spread evenly over the epoch. Every slice gets the same number of batches.
        """
        own = own_rows(batch_size, index, count)
        rows = own.stop - own.start
        if limit is not None and limit < 1:
            raise FirthError(f"limit={limit} batches leave nothing to evaluate: expected >= 1")
        size = self.epoch_size(0)
        used = size if limit is None else min(size, limit * batch_size)

        def batches():
            for start in range(own.start, used + own.start, batch_size):
                chosen_B = np.arange(start, max(start, min(start + rows, used)))
                batch = self._examples(0, chosen_B * size // used)
                yield self._filled_up(batch, rows) if len(chosen_B) < rows else batch

        return batches()

    def _examples(self, epoch: int, example_B: np.ndarray) -> dict[str, np.ndarray]:
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

    def _filled_up(self, batch: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        _, _, pad_id = self._planner.special
        filled = {}
        for name, (shape, dtype) in self.fields.items():
            filled[name] = np.full((rows, *shape), pad_id if name == "tokens" else 0, dtype)
            filled[name][: len(batch[name])] = batch[name]
        return filled


def _check_arguments(length: int, dupe_factor: int, **special: int | None) -> None:
    if length < SHORTEST:
        raise FirthError(f"length={length} is too short for an example: expected >= {SHORTEST}")
    if dupe_factor < 0:
        raise FirthError(f"dupe_factor={dupe_factor}: expected 0 (new plans for ever) or more")
    for name, value in special.items():
        if value is None or value < 0:
            raise FirthError(
                f"{name}={value} is no token id: the tokenizer must have [CLS], [SEP] and [PAD] "
                "(or their counterparts)"
            )
