"""Sentence pairs: [CLS] A [SEP] B [SEP]; B is really next or random (NSP), or swapped with A (SOP).

NSP: Devlin et al. 2018, section 3.1 and appendix A.2, as their data code does it.
SOP: Lan et al. 2019, section 3.1.
The counter of every random choice is the number of a sentence. So array operations compute, for all
sentences at once, the instance that would begin there and the beginning of the next one.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from firth.data.permutation import derive_key, random_below, random_heads, random_unit
from firth.data.views.base import Fields, Source, row_fields
from firth.data.views.planned import PlannedConfig, PlannedView, cls_sep_pad
from firth.data.views.selection import Selection, copy_ranges, follow, ranges, select, template_rows
from firth.errors import FirthError
from firth.tokenizers.special_tokens import truncation

ORDERS = ("nsp", "sop")


@dataclass(frozen=True, kw_only=True)
class PairsConfig(PlannedConfig):
    """Rows [CLS] A [SEP] B [SEP] of at most `length` tokens, with the extra field `next`.

    Devlin et al. 2018, appendix A.2, as in their code:
    - A document gets a target of `length - 3` tokens, or with probability `short_seq_prob` a
      uniform one in [2, length - 3]. An instance takes sentences until they reach the target.
    - A random cut splits them into A and B. B stays with probability `next_prob`. Otherwise, and
      for a single sentence, B comes from another document. The next instance then begins with the
      sentences that B replaced.
    - Truncation takes tokens from random ends of the longer segment.
    - `next` is int32: 0 really next, 1 random.

    With `order="sop"` (Lan et al. 2019, section 3.1) B swaps with A instead. Only an instance with
    a single sentence still gets a random B, as in their code.

    Every epoch has a new plan. With `dupe_factor` > 0, epoch e repeats the plan e % dupe_factor, as
    BERT's static data do.

    Raises FirthError for a bad value. `view` also raises it if fewer than two documents have text,
    or none has two sentences, because the labels would mean nothing.
    """

    min_documents: ClassVar[int] = 2  # a random second text needs another document

    order: str = "nsp"
    short_seq_prob: float = 0.1
    next_prob: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        if self.order not in ORDERS:
            raise FirthError(
                f"unknown pair order {self.order!r}: expected one of {', '.join(ORDERS)}"
            )
        for name in ("short_seq_prob", "next_prob"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise FirthError(f"{name}={value} is no probability: expected 0 <= {name} <= 1")

    @property
    def fields(self) -> Fields:
        """The fields of every view, and `next`."""
        return row_fields(self.length, next=np.int32)

    def view(self, source: Source) -> PlannedView:
        """The pairs of a source; FirthError if their labels would mean nothing."""
        special = cls_sep_pad(source.tokenizer)
        selection = select(source.store, source.documents)
        planner = PairPlanner(self, selection, special, source.seed)
        return PlannedView(self, planner, source)


@dataclass(frozen=True)
class PairPlan:
    """I instances; each is two ranges of the store's tokens."""

    a_start: np.ndarray  # int64 [I]
    a_length: np.ndarray  # int32 [I]
    b_start: np.ndarray  # int64 [I]
    b_length: np.ndarray  # int32 [I]
    label: np.ndarray  # int8 [I]: 0 = B follows A; 1 = it does not

    def __len__(self) -> int:
        return len(self.label)


class PairPlanner:
    """Plans and makes sentence pairs."""

    varies = True  # every plan has other cuts

    def __init__(
        self,
        config: PairsConfig,
        selection: Selection,
        special: tuple[int, int, int],
        seed: int,
    ):
        _check_pairable(selection)
        self.length, self.order = config.length, config.order
        self.short_seq_prob, self.next_prob = config.short_seq_prob, config.next_prob
        self.special = special
        self.selection = selection
        self.seed = seed
        self.identity = (
            f"pairs {self.order} {self.length} {self.short_seq_prob} {self.next_prob} "
            f"{selection.digest}"
        )

    def plan(self, number: int) -> PairPlan:
        """One pass over all the selected documents, in their order."""
        parts = [self._plan_documents(chunk, number) for chunk in self.selection.chunks()]
        return PairPlan(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def assemble(self, plan: PairPlan, example_B: np.ndarray) -> dict[str, np.ndarray]:
        """tokens, segments (1 from B on), mask and next of the instances `example_B`."""
        a_B, b_B = plan.a_length[example_B], plan.b_length[example_B]
        tokens_BL, mask_BL = template_rows(a_B + b_B + 3, self.length, *self.special)
        row_B = np.arange(len(a_B))
        copy_ranges(
            tokens_BL,
            np.concatenate([row_B, row_B]),
            np.concatenate([np.ones_like(a_B), a_B + 2]),
            self.selection.tokens,
            np.concatenate([plan.a_start[example_B], plan.b_start[example_B]]),
            np.concatenate([a_B, b_B]),
        )
        segments_BL = (mask_BL & (np.arange(self.length) >= a_B[:, None] + 2)).astype(np.int32)
        label_B = plan.label[example_B].astype(np.int32)
        return {"tokens": tokens_BL, "segments": segments_BL, "mask": mask_BL, "next": label_B}

    def _plan_documents(self, documents: slice, number: int) -> tuple[np.ndarray, ...]:
        """The columns of a PairPlan for some of the documents.

        N sentences; then I instances, one for each sentence where an instance begins.
        """
        key = partial(derive_key, self.seed, "pairs", number)
        token = self.selection.sentences
        first_D, last_D = self.selection.first[documents], self.selection.last[documents]
        document_D = np.arange(documents.start, documents.stop)
        target_D = self._targets(key, document_D)

        size_D = last_D - first_D
        sentence_N = ranges(first_D, last_D)
        document_N, target_N = np.repeat(document_D, size_D), np.repeat(target_D, size_D)
        full_N = np.searchsorted(token, token[sentence_N] + target_N)
        stop_N = np.minimum(full_N, np.repeat(last_D, size_D))
        count_N = stop_N - sentence_N
        cut_N = sentence_N + 1
        cut_N += random_below(key("cut"), sentence_N, np.maximum(count_N - 1, 1))
        label_N = (count_N == 1) | (random_unit(key("next"), sentence_N) >= self.next_prob)
        other_N = label_N if self.order == "nsp" else count_N == 1
        # A random B pushes back the sentences that it replaces: the next A begins there.
        after_N = np.where(other_N, cut_N, stop_N)
        begin = follow(after_N - sentence_N + np.arange(len(sentence_N)))

        sentence_I, label_I, other_I = sentence_N[begin], label_N[begin], other_N[begin]
        a_I, b_I = token[sentence_I], token[cut_N[begin]]
        a_stop_I, b_stop_I = b_I.copy(), token[stop_N[begin]]
        wanted_I = target_N[begin] - (a_stop_I - a_I)
        b_I[other_I], b_stop_I[other_I] = self._random_segments(
            key, sentence_I[other_I], document_N[begin][other_I], wanted_I[other_I]
        )
        swap_I = label_I & ~other_I
        a_I[swap_I], b_I[swap_I] = b_I[swap_I], a_I[swap_I]
        a_stop_I[swap_I], b_stop_I[swap_I] = b_stop_I[swap_I], a_stop_I[swap_I]

        a_cut, b_cut = truncation(a_stop_I - a_I, b_stop_I - b_I, self.length - 3)
        return (
            a_I + random_heads(key("front of a"), sentence_I, a_cut),
            (a_stop_I - a_I - a_cut).astype(np.int32),
            b_I + random_heads(key("front of b"), sentence_I, b_cut),
            (b_stop_I - b_I - b_cut).astype(np.int32),
            label_I.astype(np.int8),
        )

    def _targets(self, key, document_D: np.ndarray) -> np.ndarray:
        """int64 [D]: the target length, in tokens, of a document's instances."""
        full = self.length - 3
        short_D = random_unit(key("short"), document_D) < self.short_seq_prob
        any_D = 2 + random_below(key("target"), document_D, full - 1)
        return np.where(short_D, any_D, full)

    def _random_segments(self, key, sentence_I, document_I, wanted_I):
        """(start, stop) in tokens of a segment from another document than `document_I`.

        It begins at a random sentence and takes sentences until it has `wanted` tokens, at least
        one. BERT's code redraws the document up to ten times if it is the current one. A draw among
        the others is the same without that limit.
        """
        token = self.selection.sentences
        others = len(self.selection.first) - 1
        drawn_I = random_below(key("document"), sentence_I, others)
        drawn_I += drawn_I >= document_I
        first_I, last_I = self.selection.first[drawn_I], self.selection.last[drawn_I]
        first_I = first_I + random_below(key("sentence"), sentence_I, last_I - first_I)
        full_I = np.searchsorted(token, token[first_I] + wanted_I)
        return token[first_I], token[np.clip(full_I, first_I + 1, last_I)]


def _check_pairable(selection: Selection) -> None:
    if len(selection.first) < 2:
        raise FirthError(
            "sentence pairs need at least two documents with text and 1 is selected: a random "
            "second segment would come from the same document and its label would be noise; mark "
            "document borders (blank lines) when preparing the store, or train without sentence "
            "pairs"
        )
    if (selection.last - selection.first).max() < 2:
        raise FirthError(
            "sentence pairs need documents of several sentences, but each of the "
            f"{len(selection.first)} selected ones is a single sentence, so no second segment "
            "would really be next; prepare the store with sentence segmentation, or train without "
            "sentence pairs"
        )
