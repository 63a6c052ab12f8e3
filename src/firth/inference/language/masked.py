"""Pseudo-log-likelihoods: each token of a text masked in turn (Salazar et al. 2020, section 2).

A masked model runs once for every token. What it runs on is gathered first, so that an input that
several texts share is computed once: the same text again, or two texts that differ in the masked
token alone. Only the masked position goes through the head and, in most families, the last layer.
XLNet reads no mask: the masked tokens come last in its order, where no other token sees them.
B rows, L length, V vocabulary, K targets, N texts of a length, P their scored tokens, U inputs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from firth.inference.batching import ROW, repeat_first, token_batches
from firth.inference.encoder import Encoder
from firth.inference.execution.ahead import computed
from firth.inference.language.row_scores import Row
from firth.models.model import bound

# Row lengths are multiples of it. There is a row for each token, so that padding costs more than
# the few more shapes: on BLiMP 3.6 % of the tokens, and 9.8 % in multiples of 4.
STEP = 2
TARGETS = 2  # K: of one input; the two sentences of a minimal pair often differ in one token
CELLS = 1 << 24  # tokens of inputs that are compared at a time


class Inputs(NamedTuple):
    """Different inputs of one length, and what to read of them.

    tokens: int32 [U, L]. places: int32 [U], which one is predicted. targets: int32 [U, K].
    texts: int [N]. inputs, slots: int [N, P], where each token of each text has its score.
    """

    tokens: np.ndarray
    places: np.ndarray
    targets: np.ndarray
    texts: np.ndarray
    inputs: np.ndarray
    slots: np.ndarray


def masked_scores(
    encoder: Encoder, rows: list[Row], batch_size: int, within_word: bool = False
) -> list[np.ndarray]:
    """float32 [n] of every row: log P(token | all tokens that are not masked).

    Args:
      encoder: a model with a masked language model's head, or XLNet.
      rows: the texts between their special tokens; with their `words` if `within_word`.
      batch_size: masked rows of 32 tokens computed at a time, or as many tokens in other rows.
      within_word: also mask the later pieces of the same word (Kauf and Ivanova 2023).
    """
    parts = list(_inputs(rows, encoder.tokenizer.mask_id, within_word))
    tokens = [tokens_L for part in parts for tokens_L in part.tokens]
    places_U = np.concatenate([np.zeros(0, np.int32), *(part.places for part in parts)])
    targets_UK = np.concatenate([np.zeros((0, TARGETS), np.int32), *(p.targets for p in parts)])
    values_UK = np.zeros(targets_UK.shape, np.float32)
    program = encoder.program(("score", "pseudo"), lambda: _predictor(encoder))

    def prepare(batch):
        some = batch.members
        tokenised = [(tokens[i], len(tokens[i])) for i in some]
        arrays = (*encoder.pad(tokenised, batch.length), places_U[some], targets_UK[some])
        return some, repeat_first(arrays, batch.rows)

    sizes = list(map(len, tokens))
    batches = token_batches(sizes, batch_size * ROW, encoder.max_length, STEP)
    for some, values_BK in computed(program, encoder.params, map(prepare, batches)):
        values_UK[some] = values_BK[: len(some)]
    scores, before = [np.zeros(0, np.float32)] * len(rows), 0
    for part in parts:
        values_NP = values_UK[before + part.inputs, part.slots]
        before += len(part.tokens)
        for number, values_P in zip(part.texts, values_NP, strict=True):
            scores[number] = values_P
    return scores


def _inputs(rows: list[Row], mask_id: int, within_word: bool) -> Iterator[Inputs]:
    """What the model runs on for the rows, those of one length after another."""
    alike = {}
    for number, row in enumerate(rows):
        if row.ids:
            alike.setdefault((len(row.tokens), len(row.ids)), []).append(number)
    for (L, P), numbers in alike.items():
        step = max(CELLS // (L * P), 1)
        for begin in range(0, len(numbers), step):
            texts_N = np.array(numbers[begin : begin + step])
            yield _of_length([rows[n] for n in texts_N], texts_N, mask_id, within_word)


def _of_length(rows: list[Row], texts_N, mask_id: int, within_word: bool) -> Inputs:
    """The inputs of rows that have as many tokens and places."""
    tokens_NL = np.array([row.tokens for row in rows], np.int32)
    places_NP = np.array([row.places for row in rows], np.int32)
    ids_NP = np.array([row.ids for row in rows], np.int32)
    N, P = ids_NP.shape
    hides_NPP = np.broadcast_to(np.eye(P, dtype=bool), (N, P, P))  # input i hides token j
    if within_word:
        words_NP = np.stack([row.words for row in rows])
        hides_NPP = np.triu(words_NP[:, :, None] == words_NP[:, None])
    # The last column is the place: inputs that hide a whole word are equal but for it.
    inputs_NPL = np.concatenate([np.repeat(tokens_NL[:, None], P, 1), places_NP[..., None]], 2)
    n, i, j = np.nonzero(hides_NPP)
    inputs_NPL[n, i, places_NP[n, j]] = mask_id
    inputs_UL, input_T = np.unique(inputs_NPL.reshape(N * P, -1), axis=0, return_inverse=True)
    # The different targets of each input, in its order; K of them make an input of their own.
    wanted_T2 = np.stack([input_T.reshape(-1), ids_NP.reshape(-1)], 1)
    wanted_W2, wanted_T = np.unique(wanted_T2, axis=0, return_inverse=True)
    input_W, target_W = wanted_W2.T
    rank_W = np.arange(len(input_W)) - np.searchsorted(input_W, input_W)
    slot_W = rank_W % TARGETS
    number_W = np.cumsum(slot_W == 0) - 1
    targets_UK = np.zeros((number_W[-1] + 1, TARGETS), np.int32)
    targets_UK[number_W, slot_W] = target_W
    inputs_UL = inputs_UL[input_W[slot_W == 0]]
    wanted_NP = wanted_T.reshape(N, P)
    return Inputs(
        tokens=inputs_UL[:, :-1],
        places=inputs_UL[:, -1],
        targets=targets_UK,
        texts=texts_N,
        inputs=number_W[wanted_NP],
        slots=slot_W[wanted_NP],
    )


def _predictor(encoder: Encoder):
    """(params, tokens, segments, mask, places, targets) -> log-probabilities [B, K].

    They are those of the targets at one place of each row.
    """

    def masked(model, tokens_BL, segments_BL, mask_BL, places_B1):
        out = model.read_at(places_B1, tokens_BL, None, mask_BL)
        return model.mlm(out.last)

    def permuted(model, tokens_BL, segments_BL, mask_BL, places_B1):
        ranks_BL = (tokens_BL == encoder.tokenizer.mask_id).astype(jnp.int32)
        row = tokens_BL, segments_BL, mask_BL
        _, query_B1D = model.encoder.two_streams(*row, ranks_BL, places_B1, train=False)
        return model.lm(query_B1D)

    logits = masked if "mlm" in encoder.model.heads else permuted

    def predict(model, tokens_BL, segments_BL, mask_BL, places_B, targets_BK):
        logits_BV = logits(model, tokens_BL, segments_BL, mask_BL, places_B[:, None])[:, 0]
        target_BK = jnp.take_along_axis(logits_BV, targets_BK, axis=-1)
        return target_BK - jax.nn.logsumexp(logits_BV, axis=-1, keepdims=True)

    return bound(encoder.model, predict)
