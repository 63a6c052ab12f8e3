"""Streams of sentences read in both directions, for ELMo's two language models.

As the released code has them (Peters et al. 2018): each row is a stream of sentences cut into
windows, which go on from batch to batch. The forward model reads a sentence from its begin mark on
and predicts each next word, its end mark last. The backward model reads the same sentence reversed,
from its end mark on, and predicts its begin mark last. Neither reads the mark that it predicts.
B rows, L length, S sentences, T places, W characters of a word.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from firth.data.permutation import derive_key, permute
from firth.data.views.base import Batch, Fields, Source, View, ViewConfig, row_fields, special_ids
from firth.data.views.selection import ranges, select
from firth.errors import FirthError
from firth.tokenizers.spelling import BEGIN, END, PLACES, spell

_ORDERS_KEPT = 2  # prefetching may look into the next epoch


@dataclass(frozen=True, kw_only=True)
class BothWaysConfig(ViewConfig):
    """Rows of `length` places that continue those of the batch before, in both directions.

    A sentence of n words has n + 1 places. Sentences follow each other in another order each epoch
    (`shuffle=False`: as stored). Row b reads the b-th of B contiguous streams of T // B places and
    drops the rest of its stream after the last whole window.

    The extra fields are characters uint16 [2, L, W], of the words that the forward and the backward
    model read (`max_characters` is W); targets int32 [2, L], the words that they predict; and reset
    bool (the row begins a stream). `tokens` are the forward targets. The begin and end mark are
    "<S>" and "</S>" in a vocabulary that has them, else its end token for both.

    Raises FirthError for a bad value.
    """

    continues = True

    shuffle: bool = True
    max_characters: int = PLACES

    def __post_init__(self):
        if self.length < 1:
            raise FirthError(f"length={self.length} is too short for a row: expected >= 1")
        if self.max_characters < 3:
            raise FirthError(f"max_characters={self.max_characters}: expected 3 or more")

    @property
    def fields(self) -> Fields:
        """The fields of every view, and those above."""
        both = (2, self.length)
        return row_fields(self.length, reset=bool) | {
            "targets": (both, np.dtype(np.int32)),
            "characters": ((*both, self.max_characters), np.dtype(np.uint16)),
        }

    def view(self, source: Source) -> "BothWaysView":
        """The streams of a source; FirthError for one without text or without an end token."""
        return BothWaysView(self, source)


class _Order:
    """Sentences one after another: where their words begin, how many, and their first places."""

    def __init__(self, begin_S, size_S, order_S=None):
        if order_S is not None:
            begin_S, size_S = begin_S[order_S], size_S[order_S]
        self.begin, self.size = begin_S, size_S
        self.starts = np.concatenate([[0], np.cumsum(size_S + 1)])


class BothWaysView(View):
    """Windows of sentences and of reversed sentences; `BothWaysConfig` describes them."""

    def __init__(self, config: BothWaysConfig, source: Source):
        self.length, self.fields = config.length, config.fields
        self._seed, self._shuffle = source.seed, config.shuffle
        selection, tokenizer = select(source.store, source.documents), source.tokenizer
        number_S = ranges(selection.first, selection.last)
        begin_S = np.asarray(selection.sentences)[number_S]
        self._tokens = selection.tokens
        self._stored = _Order(begin_S, np.asarray(selection.sentences)[number_S + 1] - begin_S)
        ids = [tokenizer.id(mark) for mark in (BEGIN, END)]
        if None in ids:
            ids = special_ids(tokenizer, ("end_id",), "an end-of-text token") * 2
        self._begin_id, self._end_id = ids
        # The marks are read by their own characters, whatever they are called in the vocabulary.
        words = [*tokenizer.vocab, BEGIN, END]
        self._spelled = spell(words, config.max_characters)[0].astype(np.uint16)
        self._marks = len(words) - 2, len(words) - 1
        self._lock = threading.Lock()
        self._orders: OrderedDict[int, _Order] = OrderedDict()

    @property
    def num_tokens(self) -> int:
        """T, a place for each word and one for each sentence."""
        return int(self._stored.starts[-1])

    def steps_per_epoch(self, batch_size: int) -> float:
        """See `View`."""
        steps = self.num_tokens // batch_size // self.length
        if not steps:
            raise FirthError(
                f"{self.num_tokens:,} places are too few for {batch_size} rows of {self.length}; "
                "choose a smaller batch_size or length, or more text"
            )
        return steps

    def _batch(self, step: int, batch_size: int, own: slice) -> Batch:
        epoch, time = divmod(step, self.steps_per_epoch(batch_size))
        start_B = np.arange(own.start, own.stop) * (self.num_tokens // batch_size)
        real_B = np.full(len(start_B), self.length)
        batch = self._windows(self._order(epoch), start_B + time * self.length, real_B)
        return self._numbered(batch, epoch, time, own, batch_size)

    def _sequential(self, batch_size: int, own: slice, limit: int | None) -> Iterator[Batch]:
        """The sentences as stored, every place once; streams differ by a place at most."""
        T, row_B = self.num_tokens, np.arange(own.start, own.stop)
        start_B, stop_B = row_B * T // batch_size, (row_B + 1) * T // batch_size
        longest = (T + batch_size - 1) // batch_size
        steps = (longest + self.length - 1) // self.length
        for time in range(steps if limit is None else min(steps, limit)):
            begin_B = start_B + time * self.length
            real_B = np.clip(stop_B - begin_B, 0, self.length)
            batch = self._windows(self._stored, begin_B, real_B)
            yield self._numbered(batch, 0, time, own, batch_size)

    def _windows(self, order: _Order, begin_B, real_B) -> Batch:
        place_L = np.arange(self.length)
        mask_BL = place_L < real_B[:, None]
        place_BL = np.where(mask_BL, begin_B[:, None] + place_L, 0)
        sentence_BL = np.searchsorted(order.starts, place_BL, side="right") - 1
        at_BL = place_BL - order.starts[sentence_BL]
        begin_BL, size_BL = order.begin[sentence_BL], order.size[sentence_BL]
        read, targets = [], []
        for first, predicted, ahead in ((0, self._end_id, True), (1, self._begin_id, False)):
            offset_BL = at_BL if ahead else size_BL - 1 - at_BL  # of the word to predict
            before_BL = offset_BL - 1 if ahead else offset_BL + 1
            words_BL = self._words(begin_BL + np.clip(before_BL, 0, size_BL - 1))
            read.append(np.where(at_BL == 0, self._marks[first], words_BL))
            words_BL = self._words(begin_BL + np.clip(offset_BL, 0, size_BL - 1))
            targets.append(np.where(at_BL == size_BL, predicted, words_BL))
        targets_B2L = np.where(mask_BL[:, None], np.stack(targets, 1), 0).astype(np.int32)
        characters = self._spelled[np.stack(read, 1)] * mask_BL[:, None, :, None]
        return dict(
            tokens=targets_B2L[:, 0],
            segments=np.zeros(mask_BL.shape, np.int32),
            mask=mask_BL,
            targets=targets_B2L,
            characters=characters.astype(np.uint16),
        )

    def _words(self, place_BL) -> np.ndarray:
        return self._tokens[place_BL].astype(np.int64)

    def _numbered(self, batch, epoch: int, time: int, own: slice, batch_size: int) -> Batch:
        first, rows = time * batch_size, own.stop - own.start
        batch["example"] = np.arange(first + own.start, first + own.stop).astype(np.uint32)
        batch["copy"] = np.full(rows, epoch, np.uint32)
        batch["reset"] = np.full(rows, time == 0)
        return {name: batch[name] for name in self.fields}

    def _order(self, epoch: int) -> _Order:
        if not self._shuffle:
            return self._stored
        with self._lock:
            if epoch not in self._orders:
                while len(self._orders) >= _ORDERS_KEPT:
                    self._orders.popitem(last=False)
                key = derive_key(self._seed, "both ways", epoch)
                count = len(self._stored.size)
                order_S = permute(np.arange(count), count, key)
                self._orders[epoch] = _Order(self._stored.begin, self._stored.size, order_S)
            self._orders.move_to_end(epoch)
            return self._orders[epoch]
