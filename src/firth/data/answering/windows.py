"""Questions as rows of a batch: each with a window of its context, several where that is long.

Devlin et al. 2019, section 4.2, and BERT's run_squad.py. The first text of a row is the question;
in families whose rows end with [CLS], as XLNet's code has it, the context.
N questions, W windows, T context tokens, B rows, L length.
"""

import dataclasses

import numpy as np

from firth.data.answering.files import Questions
from firth.data.tasks.buckets import Buckets, Tokenised, join
from firth.data.views.base import Batch
from firth.data.views.selection import ranges
from firth.errors import FirthError
from firth.tokenizers.special_tokens import build_template
from firth.tokenizers.word_cache import SpanTokenizer

CHUNK = 2048  # texts to encode at once; bounds the memory besides the result


@dataclasses.dataclass(frozen=True)
class Windows:
    """The windows of questions, in their order.

    rows: their tokens. question: int64 [W], the number of each window's question, ascending.
    begin, size: int64 [W], the context token that comes first and how many follow from it.
    first: int64 [W], the place of that token in its row. null: int64 [W], the place that stands for
      no answer: [CLS], in a family without it the row's last token.
    spans: int32 [T, 2], the characters of the tokens of all contexts. contexts: int64 [N], where in
      `spans` those of a question's context begin.
    targets: int32 [W, 2], the places of the first and the last token of the answer, `null` where
      the window does not hold it whole; None without answers.
    held: how many questions have an answer that a window holds. cut: how many lost tokens.
    """

    rows: Tokenised
    question: np.ndarray
    begin: np.ndarray
    size: np.ndarray
    first: np.ndarray
    null: np.ndarray
    spans: np.ndarray
    contexts: np.ndarray
    targets: np.ndarray | None
    held: int
    cut: int

    def __len__(self):
        return len(self.question)


def in_windows(
    questions: Questions, tokenizer, *, length: int, stride: int, question_length: int, roles: tuple
) -> Windows:
    """Encode questions and contexts, and lay out the rows.

    Args:
      questions: of one file.
      length: the most tokens of a row.
      stride: tokens from a window to the next one; where a window has room for fewer, as many.
      question_length: the tokens of a question that are read, from its beginning.
      roles: the family's SPECIAL_TOKENS.

    Raises FirthError for a tokenizer that lacks a special token, for numbers below 1, and for a row
    without room for a token of the context, naming the question.
    """
    for name, value in (("stride", stride), ("question_length", question_length)):
        if value < 1:
            raise FirthError(f"data.{name}={value}: expected a positive number of tokens")
    template, encoder = build_template(roles, tokenizer), SpanTokenizer(tokenizer)
    q_ids, q_sizes = _encoded(encoder.encode_flat, questions.texts)
    c_ids, spans, c_sizes = _encoded(encoder.encode_spans, questions.contexts)
    kept_N = np.minimum(q_sizes, question_length)
    room_N = length - template.size(2) - kept_N
    if len(bad := np.flatnonzero(room_N < 1)):
        raise FirthError(
            f"{questions.source}: question {questions.ids[bad[0]]!r} leaves no room for its text "
            f"in a row of data.length={length}; give longer rows, or a shorter data.question_length"
        )
    c_begin = np.cumsum(c_sizes) - c_sizes
    size_N, begin_N = c_sizes[questions.context], c_begin[questions.context]
    step_N = np.minimum(stride, room_N)
    count_N = 1 + -(-np.maximum(size_N - room_N, 0) // step_N)
    question_W = np.repeat(np.arange(len(questions)), count_N)
    begin_W = ranges(np.zeros_like(count_N), count_N) * step_N[question_W]
    size_W = np.minimum(room_N, size_N)[question_W]
    size_W = np.minimum(size_W, size_N[question_W] - begin_W)

    q_begin_W, kept_W = (np.cumsum(q_sizes) - q_sizes)[question_W], kept_N[question_W]
    question = q_ids[ranges(q_begin_W, q_begin_W + kept_W)], kept_W
    c_begin_W = begin_N[question_W] + begin_W
    context = c_ids[ranges(c_begin_W, c_begin_W + size_W)], size_W
    turned = template.last_segment is not None
    texts = (context, question) if turned else (question, context)
    tokens, sizes, second, _ = join(*texts, length, template)
    first_W = np.full_like(second, len(template.before)) if turned else second
    null_W = _null(roles, sizes)
    targets, held = None, 0
    if questions.spans is not None:
        answer_N2 = _tokens_of(questions, spans, c_begin, c_sizes)
        inside_W = (answer_N2[question_W] >= begin_W[:, None]).all(1)
        inside_W &= (answer_N2[question_W] < (begin_W + size_W)[:, None]).all(1)
        place_W2 = answer_N2[question_W] + (first_W - begin_W)[:, None]
        targets = np.where(inside_W[:, None], place_W2, null_W[:, None]).astype(np.int32)
        held = len(np.unique(question_W[inside_W]))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rows = Tokenised(
        tokens,
        offsets,
        second.astype(np.int32),
        None,
        length,
        template.pad,
        truncated=0,
        last_segment=template.last_segment,
    )
    cut = int((kept_N < q_sizes).sum())
    return Windows(
        rows, question_W, begin_W, size_W, first_W, null_W, spans, begin_N, targets, held, cut
    )


def _encoded(encode, texts: list[str]) -> list[np.ndarray]:
    parts = [encode(texts[n : n + CHUNK]) for n in range(0, len(texts), CHUNK)]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _null(roles: tuple, sizes_W: np.ndarray) -> np.ndarray:
    """The place of [CLS] in rows of these sizes, else of the last token."""
    before, _, after = roles
    if "cls" in before:
        return np.full_like(sizes_W, before.index("cls"))
    return sizes_W - (len(after) - after.index("cls") if "cls" in after else 1)


def _tokens_of(questions: Questions, spans, c_begin, c_sizes) -> np.ndarray:
    """int64 [N, 2]: the first and the last token of each answer in its context; -1 without one.

    They are the first token that ends after the answer's beginning and the last one that begins
    before its end. An answer of which the tokenizer makes no token has none.
    """
    far = int(spans.max(initial=0)) + int(questions.spans.max(initial=0)) + 2
    number_T = np.repeat(np.arange(len(c_sizes)), c_sizes) * far  # contexts one after another
    begin_N, end_N = (questions.context * far + column for column in questions.spans.T)
    first_N = np.searchsorted(number_T + spans[:, 1], begin_N, side="right")
    last_N = np.searchsorted(number_T + spans[:, 0], end_N, side="left") - 1
    own_N = c_begin[questions.context]
    found = np.stack([first_N, last_N], axis=1) - own_N[:, None]
    good = (questions.spans[:, 0] >= 0) & (first_N <= last_N)
    return np.where(good[:, None], found, -1)


class AnswerBuckets(Buckets):
    """`Buckets` of windows. Beside its fields, where there are answers: starts and ends, int32,
    the places of the answer's first and last token in the row; 0 in padding rows.
    """

    def __init__(self, windows: Windows, seed: int = 0, lengths=None):
        """Args: windows; the others are as of `Buckets`."""
        super().__init__(windows.rows, lengths, seed)
        self._targets = windows.targets
        if windows.targets is not None:
            number = ((), np.dtype(np.int32))
            self.fields = self.fields | {"starts": number, "ends": number}

    def _assemble(self, example_B: np.ndarray, length: int, epoch: int) -> Batch:
        batch = super()._assemble(example_B, length, epoch)
        if self._targets is not None:
            targets = np.where(example_B[:, None] >= 0, self._targets[np.maximum(example_B, 0)], 0)
            batch["starts"], batch["ends"] = np.ascontiguousarray(targets.T)
        return batch


def max_context(begin_W: np.ndarray, size_W: np.ndarray) -> list[np.ndarray]:
    """Bool [size] of each window of one question: of all windows, this one shows the most around.

    That is min(tokens before, tokens after) + size / 100, as in BERT's code; of equal windows the
    first.
    """
    best = np.full(int((begin_W + size_W).max()), -1.0)
    owner = np.zeros(len(best), np.int64)
    for w, (begin, size) in enumerate(zip(begin_W.tolist(), size_W.tolist(), strict=True)):
        place = np.arange(size)
        score = np.minimum(place, size - 1 - place) + 0.01 * size
        part = slice(begin, begin + size)
        better = score > best[part]
        best[part] = np.where(better, score, best[part])
        owner[part] = np.where(better, w, owner[part])
    return [owner[b : b + s] == w for w, (b, s) in enumerate(zip(begin_W, size_W, strict=True))]
