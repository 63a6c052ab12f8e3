"""The view of labelled examples in packed rows: several to a row, and one shape for all batches.

B rows of a batch, L length, T the most examples of a row, N examples, S steps of an epoch.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from firth.data.packing.plan import pack
from firth.data.permutation import derive_key, permute
from firth.data.tasks.buckets import NO_EXAMPLE, Tokenised
from firth.data.views.base import Batch, View, row_fields
from firth.data.views.selection import ranges
from firth.errors import FirthError

EMPTY = -1  # the number of a row without examples


class Packed(View):
    """Batches of rows of `tokenised.length` tokens, each with as many whole examples as fit.

    `batch_size` is that of examples, on the average: a batch has B rows, as many as those need
    (`rows(batch_size)`). Which sizes share a row depends on the sizes alone (`plan.pack`). (seed,
    epoch) decide which example of a size is where, and which rows share a batch. Every epoch has
    each example exactly once. A batch takes a row from each of B groups, from rows of few long
    examples to those of many short ones, so that batches have about as many examples each.

    The fields tokens, segments and mask are those of every view. `text` int32 [L] is the number of
    the example in its row, from 1, and 0 at padding. `example` uint32, `weight` float32 and
    `labels` (absent from a test set) have an axis of examples, [T], or [T, C] of C labels that a
    text may have together; where a row has fewer, the weight is 0 and the number NO_EXAMPLE.
    `copy` is the epoch.
    """

    def __init__(
        self,
        tokenised: Tokenised,
        seed: int = 0,
        *,
        texts: int = 0,
        rows: Callable[[int], int] | None = None,
        multiple: int = 1,
    ):
        """Args: tokenised, the examples; seed, of their order.

        texts: T, if that is more than a row has here.
        rows: what B is for a `batch_size`; without it, what so many of these examples need.
        multiple: of which that number is one, for devices and micro-batches.

        Raises FirthError for no examples, and for questions with choices.
        """
        if not len(tokenised):
            raise FirthError("there are no examples to batch")
        if tokenised.choices > 1:
            raise FirthError(
                "data.packed=True: the choices of a question are rows of their own, which packed "
                "rows cannot hold; set data.packed=False"
            )
        self._sizes = np.diff(tokenised.offsets)
        self.length = tokenised.length
        self._plan = pack(self._sizes, self.length)
        self._by_size = np.argsort(self._plan.sizes, kind="stable")
        self._by_count = np.argsort(-self._plan.counts, kind="stable")
        self.texts = max(texts, int(self._plan.counts.max()))
        self.rows = rows or functools.partial(self._needed, multiple=multiple)
        self.fields = row_fields(self.length)
        self.fields["text"] = ((self.length,), np.dtype(np.int32))
        numbers = {"example": np.uint32, "weight": np.float32}
        self.fields |= {name: ((self.texts,), np.dtype(kind)) for name, kind in numbers.items()}
        if (labels := tokenised.labels) is not None:
            self.fields["labels"] = ((self.texts, *labels.shape[1:]), labels.dtype)
        self._examples, self._seed = tokenised, operator.index(seed)
        self._epoch = functools.lru_cache(maxsize=4)(self._make_epoch)

    def epoch_size(self, epoch: int = 0) -> int:
        """The number of examples of an epoch: all of them."""
        return len(self._examples)

    def steps_per_epoch(self, batch_size: int) -> int:
        """S, the number of batches of every epoch."""
        return -(-len(self._plan) // self.rows(batch_size))

    def pad_fraction(self, batch_size: int) -> float:
        """The share of padding among an epoch's token positions."""
        rows = self.steps_per_epoch(batch_size) * self.rows(batch_size)
        return 1.0 - len(self._examples.tokens) / (rows * self.length)

    def _needed(self, batch_size: int, multiple: int) -> int:
        """The rows that so many examples need on the average, or fewer that make as many steps."""
        size = len(self._plan)
        rows = max(round(batch_size * size / len(self._examples)), 1)
        steps = -(-size // rows)
        return -(-size // (steps * multiple)) * multiple

    def _batch(self, step: int, batch_size: int, own: slice) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch(batch_size))
        example_N, rows_SB = self._epoch(epoch, self.rows(batch_size))
        return self._assemble(example_N, rows_SB[place, self._own(own, batch_size)], epoch)

    def _sequential(self, batch_size: int, own: slice, limit: int | None) -> Iterator[Batch]:
        """Every example once; `example` is its number."""
        size, B = len(self._plan), self.rows(batch_size)
        used = size if limit is None else min(size, limit * B)
        rows = np.full(-(-used // B) * B, EMPTY)
        rows[:used] = np.arange(used) * size // used
        example_N = self._placed(np.arange(len(self._examples)))
        for batch_B in rows.reshape(-1, B):
            yield self._assemble(example_N, batch_B[self._own(own, batch_size)], 0)

    def _own(self, own: slice, batch_size: int) -> slice:
        """The rows of the slice `own` of so many examples."""
        B = self.rows(batch_size)
        if B * own.start % batch_size or B * own.stop % batch_size:
            raise FirthError(
                f"a batch of {B} packed rows cannot be divided into slices like that of "
                f"{own.stop - own.start} of {batch_size} examples; choose another batch_size"
            )
        return slice(B * own.start // batch_size, B * own.stop // batch_size)

    def _make_epoch(self, epoch: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """(the example of each place of the plan int64 [N], rows int64 [S, B]) of an epoch."""
        N, steps = len(self._examples), -(-len(self._plan) // rows)
        order_N = permute(np.arange(N), N, derive_key(self._seed, "order", epoch))
        groups_BS = np.full(rows * steps, EMPTY)
        groups_BS[: len(self._plan)] = self._by_count
        groups_BS = groups_BS.reshape(rows, steps)
        for number, group_S in enumerate(groups_BS):
            key = derive_key(self._seed, "rows", epoch, number)
            group_S[:] = group_S[permute(np.arange(steps), steps, key)]
        return self._placed(order_N), groups_BS.T

    def _placed(self, order_N: np.ndarray) -> np.ndarray:
        """The example of each place of the plan: those of a size in their order."""
        example_N = np.empty_like(order_N)
        example_N[self._by_size] = order_N[np.argsort(self._sizes[order_N], kind="stable")]
        return example_N

    def _assemble(self, example_N: np.ndarray, row_B: np.ndarray, epoch: int) -> Batch:
        examples, plan = self._examples, self._plan
        begin_B = plan.begins[row_B]
        end_B = np.where(row_B == EMPTY, begin_B, plan.begins[row_B + 1])
        place_K = ranges(begin_B, end_B)  # of the K examples of these rows
        row_K = np.repeat(np.arange(len(row_B)), end_B - begin_B)
        number_K = place_K - begin_B[row_K]
        example_K, size_K = example_N[place_K], plan.sizes[place_K]
        cell = row_K * self.length + plan.starts[place_K]
        cell, source = ranges(cell, cell + size_K), examples.offsets[example_K]
        within = ranges(np.zeros_like(size_K), size_K)
        tokens_BL = np.full((len(row_B), self.length), examples.pad_id, np.int32)
        segments_BL, text_BL = np.zeros_like(tokens_BL), np.zeros_like(tokens_BL)
        tokens_BL.flat[cell] = examples.tokens[ranges(source, source + size_K)]
        segments_BL.flat[cell] = within >= np.repeat(examples.second[example_K], size_K)
        text_BL.flat[cell] = np.repeat(number_K + 1, size_K)
        example_BT = np.full((len(row_B), self.texts), NO_EXAMPLE)
        example_BT[row_K, number_K] = example_K
        batch = {
            "tokens": tokens_BL,
            "segments": segments_BL,
            "mask": text_BL > 0,
            "text": text_BL,
            "example": example_BT,
            "copy": np.full(len(row_B), epoch, np.uint32),
            "weight": (example_BT != NO_EXAMPLE).astype(np.float32),
        }
        if examples.labels is not None:
            shape = (*example_BT.shape, *examples.labels.shape[1:])
            batch["labels"] = np.zeros(shape, examples.labels.dtype)
            batch["labels"][row_K, number_K] = examples.labels[example_K]
        return batch


def packed_splits(splits: Mapping, seed: int, multiple: int = 1) -> dict[str, Packed]:
    """The view of each split, all with one shape for a `batch_size`, so that one is compiled."""
    texts = max(Packed(examples).texts for examples in splits.values())
    rows = Packed(splits["train"], multiple=multiple).rows
    return {name: Packed(each, seed, texts=texts, rows=rows) for name, each in splits.items()}
