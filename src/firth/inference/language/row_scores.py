"""What a model is given to score a text with, and the scores of models that read a text once.

A causal model, XLNet with the left-to-right order, and a discriminator score all tokens of a text
in one pass. Masked models are in `firth.inference.language.masked`. B rows, L length.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.inference.batching import ROW, repeat_first, token_batches
from firth.inference.encoder import Encoder
from firth.inference.execution.ahead import computed
from firth.models.model import bound
from firth.objectives.clm import next_word_losses
from firth.objectives.losses import log_loss


@dataclass(frozen=True)
class Row:
    """tokens: the model's input, list of int. places: the positions that predict `ids`.

    words: int [n], the number of the word that each of `ids` belongs to, or None.
    """

    tokens: list[int]
    places: list[int]
    ids: list[int]
    words: np.ndarray | None = None


def _causal_row(encoder: Encoder, ids, words, end: bool) -> Row:
    del words
    ids, begin = ids.tolist(), encoder.tokenizer.end_id
    if begin is None:
        raise FirthError(
            f"the tokenizer in {encoder.saved.source} has no end-of-text token, but the first "
            "token of a text is predicted from it"
        )
    scored = ids + [begin] * end
    return Row([begin, *ids], list(range(len(scored))), scored)


def _plain_row(encoder: Encoder, ids, words, end: bool) -> Row:
    del encoder, words, end
    return Row(ids.tolist(), list(range(len(ids))), ids.tolist())


def _marked_row(encoder: Encoder, ids, words, end: bool) -> Row:
    """Between the special tokens, which have no scores."""
    del end
    template = encoder.template
    first = len(template.before)
    places = list(range(first, first + len(ids)))
    return Row([*template.before, *ids.tolist(), *template.after], places, ids.tolist(), words)


def _masked_row(encoder: Encoder, ids, words, end: bool) -> Row:
    if encoder.tokenizer.mask_id is None:
        raise FirthError(f"the tokenizer in {encoder.saved.source} has no mask token")
    return _marked_row(encoder, ids, words, end)


# kind of scores -> (encoder, ids, words or None, whether the end is scored) -> Row
ROWS = {
    "causal": _causal_row,
    "permutation": _plain_row,
    "pseudo": _masked_row,
    "discriminator": _marked_row,
}


def row_scores(encoder: Encoder, kind: str, rows: list[Row], batch_size: int) -> list[np.ndarray]:
    """float32 [n] of every row, by a model whose `kind` of scores takes one pass.

    `batch_size` rows of 32 tokens are computed at a time, or as many tokens in other rows.
    """
    scores = [np.zeros(len(row.ids), np.float32) for row in rows]
    filled = [n for n, row in enumerate(rows) if row.ids]
    program = encoder.program(("score", kind), lambda: _predictor(encoder, kind))

    def prepare(batch):
        numbers = [filled[i] for i in batch.members]
        some = [rows[n] for n in numbers]
        tokenised = [(np.array(row.tokens, np.int32), len(row.tokens)) for row in some]
        tokens_BL, _, mask_BL = encoder.pad(tokenised, batch.length)
        targets_BL = np.zeros_like(tokens_BL)
        for line, row in enumerate(some):
            targets_BL[line, row.places] = row.ids
        return numbers, repeat_first((tokens_BL, mask_BL, targets_BL), batch.rows)

    sizes = [len(rows[n].tokens) for n in filled]
    batches = token_batches(sizes, batch_size * ROW, encoder.max_length)
    for numbers, values_BL in computed(program, encoder.params, map(prepare, batches)):
        for number, values_L in zip(numbers, values_BL, strict=False):
            scores[number][:] = values_L[rows[number].places]
    return scores


def _predictor(encoder: Encoder, kind: str):
    """(params, tokens, mask, targets) -> scores [B, L]."""

    def predict(model, tokens_BL, mask_BL, targets_BL):
        body = model.encoder
        if kind == "causal":
            return -next_word_losses(model, body(tokens_BL, None, mask_BL).last, targets_BL)[0]
        if kind == "discriminator":
            replaced_BL = model.head("rtd")(body(tokens_BL, None, mask_BL).last)
            return jax.nn.log_sigmoid(-replaced_BL.astype(jnp.float32))
        order_BL = jnp.broadcast_to(jnp.arange(tokens_BL.shape[1]), tokens_BL.shape)
        none_BL = jnp.zeros_like(tokens_BL)
        hidden_BLD = body.two_streams(tokens_BL, none_BL, mask_BL, order_BL, order_BL, train=False)
        return -log_loss(model.lm(hidden_BLD[1]), targets_BL)[0]

    return bound(encoder.model, predict)
