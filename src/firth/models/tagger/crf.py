"""Linear-chain conditional random fields (Lafferty et al. 2001) over the tags of a row.

The score of a sequence of tags is the sum of each word's score for its tag, of `first` and `last`
for the tags at both ends, and of `transitions` between neighbours. The words of a row come first,
and `mask` is True for them. Where `begins` is True, another sentence begins: no transition leads
there, but `last` and `first` count, so that a row of several sentences scores as they do by
themselves. B rows, W words, C tags.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

FORBIDDEN = -1e4  # the score of a step that no tag sequence may take


class Steps(NamedTuple):
    """transitions: float32 [C, C], from the row's tag to the column's. first, last: [C]."""

    transitions: jax.Array
    first: jax.Array
    last: jax.Array

    def only(self, allowed_XC):
        """These without the steps that a bool [C + 1, C] forbids; its last row: the first tag."""
        barred = jnp.where(allowed_XC, 0.0, FORBIDDEN)
        return Steps(self.transitions + barred[:-1], self.first + barred[-1], self.last)

    @property
    def border(self):
        """[C, C]: from the last tag of a sentence to the first of another."""
        return self.last[:, None] + self.first


def log_partition(scores_BWC, mask_BW, steps: Steps, begins_BW=None):
    """The logarithm of the sum over all sequences of exp(score): [B], by the forward algorithm."""

    def step(alpha_BC, at):
        scores_BC, mask_B, begins_B = at
        paths_BCC = alpha_BC[:, :, None] + _between(steps, begins_B)
        new_BC = jax.nn.logsumexp(paths_BCC, axis=1) + scores_BC
        return jnp.where(mask_B[:, None], new_BC, alpha_BC), None

    alpha_BC = scores_BWC[:, 0] + steps.first
    alpha_BC, _ = jax.lax.scan(step, alpha_BC, _later(scores_BWC, mask_BW, begins_BW))
    return jax.nn.logsumexp(alpha_BC + steps.last, axis=1)


def path_score(scores_BWC, tags_BW, mask_BW, steps: Steps, begins_BW=None):
    """The score of one sequence of tags a row: [B]; 0 for a row without words."""
    own_BW = jnp.take_along_axis(scores_BWC, tags_BW[..., None], axis=2)[..., 0]
    between_BW = steps.transitions[tags_BW[:, :-1], tags_BW[:, 1:]]
    if begins_BW is not None:
        border_BW = steps.border[tags_BW[:, :-1], tags_BW[:, 1:]]
        between_BW = jnp.where(begins_BW[:, 1:], border_BW, between_BW)
    end_B = jnp.maximum(mask_BW.sum(1) - 1, 0)
    last_B = jnp.take_along_axis(tags_BW, end_B[:, None], axis=1)[:, 0]
    inner_B = (own_BW * mask_BW).sum(1) + (between_BW * mask_BW[:, 1:]).sum(1)
    return inner_B + mask_BW[:, 0] * (steps.first[tags_BW[:, 0]] + steps.last[last_B])


def viterbi(scores_BWC, mask_BW, steps: Steps, begins_BW=None):
    """The best sequence of tags of each row: int32 [B, W], 0 where there is no word.

    Of two equally good sequences it takes that with the smaller last tag, and so on backwards.
    """
    tags_C = jnp.arange(scores_BWC.shape[-1])

    def step(best_BC, at):
        scores_BC, mask_B, begins_B = at
        paths_BCC = best_BC[:, :, None] + _between(steps, begins_B)
        from_BC = paths_BCC.argmax(1)
        new_BC = paths_BCC.max(1) + scores_BC
        real_B1 = mask_B[:, None]
        return jnp.where(real_B1, new_BC, best_BC), jnp.where(real_B1, from_BC, tags_C)

    best_BC = scores_BWC[:, 0] + steps.first
    best_BC, from_WBC = jax.lax.scan(step, best_BC, _later(scores_BWC, mask_BW, begins_BW))
    last_B = (best_BC + steps.last).argmax(1)

    def back(tag_B, from_BC):
        before_B = jnp.take_along_axis(from_BC, tag_B[:, None], axis=1)[:, 0]
        return before_B, tag_B

    first_B, later_WB = jax.lax.scan(back, last_B, from_WBC, reverse=True)
    tags_BW = jnp.concatenate([first_B[None], later_WB]).T
    return jnp.where(mask_BW, tags_BW, 0).astype(jnp.int32)


def _between(steps: Steps, begins_B):
    """The scores of steps to a word: [C, C], or [B, C, C]."""
    if begins_B is None:
        return steps.transitions
    return jnp.where(begins_B[:, None, None], steps.border, steps.transitions)


def _later(scores_BWC, mask_BW, begins_BW):
    """The words after the first, along the first axis."""
    begins_WB = None if begins_BW is None else begins_BW[:, 1:].T
    return scores_BWC[:, 1:].swapaxes(0, 1), mask_BW[:, 1:].T, begins_WB
