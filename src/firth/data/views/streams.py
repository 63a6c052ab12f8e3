"""Streams: text that continues from one batch to the next, for models with a memory.

The view cuts the line of the selected documents into as many contiguous streams as a batch has
rows. The batch of step t holds the t-th row of every stream. So a model's memory of a row is the
text before the same row in the next step.
B rows, L length, T tokens on the line.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from firth.data.permutation import derive_key
from firth.data.views.base import (
    Batch,
    Fields,
    Source,
    View,
    ViewConfig,
    row_fields,
    special_ids,
)
from firth.data.views.line import ENDS, Line
from firth.data.views.reuse import Pieces, ReuseRows, check_reuse
from firth.data.views.selection import select
from firth.errors import FirthError

_LINES_KEPT = 2  # prefetching may look into the next epoch


@dataclass(frozen=True, kw_only=True)
class StreamsConfig(ViewConfig):
    """Rows of `length` tokens that continue those of the previous batch, row by row.

    The documents follow each other on one line, each epoch in another order (`shuffle=False`: as
    stored). An end token comes after each document (`ends="document"`), after each sentence
    ("sentence": the <eos> that stands for PTB's newlines) or nowhere ("none": also for a store with
    line ends as tokens). Row b reads the b-th of B contiguous streams of T // B tokens from its
    first token on (Zaremba et al. 2014, section 4.1; Dai et al. 2019, section 3.2). The epoch drops
    the rest of the line, and the rest of a stream after its last whole row.

    With `random_start` the rows of an epoch begin up to `length` - 1 tokens further on, so that in
    each epoch other tokens end a row. Each stream then drops as many tokens.

    `backward` reads the line from its end: the language model of ULMFiT's second classifier
    (Howard and Ruder 2018, section 3.3) predicts the token before.

    `reuse` > 0 makes XLNet's rows (Yang et al. 2019, sections 2.4, 2.5, 3.1): `reuse` tokens, then
    A [SEP] B [SEP] [CLS]. A continues the reused tokens and ends with a sentence. B continues A or,
    with probability 1/2 or if no sentence ends, comes from a random place of the stream. The next
    row begins `reuse` tokens later. `bidirectional` gives the second half of a batch the streams of
    the first half, read backwards.

    The extra fields are reset bool (the row begins a stream, so a model must forget the row before)
    and
    - of plain rows, following int32: the token after the row's last real one. So the tokens to
      predict at the real places are tokens[1:] and following. Segments are 0.
    - of XLNet's rows, next int32: 0 if B continues A, 1 if it is random. Segments are 0 up to A's
      [SEP], 1 up to B's and 2 for [CLS].

    The tokenizer needs an end token unless `ends="none"`, and [CLS] and [SEP] for XLNet's rows.
    Only `sequential` has padding. Its id is 0 if the tokenizer has no [PAD].

    Raises FirthError for a bad value.
    """

    continues = True

    shuffle: bool = True
    ends: str = "document"
    reuse: int = 0
    bidirectional: bool = False
    random_start: bool = False
    backward: bool = False

    def __post_init__(self):
        if self.length < 1:
            raise FirthError(f"length={self.length} is too short for a row: expected >= 1")
        if self.ends not in ENDS:
            raise FirthError(f"unknown ends {self.ends!r}: expected one of {', '.join(ENDS)}")
        if self.reuse < 0:
            raise FirthError(f"reuse={self.reuse}: expected 0 (plain rows) or more")
        if self.bidirectional and not self.reuse:
            raise FirthError("bidirectional=True is made for XLNet's rows: give reuse > 0 with it")
        if self.random_start and self.reuse:
            raise FirthError("random_start=True is made for plain rows: give reuse=0 with it")
        if self.backward and self.reuse:
            raise FirthError("backward=True is made for plain rows: give reuse=0 with it")
        if self.reuse:
            check_reuse(self.length, self.reuse)

    @property
    def fields(self) -> Fields:
        """The fields of every view, `reset`, and `next` or `following`."""
        last = "next" if self.reuse else "following"
        return row_fields(self.length, reset=bool, **{last: np.int32})

    def view(self, source: Source) -> "StreamsView":
        """The streams of a source; FirthError if the source lacks text or special tokens."""
        return StreamsView(self, source)


class StreamsView(View):
    """Rows of fixed length that continue from batch to batch; `StreamsConfig` describes them."""

    def __init__(self, config: StreamsConfig, source: Source):
        tokenizer = source.tokenizer
        self.length = config.length
        self.fields = config.fields
        self._cut = None
        if config.reuse:
            needed = "[CLS] and [SEP] (or their counterparts) for XLNet's rows"
            ids = special_ids(tokenizer, ("cls_id", "sep_id"), needed)
            self._cut = ReuseRows(config.length, config.reuse, *ids)
        if config.ends != "none":
            special_ids(tokenizer, ("end_id",), 'an end-of-text token, or choose ends="none"')
        documents = select(source.store, source.documents)
        self._stored = Line(documents, config.ends, tokenizer.end_id)
        self._pad_id = 0 if tokenizer.pad_id is None else tokenizer.pad_id
        self._bidirectional = config.bidirectional
        self._backward = config.backward
        self._seed = source.seed
        self._shuffle = config.shuffle
        self._starts = config.length if config.random_start else 1  # at how many places it may
        self._lock = threading.Lock()
        self._lines: OrderedDict[int, Line] = OrderedDict()

    @property
    def num_tokens(self) -> int:
        """T, end tokens included."""
        return self._stored.size

    def steps(self, batch_size: int) -> int:
        """The number of batches of every epoch; 0 if the text is too short for a batch."""
        size = self._stored.size // self._streams(batch_size)
        # The last token of a stream is predicted but never an input.
        return self._cut.steps(size) if self._cut else max(0, size - self._starts) // self.length

    def epoch_size(self, epoch: int, batch_size: int = 1) -> int:
        """The number of rows of an epoch, the same for all epochs."""
        return self.steps(batch_size) * batch_size

    def steps_per_epoch(self, batch_size: int) -> float:
        """See `View`."""
        return self._checked_steps(batch_size)

    def _batch(self, step: int, batch_size: int, own: slice) -> Batch:
        epoch, time = divmod(step, self._checked_steps(batch_size))
        return self._rows(self._line(epoch), epoch, time, own, batch_size)

    def _sequential(self, batch_size: int, own: slice, limit: int | None) -> Iterator[Batch]:
        """The documents as stored, in streams of `batch_size` rows, for a model with a memory.

        The rows predict every token of the line but the first exactly once. The lengths of the
        streams differ by at most a token. `following` of a stream's last row is the next stream's
        first token. Padding comes at the end of rows. A row may be empty; its `following` is then
        [PAD]. XLNet's rows are those of an epoch instead, without padding. Only the first batch has
        `reset`. A `limit` takes the heads of the streams, which begin at evenly spread places.
        """
        if self._cut:
            steps = self._checked_steps(batch_size)
        else:
            steps = -(-(self._stored.size - 1) // (batch_size * self.length))
            if not steps:
                raise FirthError("a text of a single token leaves nothing to predict: select more")
        steps = steps if limit is None else min(steps, limit)

        def batches():
            row_B = np.arange(own.start, own.stop)
            predicted = self._stored.size - 1
            start_B = row_B * predicted // batch_size
            stop_B = (row_B + 1) * predicted // batch_size
            for time in range(steps):
                if self._cut:
                    yield self._rows(self._stored, 0, time, own, batch_size)
                else:
                    begin_B = start_B + time * self.length
                    real_B = np.clip(stop_B - begin_B, 0, self.length)
                    batch = self._plain(self._stored, begin_B, real_B)
                    yield self._numbered(batch, 0, time, own, batch_size)

        return batches()

    def _rows(self, line: Line, epoch: int, time: int, own: slice, batch_size: int):
        number = self._streams(batch_size)
        size = line.size // number
        row_B = np.arange(own.start, own.stop)
        start_B = row_B % number * size
        if self._cut:
            pieces = Pieces(line, start_B, size, row_B >= number)
            key = partial(derive_key, self._seed, "streams", epoch)
            batch = self._cut.assemble(pieces, time, key, time * batch_size + row_B)
        else:
            real_B = np.full(len(row_B), self.length)
            start_B = start_B + derive_key(self._seed, "streams", epoch, "start") % self._starts
            batch = self._plain(line, start_B + time * self.length, real_B)
        return self._numbered(batch, epoch, time, own, batch_size)

    def _plain(self, line: Line, start_B: np.ndarray, real_B: np.ndarray):
        """Rows of `real` tokens each from `start` on; 0 makes an empty row."""
        row_B = np.arange(len(start_B))
        read_B = real_B + (real_B > 0)  # and the token that follows
        shape = (len(start_B), self.length + 1)
        start_B = np.where(real_B > 0, start_B, 0)
        if self._backward:
            start_B = line.size - start_B - read_B
        rows_BL = line.rows(shape, row_B, np.zeros_like(row_B), start_B, read_B)
        if self._backward:
            place_BL = np.clip(read_B[:, None] - 1 - np.arange(shape[1]), 0, None)
            rows_BL = np.take_along_axis(rows_BL, place_BL, axis=1)
        following_B = np.where(real_B > 0, rows_BL[row_B, real_B], np.int32(self._pad_id))
        mask_BL = np.arange(self.length) < real_B[:, None]
        tokens_BL = np.where(mask_BL, rows_BL[:, :-1], np.int32(self._pad_id))
        segments_BL = np.zeros_like(tokens_BL)
        return dict(tokens=tokens_BL, segments=segments_BL, mask=mask_BL, following=following_B)

    def _numbered(self, batch, epoch: int, time: int, own: slice, batch_size: int):
        rows = own.stop - own.start
        first = time * batch_size
        batch["example"] = np.arange(first + own.start, first + own.stop).astype(np.uint32)
        batch["copy"] = np.full(rows, epoch, np.uint32)
        batch["reset"] = np.full(rows, time == 0)
        return {name: batch[name] for name in self.fields}

    def _streams(self, batch_size: int) -> int:
        """The number of streams of the line."""
        if batch_size < 1 or (self._bidirectional and batch_size % 2):
            even = "even and " if self._bidirectional else ""
            raise FirthError(
                f"a batch of {batch_size} rows cannot be made of streams: batch_size must be "
                f"{even}positive" + (", half of it read backwards" if even else "")
            )
        return batch_size // 2 if self._bidirectional else batch_size

    def _checked_steps(self, batch_size: int) -> int:
        steps = self.steps(batch_size)
        if not steps:
            number = self._streams(batch_size)
            raise FirthError(
                f"a line of {self._stored.size:,} tokens is too short for batches of {batch_size} "
                f"rows of {self.length}: each of {number} streams would have "
                f"{self._stored.size // number}; choose a smaller batch_size or length, or more "
                "text"
            )
        return steps

    def _line(self, epoch: int) -> Line:
        if not self._shuffle:
            return self._stored
        with self._lock:
            if epoch not in self._lines:
                while len(self._lines) >= _LINES_KEPT:
                    self._lines.popitem(last=False)
                key = derive_key(self._seed, "streams", epoch, "order")
                self._lines[epoch] = self._stored.shuffled(key)
            self._lines.move_to_end(epoch)
            return self._lines[epoch]
