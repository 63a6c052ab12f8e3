"""Pseudo-log-likelihoods: each token of a text masked in turn (Salazar et al. 2020, section 2).

A masked model runs once for every token. What it runs on is gathered first, so that an input that
several texts share is computed once: the same text again, or two texts that differ in the masked
token alone. Only the masked position goes through the head and, in most families, the last layer. B
rows, L length, V vocabulary, K targets.
"""

import jax
import jax.numpy as jnp
import numpy as np

from firth.inference.batching import ROW, computed, repeat_first, token_batches
from firth.inference.encoder import Encoder
from firth.inference.language.row_scores import Row
from firth.models.model import bound

TARGETS = 2  # K: of one input; the two sentences of a minimal pair often differ in one token


def masked_scores(
    encoder: Encoder, rows: list[Row], batch_size: int, within_word: bool = False
) -> list[np.ndarray]:
    """float32 [n] of every row: log P(token | all tokens that are not masked).

    Args:
      encoder: a model with a masked language model's head.
      rows: the texts between their special tokens; with their `words` if `within_word`.
      batch_size: masked rows of 32 tokens computed at a time, or as many tokens in other rows.
      within_word: also mask the later pieces of the same word (Kauf and Ivanova 2023).
    """
    scores = [np.zeros(len(row.ids), np.float32) for row in rows]
    units = _units(rows, encoder.tokenizer.mask_id, within_word)
    program = encoder.program(("score", "pseudo"), lambda: bound(encoder.model, _predict))

    def start(batch):
        some = [units[i] for i in batch.members]
        tokenised = [(tokens, len(tokens)) for tokens, _, _ in some]
        tokens_BL, _, mask_BL = encoder.pad(tokenised, batch.length)
        places_B = np.array([place for _, place, _ in some], np.int32)
        targets_BK = np.zeros((len(some), TARGETS), np.int32)
        for line, (_, _, wanted) in enumerate(some):
            targets_BK[line, : len(wanted)] = [target for target, _ in wanted]
        arrays = repeat_first((tokens_BL, mask_BL, places_B, targets_BK), batch.rows)
        return some, program(encoder.params, *arrays)

    sizes = [len(tokens) for tokens, _, _ in units]
    batches = token_batches(sizes, batch_size * ROW, encoder.max_length)
    for some, values_BK in computed(map(start, batches)):
        for (_, _, wanted), values_K in zip(some, values_BK, strict=False):
            for (_, receivers), value in zip(wanted, values_K, strict=False):
                for number, i in receivers:
                    scores[number][i] = value
    return scores


def _units(rows: list[Row], mask_id: int, within_word: bool) -> list[tuple]:
    """(tokens int32 [n], place, [(target, [(row, number of its token), ...]), ...]), all different.

    A unit has at most K targets.
    """
    found = {}
    for number, row in enumerate(rows):
        tokens = np.array(row.tokens, np.int32)
        for i, place in enumerate(row.places):
            last = i + 1
            while within_word and last < len(row.ids) and row.words[last] == row.words[i]:
                last += 1
            masked = tokens.copy()
            masked[place : place + last - i] = mask_id
            wanted = found.setdefault((masked.tobytes(), place), (masked, {}))[1]
            wanted.setdefault(row.ids[i], []).append((number, i))
    units = []
    for (_, place), (masked, wanted) in found.items():
        targets = list(wanted.items())
        for begin in range(0, len(targets), TARGETS):
            units.append((masked, place, targets[begin : begin + TARGETS]))
    return units


def _predict(model, tokens_BL, mask_BL, places_B, targets_BK):
    """Log-probabilities [B, K] of the targets at one place of each row."""
    logits_BV = model.mlm(model.hidden_at(tokens_BL, mask_BL, places_B[:, None]))[:, 0]
    target_BK = jnp.take_along_axis(logits_BV, targets_BK, axis=-1)
    return target_BK - jax.nn.logsumexp(logits_BV, axis=-1, keepdims=True)
