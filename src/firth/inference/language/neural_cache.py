"""The neural cache: words that followed states like the present one (Grave et al. 2017).

The cache gives a word the weights of those of the last places that it followed. The weight of a
place is the softmax of theta times the product of its state and the present one (section 3).

    firth evaluate --models runs/lstm --data test/ --tune valid/ --neural-cache 500

It takes part in a mixture like a model, so EM finds its share there. L length of a window, W places
in the cache, T tokens, D width, K values of theta.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from firth import recipe
from firth.errors import FirthError
from firth.inference.score import segments
from firth.models.model import bound

THETAS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)  # to choose from on the text that tunes


@dataclasses.dataclass(frozen=True)
class NeuralCache:
    """The last `size` places. `theta`: how sharply states are compared; 0: each of THETAS."""

    size: int
    theta: float = 0.0

    def __post_init__(self):
        if self.size < 1 or self.theta < 0:
            raise FirthError(
                f"neural cache: size={self.size}, theta={self.theta:g}; expected a size of at "
                "least 1, and a theta above 0, or 0 for the best one on the text that tunes"
            )

    def score(self, encoder, tokens_T, window: int = 128) -> np.ndarray:
        """float64 [K, T]: the log-probability of each token under the cache, for each theta.

        The state of a place is the model's last hidden state there. A token that is not in the
        cache has -inf, and so has the first token of all.
        """
        thetas_K = jnp.asarray([self.theta] if self.theta else THETAS, jnp.float32)

        def read(model, memory, history, tokens_1L, mask_1L, targets_1L):
            out = model.encoder(tokens_1L, None, mask_1L, memory=memory)
            states = jnp.concatenate([history[0], out.last[0].astype(jnp.float32)])
            words = jnp.concatenate([history[1], targets_1L[0]])
            log_probs_KL = weigh(states, words, self.size, thetas_K)
            return log_probs_KL, out.memory, (states[-self.size :], words[-self.size :])

        read = jax.jit(bound(encoder.model, read))
        last = jax.eval_shape(
            bound(encoder.model, lambda model, tokens: model.encoder(tokens).last),
            encoder.params,
            jax.ShapeDtypeStruct((1, 1), jnp.int32),
        )
        history = jnp.zeros((self.size, last.shape[-1])), jnp.full(self.size, -1)  # -1: no word
        memory, found = encoder.model.encoder.empty_memory(1, window), []
        for segment in segments(encoder, tokens_T, window):
            log_probs_KL, memory, history = read(encoder.params, memory, history, *segment)
            found.append(log_probs_KL)
        found = [np.asarray(log_probs_KL, np.float64) for log_probs_KL in found]
        return np.concatenate(found, 1)[:, : len(tokens_T)]


def parse(text: str) -> NeuralCache:
    """The settings that `--neural-cache SIZE[,theta=X]` gives."""
    return NeuralCache(**recipe.parse_arg(text, "--neural-cache", size=0, theta=0.0))


def weigh(states_ND, words_N, size: int, thetas_K):
    """float32 [K, L]: log of the cache's share of each of the last L = N - size words.

    Args:
      states_ND: float, the state before each word.
      words_N: int, the words; -1 where there is none.
      size: W, how many places before a word are in its cache.
      thetas_K: float.
    """
    L = len(words_N) - size
    place_L1, place_N = size + jnp.arange(L)[:, None], jnp.arange(len(words_N))
    cached_LN = (place_N >= place_L1 - size) & (place_N < place_L1) & (words_N >= 0)
    products_LN = states_ND[size:] @ states_ND.T
    scores_KLN = jnp.where(cached_LN, thetas_K[:, None, None] * products_LN, -jnp.inf)
    followed_LN = cached_LN & (words_N == words_N[size:, None])
    total_KL = jax.nn.logsumexp(scores_KLN, -1)
    own_KL = jax.nn.logsumexp(jnp.where(followed_LN, scores_KLN, -jnp.inf), -1)
    return jnp.where(followed_LN.any(-1), own_KL - total_KL, -jnp.inf)
