"""Gradual unfreezing: a run trains the head first, and then a layer more from stage to stage.

Howard and Ruder (2018, section 3.3) so keep fine-tuning from forgetting what the body knows. Every
stage begins with a new optimiser state and a schedule of its own, as in their released code.
"""

from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from firth.errors import FirthError
from firth.training.optim import create_schedule
from firth.training.unfreezing.depth import depths


def stage_begins(epochs: float, per_epoch: float, layers: int, steps: int) -> tuple[int, ...]:
    """The first step of each stage of a run of `steps`; () where `epochs` is 0: no stages.

    A stage has `epochs` epochs of `per_epoch` steps. Stage 0 trains the heads, each later one a
    layer more, and the last one the embeddings too; it takes the rest of the run. Raises FirthError
    for a run that ends before its last stage, and for a stage without a step.
    """
    if not epochs:
        return ()
    begins = tuple(round(stage * epochs * per_epoch) for stage in range(layers + 2))
    if epochs < 0 or any(a == b for a, b in pairwise(begins)):
        raise FirthError(f"unfreeze_epochs={epochs:g}: expected 0, or enough for a step")
    if begins[-1] >= steps:
        raise FirthError(
            f"unfreeze_epochs={epochs:g}: {layers} layers and the embeddings are all trained after "
            f"step {begins[-1]:,}, but this run ends after step {steps:,}; set more epochs or a "
            "lower unfreeze_epochs"
        )
    return begins


def stage_of(begins: tuple[int, ...], step):
    """int32: the stage that a step belongs to."""
    return jnp.searchsorted(jnp.asarray(begins), step, side="right").astype(jnp.int32) - 1


class Staged(NamedTuple):
    """State of `by_stages`: the stage of the last update, and the optimiser's own state."""

    stage: jax.Array
    inner: optax.OptState


def by_stages(optimizer: optax.GradientTransformation, begins: tuple[int, ...]):
    """The optimiser for parameters that begin to move one level at a time (see `depths`).

    `update` needs `step`, the number of updates done, and takes `counts` as in `optim`. Parameters
    below the stage's level have no gradient, so that they count in no norm and leave the moments at
    zero, and no update.
    """

    def init(params):
        return Staged(jnp.zeros([], jnp.int32), optimizer.init(params))

    def update(updates, state, params, *, step, counts=True):
        stage = jnp.where(counts, stage_of(begins, step), state.stage)
        begun = stage != state.stage
        inner = jax.tree.map(
            lambda fresh, old: jnp.where(begun, fresh, old), optimizer.init(params), state.inner
        )
        levels = depths(params)

        def moving(tree):
            return jax.tree.map(lambda x, level: jnp.where(level <= stage, x, 0), tree, levels)

        updates, inner = optimizer.update(moving(updates), inner, params, counts=counts)
        return moving(updates), Staged(stage, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def create_staged_schedule(spec, steps: int, begins: tuple[int, ...] = ()):
    """`optim.create_schedule` over the whole run or, with stages, anew over each of them."""
    if not begins:
        return create_schedule(spec, steps)
    parts = [create_schedule(spec, int(n)) for n in np.diff([*begins, max(steps, begins[-1] + 1)])]

    def rate(step):
        rates = [part(step - begin) for part, begin in zip(parts, begins, strict=True)]
        return jnp.stack(rates)[stage_of(begins, step)]

    return rate
