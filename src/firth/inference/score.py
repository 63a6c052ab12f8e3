"""`firth score`: the log-probability of every token of a text.

firth score --model DIR --input sentences.txt --output scores.jsonl

A causal model gives log p(token | tokens before it), starting after an end-of-text token. XLNet
gives the same with the left-to-right factorization order. A masked model gives
pseudo-log-likelihoods: it masks each token in turn and predicts it from all others (Salazar et al.
2020, section 2); so does XLNet where asked. ELMo gives the mean of its two directions. A
discriminator, such as ELECTRA's, gives log P(the token is the original). B rows, L length, D hidden
size, V vocabulary.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from firth.data.corpus.stream import Stream
from firth.errors import FirthError
from firth.inference.characters.both_ways import score_both_ways, vocabulary
from firth.inference.characters.elmo import ElmoEncoder
from firth.inference.encoder import Encoder
from firth.inference.inputs import check_direction
from firth.inference.language.masked import masked_scores
from firth.inference.language.ngram import NgramLM
from firth.inference.language.row_scores import ROWS, Row, row_scores
from firth.models.model import bound
from firth.objectives.clm import next_word_losses

BATCH_SIZE = 32  # rows of 32 tokens at a time, each with logits over the whole vocabulary


@dataclass(frozen=True)
class Scored:
    """The scores of one text, in nats.

    tokens: the n scored tokens as strings. ids: their ids. log_probs: float32 [n].
    kind: "causal", "permutation", "bidirectional" (the mean of two directions), "pseudo" (whose
    sum is not the text's log-probability), or "discriminator" (whose values are of no token among
    others: log P(original)).
    """

    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    log_probs: np.ndarray
    kind: str

    def __repr__(self):
        return f"Scored({len(self.ids)} tokens, {self.kind}, total {self.total:.4g} nats)"

    @property
    def total(self) -> float:
        """The sum of the log-probabilities, in nats."""
        return float(self.log_probs.sum(dtype=np.float64))


def score(
    encoder: Encoder | NgramLM,
    texts: Sequence[str],
    *,
    end: bool = False,
    within_word: bool = False,
    pseudo: bool = False,
    batch_size: int = BATCH_SIZE,
    names: Sequence[str] | None = None,
) -> list[Scored]:
    """Log-probabilities of the tokens of each text.

    Args:
      encoder: a model with a head that predicts tokens.
      texts: strings.
      end: also score the end-of-text token after the text (causal models only).
      within_word: with a token also mask the later pieces of its word (masked models only), so
        that no piece is told by those after it (Kauf and Ivanova 2023, "PLL-word-l2r"). A word is
        what `firth.tokenizers.base.Encoding.words` numbers.
      pseudo: XLNet predicts each token from all others, between its special tokens.
      batch_size: rows of 32 tokens computed at a time, or as many tokens in other rows.
      names: the names of the texts in errors; by default "text 0" and so on.

    Returns one `Scored` for each text, in order. A text without tokens has no scores.

    Raises FirthError for a model without such a head or tokenizer, and for a text that is too long.
    """
    kind = kind_of(encoder, pseudo)
    tokenizer = tokenizer_of(encoder)
    source = encoder.source if isinstance(encoder, NgramLM) else encoder.saved.source
    if pseudo and kind != "pseudo":
        raise FirthError(
            f"{source} gives {kind} scores, where a masked model or XLNet can give pseudo ones; "
            "leave --pseudo out"
        )
    if within_word and kind != "pseudo":
        raise FirthError(
            f"{source} gives {kind} scores, for which no pieces are masked; leave --within-word out"
        )
    if isinstance(encoder, NgramLM):
        ends = [tokenizer.end_id] * end
        ids = [[*encoded.ids.tolist(), *ends] for encoded in tokenizer.encode(texts)]
        return [
            Scored(tuple(map(tokenizer.token, row)), tuple(row), values, kind)
            for row, values in zip(ids, encoder.score(ids), strict=True)
        ]
    if tokenizer is None:
        raise FirthError(f"{encoder.saved.source} holds no tokenizer, which scoring needs")
    if end and kind != "causal":
        raise FirthError(
            f"{encoder.saved.source} gives {kind} scores, which have no end of the text to score; "
            "leave --end out"
        )
    if kind == "bidirectional":
        ids = [encoded.ids for encoded in tokenizer.encode(texts)]
        return [
            Scored(tuple(map(tokenizer.token, row)), tuple(map(int, row)), values, kind)
            for row, values in zip(ids, score_both_ways(encoder, ids, batch_size), strict=True)
        ]
    names = names or [f"text {i}" for i in range(len(texts))]
    make = ROWS[kind]
    rows = [make(encoder, encoded.ids, encoded.words, end) for encoded in tokenizer.encode(texts)]
    for name, row in zip(names, rows, strict=True):
        if len(row.tokens) > encoder.max_length:
            raise FirthError(
                f"{name} has {len(row.tokens)} tokens with special ones, but the model has "
                f"{encoder.max_length} positions; shorten it"
            )
    if kind == "pseudo":
        log_probs = masked_scores(encoder, rows, batch_size, within_word)
    else:
        log_probs = row_scores(encoder, kind, rows, batch_size)
    return [
        Scored(tuple(map(tokenizer.token, row.ids)), tuple(row.ids), values, kind)
        for row, values in zip(rows, log_probs, strict=True)
    ]


def tokenizer_of(encoder: Encoder | NgramLM):
    """The tokenizer whose tokens a model scores, or None; of an ELMo the words of its softmax."""
    return vocabulary(encoder) if isinstance(encoder, ElmoEncoder) else encoder.tokenizer


def kind_of(encoder: Encoder | NgramLM, pseudo: bool = False) -> str:
    """The kind of scores that a model gives, with the option `pseudo` of `score`.

    Raises FirthError for a model that predicts no tokens.
    """
    if isinstance(encoder, NgramLM):
        return encoder.kind
    if isinstance(encoder, ElmoEncoder):
        return "bidirectional"
    heads = encoder.model.heads
    check_direction(encoder)
    if "lm" in heads and encoder.model.encoder.config.causal:
        return "causal"
    if "lm" in heads and hasattr(encoder.model.encoder, "two_streams"):
        return "pseudo" if pseudo else "permutation"
    if "mlm" in heads:
        return "pseudo"
    if "rtd" in heads:
        return "discriminator"
    raise FirthError(
        f"{encoder.saved.source} has no head that scores tokens (lm, mlm or rtd); it has "
        f"{', '.join(encoder.saved.heads) or 'none'}"
    )


def score_stream(encoder: Encoder, tokens_T, window: int, batch_size: int = 8) -> np.ndarray:
    """float64 [T]: the log-probability of each token of one long text, by a causal model.

    A model with memory reads the text once, window after window, each with the memory of those
    before: a recurrent network its state, Transformer-XL the last `window` tokens. For others the
    windows overlap by half, so each token is predicted from at least window // 2 tokens before it,
    or from all there are. The first token follows the end-of-text token.
    Raises FirthError for a model that is not causal, and for a window that it cannot read.
    """
    if kind_of(encoder) != "causal":
        raise FirthError(
            f"{encoder.saved.source} gives {kind_of(encoder)} scores, which are no probabilities "
            "of a text; expected a causal model"
        )
    if not 2 <= window <= encoder.max_length:
        raise FirthError(f"window={window}: expected 2 to {encoder.max_length} tokens")
    if remembers(encoder):
        return _remembering(encoder, tokens_T, window)
    text = np.concatenate([[encoder.tokenizer.end_id], tokens_T]).tolist()
    rows, half = [], window // 2
    for begin in range(0, max(len(tokens_T) - half, 1), window - half):
        known = half if begin else 0  # tokens at the front that an earlier window has scored
        ids = text[begin + 1 + known : begin + window + 1]
        rows.append(Row(text[begin : begin + window], [*range(known, known + len(ids))], ids))
    scores = np.concatenate(row_scores(encoder, "causal", rows, batch_size))
    return scores.astype(np.float64)


def score_texts(encoder: Encoder, stream: Stream, window: int, batch_size: int = 8) -> np.ndarray:
    """float64 [T]: the score of each token of a stream, by a model that is not causal.

    Each text is read by itself, between the special tokens of the model. A text of more tokens than
    `window`, or than the model has places for, is read in windows that overlap by half, and a token
    is scored in the one that has the most of the text on both its sides. The ends of texts have no
    scores: NaN. Raises FirthError for a causal model, for a discriminator, whose values are no
    probabilities of tokens, and for a window of less than 2 tokens.
    """
    kind = kind_of(encoder)
    if kind == "causal":
        raise FirthError(f"{encoder.saved.source} is causal; `score_stream` reads its texts")
    borders = np.append(np.flatnonzero(stream.starts), len(stream))
    scores_T = np.full(len(stream), np.nan)
    if kind == "bidirectional":
        spans = [slice(begin, end - 1) for begin, end in itertools.pairwise(borders)]
        found = score_both_ways(encoder, [stream.tokens[span] for span in spans], batch_size)
        for span, scores in zip(spans, found, strict=True):
            scores_T[span] = scores
        return scores_T
    if kind == "discriminator":
        raise FirthError(
            f"{encoder.saved.source} is a discriminator, which gives tokens no probabilities; "
            "expected a model that predicts them"
        )
    special = len(ROWS[kind](encoder, np.zeros(1, np.int32), None, False).tokens) - 1
    if window < 2:
        raise FirthError(f"window={window}: expected at least 2 tokens")
    window = min(window, encoder.max_length - special)
    rows, places = [], []
    for begin, end in itertools.pairwise(borders):
        for first, low, high in _overlapping(end - 1 - begin, window):
            ids = stream.tokens[begin + first : end - 1][:window]
            row = ROWS[kind](encoder, ids, None, False)
            own = slice(low - first, high - first)
            rows.append(Row(row.tokens, row.places[own], row.ids[own]))
            places.append(np.arange(begin + low, begin + high))
    if rows:
        if kind == "pseudo":
            found = masked_scores(encoder, rows, batch_size)
        else:
            found = row_scores(encoder, kind, rows, batch_size)
        scores_T[np.concatenate(places)] = np.concatenate(found)
    return scores_T


def _overlapping(length: int, window: int) -> Iterator[tuple[int, int, int]]:
    """(begin, low, high) of the windows over a text: tokens from low to high are scored there."""
    begins = [0, *range(window // 2, length - window // 2, window // 2)] if length > window else [0]
    begins = [min(begin, max(length - window, 0)) for begin in begins]
    middles = [(after + before + window) // 2 for before, after in itertools.pairwise(begins)]
    yield from zip(begins, [0, *middles], [*middles, length], strict=True)


def remembers(encoder: Encoder) -> bool:
    """Whether a model has a memory, so that it reads a text in windows that follow each other."""
    return hasattr(encoder.model.encoder, "empty_memory")


def segments(encoder: Encoder, tokens_T, length: int) -> Iterator[tuple]:
    """The windows of a text after an end token: (tokens, mask, targets), each [1, L].

    Padding fills the last one. Raises FirthError for a tokenizer without an end token.
    """
    if encoder.tokenizer.end_id is None:
        raise FirthError(
            f"the tokenizer in {encoder.saved.source} has no end-of-text token, but the first "
            "token of a text is predicted from it"
        )
    text_T = np.concatenate([[encoder.tokenizer.end_id], tokens_T]).astype(np.int32)
    for begin in range(0, len(tokens_T), length):
        rows = text_T[begin:-1][:length], text_T[begin + 1 :][:length]
        real = len(rows[0])
        tokens_1L, targets_1L = (np.pad(row, (0, length - real))[None] for row in rows)
        yield tokens_1L, np.arange(length)[None] < real, targets_1L


def _remembering(encoder: Encoder, tokens_T, window: int) -> np.ndarray:
    """float64 [T]: of each token, in windows with the memory of those before."""
    empty = encoder.model.encoder.empty_memory(1, window)
    names, memory = list(empty), list(empty.values())

    def predict(model, tokens_1L, mask_1L, targets_1L, *memory):
        before = dict(zip(names, memory, strict=True))
        out = model.encoder(tokens_1L, None, mask_1L, memory=before)
        log_probs_1L = -next_word_losses(model, out.last, targets_1L)[0]
        return log_probs_1L, *(out.memory[name] for name in names)

    program = encoder.program(("score", "memory"), lambda: bound(encoder.model, predict))
    found = []
    for segment in segments(encoder, tokens_T, window):
        log_probs_1L, *memory = program(encoder.params, *segment, *memory)
        found.append(log_probs_1L)
    found = [np.asarray(log_probs_1L[0], np.float64) for log_probs_1L in found]
    return np.concatenate(found)[: len(tokens_T)] if found else np.zeros(0)
