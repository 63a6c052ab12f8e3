"""Sentence pairs: [CLS] A [SEP] B [SEP], B really next or not (NSP), or swapped with A (SOP).

NSP: Devlin et al. 2018, section 3.1 and appendix A.2, as their data code does it.
SOP: Lan et al. 2019, section 3.1.
Every random decision hangs on the sentence it is taken at, so the instance that would begin at a
sentence, and where the one after it begins, are known for all sentences at once.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from firth.data.permutation import derive_key, random_below, random_heads, random_unit
from firth.data.views.selection import Selection, copy_ranges, follow, framed_rows, ranges
from firth.errors import FirthError
from firth.tokenizers.frame import truncation

ORDERS = ("nsp", "sop")


@dataclass(frozen=True)
class PairPlan:
    """I instances as two ranges of the store's tokens each."""

    a_start: np.ndarray  # int64 [I]
    a_length: np.ndarray  # int32 [I]
    b_start: np.ndarray  # int64 [I]
    b_length: np.ndarray  # int32 [I]
    label: np.ndarray  # int8 [I]: 0 = A, then what follows it; 1 = not so

    def __len__(self) -> int:
        return len(self.label)


class PairPlanner:
    """Plans and assembles sentence pairs; see `firth.data.views.planned.pairs`."""

    varies = True  # every plan cuts the documents anew
    labels = ("next",)

    def __init__(
        self,
        selection: Selection,
        length: int,
        order: str,
        seed: int,
        short_seq_prob: float,
        next_prob: float,
        cls_id: int,
        sep_id: int,
        pad_id: int,
    ):
        if order not in ORDERS:
            raise FirthError(f"unknown pair order {order!r}: expected one of {', '.join(ORDERS)}")
        for name, value in {"short_seq_prob": short_seq_prob, "next_prob": next_prob}.items():
            if not 0 <= value <= 1:
                raise FirthError(f"{name}={value} is no probability: expected 0 <= {name} <= 1")
        _check_pairable(selection)
        self.length = length
        self.special = (cls_id, sep_id, pad_id)
        self.selection = selection
        self.order, self.seed = order, seed
        self.short_seq_prob, self.next_prob = short_seq_prob, next_prob
        self.identity = f"pairs {order} {length} {short_seq_prob} {next_prob} {selection.digest}"

    def plan(self, number: int) -> PairPlan:
        """One pass over all the selected documents, in their order."""
        parts = [self._plan_documents(chunk, number) for chunk in self.selection.chunks()]
        return PairPlan(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def assemble(self, plan: PairPlan, example_B: np.ndarray) -> dict[str, np.ndarray]:
        """tokens, segments (1 from B on), mask and next of the instances `example_B`."""
        a_B, b_B = plan.a_length[example_B], plan.b_length[example_B]
        tokens_BL, mask_BL = framed_rows(a_B + b_B + 3, self.length, *self.special)
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

        N sentences; then I instances, at the sentences where one really begins.
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
        # Sentences that a random B takes the place of are pushed back: the next A begins there.
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
        """int64 [D]: the length in tokens that the instances of a document aim at."""
        longest = self.length - 3
        short_D = random_unit(key("short"), document_D) < self.short_seq_prob
        any_D = 2 + random_below(key("target"), document_D, longest - 1)
        return np.where(short_D, any_D, longest)

    def _random_segments(self, key, sentence_I, document_I, wanted_I):
        """(start, stop) in tokens of a segment from another document than `document_I`.

        Sentences from a random one on, as many as it takes for `wanted` tokens, at least one.
        BERT's code redraws the document up to ten times where it got the current one; drawing
        among the others is the same without the limit.
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
