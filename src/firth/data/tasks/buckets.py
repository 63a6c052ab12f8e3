"""Labelled examples as token ids, and their view in length buckets: few shapes, little padding.

(seed, epoch) decide which examples share a batch.
N examples, T tokens, B rows of a batch, C choices, R = B C rows, L length.
"""

import functools
import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from firth.data.permutation import derive_key, permute
from firth.data.tasks.task import Examples
from firth.data.views.base import Batch, View, row_fields
from firth.data.views.selection import ranges
from firth.errors import FirthError
from firth.tokenizers.special_tokens import BERT, Template, build_template, truncation

log = logging.getLogger(__name__)

MULTIPLE = 4  # of which bucket lengths are multiples, but for the last
PADDING = 0.12  # the fewest buckets that leave less
MOST_BUCKETS = 12
FEWEST_EXAMPLES = 64  # for each bucket, which takes a compilation
NO_EXAMPLE = np.uint32(2**32 - 1)  # the number of padding rows
CHUNK_TEXTS = 8192  # texts to encode at once; bounds the memory besides the result


@dataclass(frozen=True)
class Tokenised:
    """Consecutive examples as token ids with special tokens; in BERT [CLS] a [SEP] b [SEP].

    Attributes:
      tokens: int32 [T].
      offsets: int64 [N + 1], where each example begins; the last is T.
      second: int32 [N], where in the example its second text begins; without one, the example's
        size.
      labels: int32 (index) or float32 (score) [N], or None.
      length: the most tokens of an example.
      pad_id: the id of padding in batches.
      last_segment: the segment id of an example's last token if it differs, else None.
      truncated: the number of examples that lost tokens.
      choices: C rows an example, after one another; offsets and second are then those of N C rows.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    second: np.ndarray
    labels: np.ndarray | None
    length: int
    pad_id: int
    truncated: int
    last_segment: int | None = None
    choices: int = 1

    def __len__(self):
        return len(self.second) // self.choices


def tokenise(examples: Examples, tokenizer, length: int, roles: tuple = BERT) -> Tokenised:
    """Encode texts and cut them to `length` tokens, special tokens included.

    A text loses tokens at its end. A pair loses one token at a time from the longer text, or from
    the second one if both are equal (`_truncate_seq_pair` of the BERT code). `roles` are the
    family's SPECIAL_TOKENS.

    Raises:
      FirthError: the tokenizer lacks a special token, or a text has no room for a token.
    """
    template = build_template(roles, tokenizer)
    texts = 1 if examples.texts_b is None else 2
    fewest = template.size(texts) + texts
    if length < fewest:
        raise FirthError(f"length={length}: expected at least {fewest} for {texts} text(s)")
    parts, empty = [], []
    for begin in range(0, len(examples), CHUNK_TEXTS):
        chunk = slice(begin, begin + CHUNK_TEXTS)
        a = tokenizer.encode_flat(examples.texts_a[chunk])
        b = tokenizer.encode_flat(examples.texts_b[chunk]) if texts == 2 else None
        empty += [begin + i for i in np.flatnonzero((a[1] == 0) | (b is not None and b[1] == 0))]
        parts.append(join(a, b, length, template))
    if empty:
        counts = len(empty), len(examples), examples.rows[empty[0]]
        log.info("%s: no token in a text of %d of %d rows, first row %d", examples.source, *counts)
    tokens, sizes, second, cut = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Tokenised(
        tokens=tokens,
        offsets=starts_of(sizes),
        second=second.astype(np.int32),
        labels=examples.labels,
        length=length,
        pad_id=template.pad,
        truncated=int(np.count_nonzero(cut)),
        last_segment=template.last_segment,
    )


def join(a, b, length: int, template: Template, cut=truncation) -> tuple[np.ndarray, ...]:
    """(tokens [T], sizes [N], second [N], lost tokens [N]) of texts, or, where `b` is given, pairs.

    `a` and `b` are (ids of all, sizes [N]). `cut` is (sizes of a, sizes of b, most of both) -> the
    tokens that each loses. See `tokenise`.
    """
    a_tokens, a_sizes = a
    b_tokens, b_sizes = b or (np.zeros(0, np.int32), np.zeros_like(a_sizes))
    special = template.size(1 if b is None else 2)
    a_cut, b_cut = cut(a_sizes, b_sizes, length - special)
    a_kept, b_kept = a_sizes - a_cut, b_sizes - b_cut
    sizes = a_kept + b_kept + special
    starts = starts_of(sizes)[:-1]
    first = len(template.before)
    between = () if b is None else template.between
    second = first + a_kept + len(between)
    tokens = np.empty(sizes.sum(), np.int32)
    for ids, place in (
        (template.before, starts),
        (between, starts + first + a_kept),
        (template.after, starts + second + b_kept),
    ):
        tokens[place[:, None] + np.arange(len(ids))] = np.array(ids, np.int32)
    if b is None:
        second = sizes  # there is no second text
    for flat, whole, kept, place in (
        (a_tokens, a_sizes, a_kept, starts + first),
        (b_tokens, b_sizes, b_kept, starts + second),
    ):
        begin = starts_of(whole)[:-1]
        tokens[ranges(place, place + kept)] = flat[ranges(begin, begin + kept)]
    return tokens, sizes, second, a_cut + b_cut


def starts_of(sizes: np.ndarray) -> np.ndarray:
    """int64 [N + 1]: where each begins, and the end of the last."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def choose_lengths(sizes_N: np.ndarray, longest: int) -> np.ndarray:
    """Bucket lengths int64, ascending, that leave little padding around examples of these sizes.

    They are the fewest whose padding is under 12 % of all tokens, but at most 12, and one for each
    64 examples; none is above `longest`, which no size exceeds. Examples are taken to fill their
    batches. For so many buckets no other multiples of 4 have less padding: the best of k + 1
    buckets up to a length extend the best of k up to a shorter one.
    """
    lengths = np.unique(np.minimum(-(-sizes_N // MULTIPLE) * MULTIPLE, longest))
    below = np.searchsorted(np.sort(sizes_N), lengths, side="right")  # examples of at most so many
    enough = sizes_N.sum() / (1 - PADDING)
    tokens, before = lengths * below, []  # of the best buckets up to each length; the last but one
    most = min(MOST_BUCKETS, len(sizes_N) // FEWEST_EXAMPLES, len(lengths))
    while tokens[-1] >= enough and len(before) + 1 < most:
        added = lengths * (below - below[:, None])  # [shorter, longer]: one more bucket
        sums = np.where(lengths[:, None] < lengths, tokens[:, None] + added, tokens)
        before.append(sums.argmin(axis=0))
        tokens = sums.min(axis=0)
    chosen = [len(lengths) - 1]
    for shorter in reversed(before):
        chosen.append(shorter[chosen[-1]])
    return np.unique(lengths[chosen])


class Buckets(View):
    """Batches of examples of like length, each as long as its bucket.

    An epoch permutes the examples, puts each into the smallest bucket that holds it and cuts every
    bucket into batches. Examples that do not fill a batch move to the next larger bucket. So only
    one batch of an epoch, of the largest bucket in use, may have padding rows. Every epoch has each
    example exactly once and shuffles the batches. The number of batches of each length is the same
    in every epoch.

    All slices of a batch have the same length L, that of its bucket. The extra fields are weight
    float32 (0 for padding rows) and labels int32 or float32 (absent from a test set; [B, C] where a
    text has several). `example` is the number of the example, NO_EXAMPLE in padding rows; `copy` is
    the epoch. In padding rows tokens are [PAD] and mask is False.

    An example with C > 1 choices has C rows: tokens, segments and mask are [B, C, L], B examples,
    and the longest of the rows decides the bucket.
    """

    def __init__(self, tokenised: Tokenised, lengths: Sequence[int] | None = None, seed: int = 0):
        """Args: tokenised, the examples; lengths, of the buckets; seed, of the order.

        Without lengths, `choose_lengths` finds them in the examples. Buckets longer than
        `tokenised.length` are dropped; one of that length always exists.
        """
        if not len(tokenised):
            raise FirthError("there are no examples to batch")
        self._row_sizes = np.diff(tokenised.offsets)
        self._sizes = self._row_sizes.reshape(-1, tokenised.choices).max(axis=1)
        self.length = tokenised.length
        if lengths is None:
            lengths = choose_lengths(self._sizes, self.length)
        if not all(length > 0 for length in lengths):
            raise FirthError(f"bucket lengths {tuple(lengths)}: expected positive numbers")
        self.lengths = np.array(
            sorted({*(n for n in lengths if n < self.length), self.length}), np.int64
        )
        self.fields = row_fields(None, weight=np.float32)
        if (labels := tokenised.labels) is not None:
            self.fields["labels"] = (labels.shape[1:], labels.dtype)
        if (C := tokenised.choices) > 1:
            rows = {name: self.fields[name] for name in ("tokens", "segments", "mask")}
            self.fields |= {name: ((C, *shape), kind) for name, (shape, kind) in rows.items()}
        self._examples = tokenised
        self._seed = operator.index(seed)
        self._bucket = np.searchsorted(self.lengths, self._sizes)
        self._plan = functools.lru_cache(maxsize=4)(self._make_plan)

    def epoch_size(self, epoch: int = 0) -> int:
        """The number of examples of an epoch: all of them."""
        return len(self._examples)

    def steps_per_epoch(self, batch_size: int) -> int:
        """The number of batches of every epoch."""
        return -(-len(self._examples) // batch_size)

    def shapes(self, batch_size: int, sequential: bool = False) -> list[int]:
        """The lengths L of the batches of `batch` (or of `sequential`), to compile ahead."""
        plan = self._sequential_plan if sequential else functools.partial(self._plan, 0)
        return np.unique(plan(batch_size)[1]).tolist()

    def pad_fraction(self, batch_size: int, sequential: bool = False) -> float:
        """The share of padding among an epoch's token positions."""
        plan = self._sequential_plan if sequential else functools.partial(self._plan, 0)
        rows = batch_size * self._examples.choices
        return 1.0 - len(self._examples.tokens) / float(plan(batch_size)[1].sum() * rows)

    def _batch(self, step: int, batch_size: int, own: slice) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch(batch_size))
        rows, lengths = self._plan(epoch, batch_size)
        return self._assemble(rows[place, own], lengths[place], epoch)

    def _sequential(self, batch_size: int, own: slice, limit: int | None) -> Iterator[Batch]:
        """Every example once, by length; `example` is its number."""
        rows, lengths = self._sequential_plan(batch_size, limit)
        return (self._assemble(r[own], n, 0) for r, n in zip(rows, lengths, strict=True))

    def _make_plan(self, epoch: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """(examples int64 [steps, B], -1 for padding rows; L int64 [steps]) of an epoch."""
        order = self._permutation("order", epoch, len(self._examples))
        bucket = self._bucket[order]
        rows, lengths, waiting = [], [], np.zeros(0, np.int64)  # ranks in `order`
        for number in range(bucket.max() + 1):
            ranks = np.sort(np.concatenate([waiting, np.flatnonzero(bucket == number)]))
            filled = len(ranks) - len(ranks) % batch_size
            if number == bucket.max():
                filled = len(ranks)
            ranks, waiting = ranks[:filled], ranks[filled:]
            rows.append(_in_batches(order[ranks], batch_size))
            lengths.append(np.full(len(rows[-1]), self.lengths[number]))
        shuffled = self._permutation("batches", epoch, self.steps_per_epoch(batch_size))
        return np.concatenate(rows)[shuffled], np.concatenate(lengths)[shuffled]

    def _sequential_plan(
        self, batch_size: int, limit: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        size = len(self._sizes)
        used = size if limit is None else min(size, limit * batch_size)
        by_length = np.argsort(self._sizes, kind="stable")
        rows = _in_batches(by_length[np.arange(used) * size // used], batch_size)
        bucket = np.where(rows >= 0, self._bucket[rows], 0).max(axis=1)
        return rows, self.lengths[bucket]

    def _permutation(self, purpose: str, epoch: int, size: int) -> np.ndarray:
        return permute(np.arange(size), size, derive_key(self._seed, purpose, epoch))

    def _assemble(self, example_B: np.ndarray, length: int, epoch: int) -> Batch:
        examples, real_B = self._examples, example_B >= 0
        number_B = np.where(real_B, example_B, 0)
        row_R = (number_B[:, None] * examples.choices + np.arange(examples.choices)).ravel()
        size_R = np.where(np.repeat(real_B, examples.choices), self._row_sizes[row_R], 0)
        place_L = np.arange(length)
        mask_RL = place_L < size_R[:, None]
        tokens_RL = np.full(mask_RL.shape, examples.pad_id, np.int32)
        first_R = examples.offsets[row_R]
        tokens_RL[mask_RL] = examples.tokens[ranges(first_R, first_R + size_R)]
        segments_RL = (mask_RL & (place_L >= examples.second[row_R, None])).astype(np.int32)
        if examples.last_segment is not None:
            segments_RL[place_L == size_R[:, None] - 1] = examples.last_segment
        shape = (len(example_B), *self.fields["tokens"][0][:-1], length)
        batch = {
            "tokens": tokens_RL.reshape(shape),
            "segments": segments_RL.reshape(shape),
            "mask": mask_RL.reshape(shape),
            "example": np.where(real_B, number_B, NO_EXAMPLE).astype(np.uint32),
            "copy": np.full(len(example_B), epoch, np.uint32),
            "weight": real_B.astype(np.float32),
        }
        if examples.labels is not None:
            labels = examples.labels[number_B]
            labels[~real_B] = 0
            batch["labels"] = labels
        return batch


def of_splits(make: Callable[..., Buckets], splits: Mapping) -> dict[str, Buckets]:
    """The view of each split, by `make(rows of the split, lengths=)`.

    All have the lengths of train's, so that no other shape is compiled for them.
    """
    train = make(splits["train"], lengths=None)
    others = {name: rows for name, rows in splits.items() if name != "train"}
    return {"train": train} | {n: make(rows, lengths=train.lengths) for n, rows in others.items()}


def _in_batches(examples: np.ndarray, batch_size: int) -> np.ndarray:
    """Rows of `batch_size` examples; -1 fills the last row."""
    missing = -len(examples) % batch_size
    return np.append(examples, np.full(missing, -1)).reshape(-1, batch_size)
