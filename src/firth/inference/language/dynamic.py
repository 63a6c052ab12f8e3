"""Dynamic evaluation: a model goes on learning from the text that it is measured on.

    firth evaluate --models runs/rnn --data test/ --dynamic 0.1

Each segment is scored, and then learned from (Mikolov et al. 2010, section 3). So each token is
predicted by a model that has seen only the tokens before it.
T tokens, L length of a segment, D width.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from firth import recipe
from firth.data.corpus.stream import Stream
from firth.errors import FirthError
from firth.inference.score import segments
from firth.models.model import bound
from firth.objectives.clm import next_word_losses


@dataclasses.dataclass(frozen=True)
class Dynamic:
    """How a model learns from a text: by gradient descent on a loss summed over each segment.

    rate: of descent; .1 is that of rnnlm for a network trained at .1.
    length: tokens of a segment.
    train: a store of the training text. With it, a gradient is divided by its root mean square over
      that text plus `epsilon`, and by its own segment's length (Krause et al. 2018, eq. 5).
    decay: with `train`, how far each parameter returns to the trained model in a step: this times
      its root mean square over the mean of all, at most 1 (eq. 7-8).
    """

    rate: float
    length: int = 10
    decay: float = 0.0
    epsilon: float = 1e-3
    train: str = ""

    def __post_init__(self):
        if self.rate <= 0 or self.length < 1 or self.decay < 0 or self.epsilon <= 0:
            raise FirthError(
                f"dynamic evaluation: rate={self.rate:g}, length={self.length}, decay="
                f"{self.decay:g}, epsilon={self.epsilon:g}; expected a rate, length and epsilon "
                "above 0, and a decay of 0 or more"
            )
        if self.decay and not self.train:
            raise FirthError(
                f"dynamic evaluation: decay={self.decay:g} needs train=STORE, whose gradients say "
                "how far each parameter may move"
            )


def parse(text: str) -> Dynamic:
    """The settings that `--dynamic RATE[,length=N][,decay=X][,epsilon=X][,train=STORE]` gives."""
    defaults = {f.name: f.default for f in dataclasses.fields(Dynamic)} | {"rate": 0.0}
    return Dynamic(**recipe.parse_arg(text, "--dynamic", **defaults))


def score(encoder, tokens_T, settings: Dynamic, trained_on: Stream | None = None) -> np.ndarray:
    """float64 [T]: the log-probability of each token, the first one after the end token.

    The model keeps its memory from segment to segment, as in `inference.score.score_stream`, and
    ends as it was: the parameters that change are copies. `trained_on` is the text of
    `settings.train`.
    """
    start = encoder.params
    squares = mean_squares(encoder, trained_on, settings.length) if trained_on else None
    gradient = _gradient(encoder)

    @jax.jit
    def learn(params, start, squares, memory, *segment):
        (_, (log_probs_L, memory)), gradients = gradient(params, memory, *segment)
        if squares is None:
            new = jax.tree.map(lambda p, g: p - settings.rate * g, params, gradients)
        else:
            new = _towards(params, gradients, start, squares, segment[1].sum(), settings)
        return new, memory, log_probs_L

    params, found = start, []
    memory = encoder.model.encoder.empty_memory(1, settings.length)
    for segment in segments(encoder, tokens_T, settings.length):
        params, memory, log_probs_L = learn(params, start, squares, memory, *segment)
        found.append(log_probs_L)
    found = [np.asarray(log_probs_L, np.float64) for log_probs_L in found]
    return np.concatenate(found)[: len(tokens_T)] if found else np.zeros(0)


def mean_squares(encoder, stream: Stream, length: int):
    """The mean square of the gradient of each parameter over the segments of a text."""
    gradient = _gradient(encoder)

    @jax.jit
    def add(total, params, memory, *segment):
        (_, (_, memory)), gradients = gradient(params, memory, *segment)
        tokens = jnp.maximum(segment[1].sum(), 1)
        return jax.tree.map(lambda t, g: t + (g / tokens) ** 2, total, gradients), memory

    total, count = jax.tree.map(jnp.zeros_like, encoder.params), 0
    memory = encoder.model.encoder.empty_memory(1, length)
    for segment in segments(encoder, stream.tokens, length):
        total, memory = add(total, encoder.params, memory, *segment)
        count += 1
    return jax.tree.map(lambda t: t / count, total)


def _gradient(encoder):
    """(params, memory, tokens, mask, targets [1, L]) -> ((loss, (log-probs, memory)), gradient)."""

    def losses(model, memory, tokens_1L, mask_1L, targets_1L):
        out = model.encoder(tokens_1L, None, mask_1L, memory=memory)
        losses_1L = next_word_losses(model, out.last, targets_1L)[0]
        return (losses_1L * mask_1L).sum(), (-losses_1L[0], out.memory)

    return jax.value_and_grad(bound(encoder.model, losses), has_aux=True)


def _towards(params, gradients, start, squares, tokens, settings: Dynamic):
    """The parameters after a step of RMS with the trained ones as a prior (Krause et al. 2018)."""
    roots = jax.tree.map(jnp.sqrt, squares)
    leaves = jax.tree.leaves(roots)
    mean = sum(root.mean() for root in leaves) / len(leaves)  # over parameters, as the code has it

    def step(p, g, p0, root):
        descent = settings.rate * (g / tokens) / (root + settings.epsilon)
        return p - descent + jnp.minimum(settings.decay * root / mean, 1) * (p0 - p)

    return jax.tree.map(step, params, gradients, start, roots)
