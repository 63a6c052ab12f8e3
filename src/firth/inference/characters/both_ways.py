"""What the two language models of an ELMo say of a text, word by word.

The forward model predicts every word from "<S>" and the words before it, the backward one from
"</S>" and the words after it (Peters et al. 2018, section 3.1). B rows, L length, P width of one
direction.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.inference.batching import ROW, repeat_first, token_batches
from firth.inference.characters.elmo import ElmoEncoder
from firth.inference.execution.ahead import computed
from firth.models.elmo.bilm import DIRECTIONS
from firth.models.model import bound
from firth.objectives.losses import log_loss
from firth.tokenizers.base import Tokenizer
from firth.tokenizers.spelling import BEGIN, END

HEAD = "bilm"


def vocabulary(encoder: ElmoEncoder) -> Tokenizer:
    """The words of the softmax; FirthError for a model without one, as the released ones are."""
    tokenizer = encoder.saved.tokenizer()
    if HEAD not in encoder.saved.heads or tokenizer is None:
        raise FirthError(
            f"{encoder.saved.source} has no softmax over words with a vocabulary, so it predicts "
            "none; expected the workdir of elmo.py"
        )
    return tokenizer


def score_both_ways(
    encoder: ElmoEncoder, texts: Sequence[np.ndarray], batch_size: int
) -> list[np.ndarray]:
    """float32 [n] of each text: the mean of the two log-probabilities of every word, in nats.

    `texts` are ids int [n] of `vocabulary`, and `batch_size` rows of 32 words are computed at a
    time. Every text begins with an empty state. The sum over a text is the mean of what the two
    models give it, without its marks.
    """
    softmax, tokenizer = encoder.with_softmax, vocabulary(encoder)
    scores = [np.zeros(len(ids), np.float32) for ids in texts]
    filled = [i for i, ids in enumerate(texts) if len(ids)]
    program = softmax.program(("score", HEAD), lambda: bound(softmax.model, _predict))

    def prepare(batch):
        chosen = [filled[member] for member in batch.members]
        read_B2L = np.zeros((len(chosen), 2, batch.length), np.int64)
        targets_B2L = np.zeros(read_B2L.shape, np.int32)
        for row, i in enumerate(chosen):
            ids, size = np.asarray(texts[i]), len(texts[i])
            for way, words, mark in ((0, ids, BEGIN), (1, ids[::-1], END)):
                read = [mark, *map(tokenizer.token, words[:-1])]
                read_B2L[row, way, :size] = [softmax.tokenizer.id(word) for word in read]
                targets_B2L[row, way, :size] = words
        e_B2LP = softmax.inputs(read_B2L.reshape(-1, batch.length))
        arrays = e_B2LP.reshape(*read_B2L.shape, -1), targets_B2L
        return chosen, repeat_first(arrays, batch.rows)

    batches = token_batches([len(texts[i]) for i in filled], batch_size * ROW, softmax.max_length)
    for chosen, found_B2L in computed(program, softmax.params, map(prepare, batches)):
        for i, (ahead, back) in zip(chosen, found_B2L, strict=False):
            size = len(texts[i])
            scores[i][:] = (ahead[:size] + back[:size][::-1]) / 2
    return scores


def _predict(model, e_B2LP, targets_B2L):
    """Log-probabilities [B, 2, L], of each direction in its own order, in which padding is last."""
    body, found = model.encoder, []
    memory, mask_BL = body.empty_memory(len(targets_B2L)), jnp.ones_like(targets_B2L[:, 0], bool)
    for way, direction in enumerate(DIRECTIONS):
        layers, _ = body.read(direction, e_B2LP[:, way], mask_BL, memory, train=False)
        found.append(-log_loss(model.head(HEAD)(layers[-1]), targets_B2L[:, way])[0])
    return jnp.stack(found, 1)
