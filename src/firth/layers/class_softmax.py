"""The softmax over classes of words and over the words of a class: P(w|h) = P(c|h) P(w|c, h).

The class c of a word w is known, so training scores all classes and the words of one class, instead
of all words (Goodman 2001; Mikolov et al. 2011, section 4). A class is a run of ids that follow
each other, since vocabularies of words count from the most frequent one.

M places, D width, V vocabulary, C classes, S words of the largest class.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.layers.affine import multiply
from firth.layers.transformer import initializer


def divide(counts_V: np.ndarray, classes: int) -> tuple[int, ...]:
    """The sizes of at most so many classes, each with about the same sum of square roots of counts.

    The rule of rnnlm 0.3, whose classes are more equal in size than those by the counts themselves.
    Raises FirthError for a number of classes out of range.
    """
    if not 1 <= classes <= len(counts_V):
        raise FirthError(
            f"model.classes={classes}: expected 0 (none) to {len(counts_V):,}, a word each"
        )
    roots_V = np.sqrt(np.maximum(counts_V, 0))
    sizes, size = [], 0
    for share in np.cumsum(roots_V) / max(roots_V.sum(), 1):
        size += 1
        if share > (len(sizes) + 1) / classes and len(sizes) < classes - 1:
            sizes.append(size)
            size = 0
    return (*sizes, size) if size else tuple(sizes)


def _at(kernel_DV, start, size: int):
    return jax.lax.dynamic_slice_in_dim(kernel_DV, start, size, axis=1)


@jax.custom_vjp
def _scores(x_MD, kernel_DV, starts_M, like_S):
    def score(at):
        return _at(kernel_DV, at[1], len(like_S)).T @ at[0]

    return jax.lax.map(score, (x_MD, starts_M)).astype(jnp.float32)


def _scores_backward(saved, gradient_MS):
    # Automatic differentiation would add an array as large as the kernel at every place.
    x_MD, kernel_DV, starts_M, like_S = saved

    def step(gradient_DV, at):
        x_D, start, gradient_S = at
        gradient_S = gradient_S.astype(x_D.dtype)
        sum_DS = _at(gradient_DV, start, len(like_S)) + jnp.outer(x_D, gradient_S)
        gradient_DV = jax.lax.dynamic_update_slice_in_dim(gradient_DV, sum_DS, start, axis=1)
        return gradient_DV, _at(kernel_DV, start, len(like_S)) @ gradient_S

    gradient_DV, gradient_MD = jax.lax.scan(
        step, jnp.zeros_like(kernel_DV), (x_MD, starts_M, gradient_MS)
    )
    return gradient_MD, gradient_DV, None, None


_scores.defvjp(lambda *given: (_scores(*given), given), _scores_backward)


def slice_scores(x_MD, kernel_DV, starts_M, size: int):
    """Products with `size` columns of a kernel, from another one on at each place: float32 [M, S].

    It reads those columns alone; so does its gradient.
    """
    return _scores(x_MD, kernel_DV, starts_M, jnp.zeros(size))


class ClassSoftmaxHead(nn.Module):
    """A language model's head over `config.class_sizes`, with kernels of its own and no bias."""

    config: object

    def setup(self):
        """The kernels of classes and words."""
        c = self.config
        shape = (c.hidden_size, len(c.class_sizes))
        self.classes = self.param("classes", initializer(c), shape)
        self.softmax = self.param("softmax", initializer(c), (c.hidden_size, c.vocab_size))

    def _class_log_probs(self, x_MD):
        return jax.nn.log_softmax(multiply(x_MD, self.classes.astype(x_MD.dtype)))

    def __call__(self, hidden_BMD, decode):
        """Log-probabilities of all words, float32 [B, M, V]; as logits they are normalised."""
        del decode
        sizes: Sequence[int] = self.config.class_sizes
        class_V = np.repeat(np.arange(len(sizes)), sizes)
        x_MD = hidden_BMD.reshape(-1, hidden_BMD.shape[-1])
        words_VM = multiply(x_MD, self.softmax.astype(x_MD.dtype)).T
        words_VM -= jax.ops.segment_max(words_VM, class_V, len(sizes))[class_V]
        total_CM = jax.ops.segment_sum(jnp.exp(words_VM), class_V, len(sizes))
        log_probs_CM = self._class_log_probs(x_MD).T - jnp.log(total_CM)
        return (words_VM + log_probs_CM[class_V]).T.reshape(*hidden_BMD.shape[:-1], -1)

    def losses(self, hidden_BMD, targets_BM):
        """(-log P of the targets, whether each is the likeliest word of the likeliest class).

        Both are float32 [B, M]. Of the words, only those of the targets' classes are scored.
        """
        sizes = np.array(self.config.class_sizes)
        size, V = int(sizes.max()), int(sizes.sum())
        class_V, first_C = np.repeat(np.arange(len(sizes)), sizes), np.cumsum(sizes) - sizes
        x_MD, target_M = hidden_BMD.reshape(-1, hidden_BMD.shape[-1]), targets_BM.reshape(-1)
        class_M = jnp.asarray(class_V)[target_M]
        first_M, count_M = jnp.asarray(first_C)[class_M], jnp.asarray(sizes)[class_M]
        start_M = jnp.minimum(first_M, V - size)  # the last classes are read from further left
        scores_MS = slice_scores(x_MD, self.softmax.astype(x_MD.dtype), start_M, size)
        place_MS = start_M[:, None] + jnp.arange(size) - first_M[:, None]
        inside_MS = (place_MS >= 0) & (place_MS < count_M[:, None])
        words_MS = jax.nn.log_softmax(jnp.where(inside_MS, scores_MS, -1e30))
        loss, right = 0, True
        for log_probs, index in (
            (self._class_log_probs(x_MD), class_M),
            (words_MS, target_M - start_M),
        ):
            own_M = jnp.take_along_axis(log_probs, index[:, None], 1)[:, 0]
            loss, right = loss - own_M, right & (own_M >= log_probs.max(1))
        return tuple(x.astype(jnp.float32).reshape(targets_BM.shape) for x in (loss, right))
