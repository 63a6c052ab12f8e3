"""The train state: everything that a step changes and a checkpoint stores."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class TrainState:
    """The arrays of a run.

    step: int32, steps done, skipped ones included; skipped: int32, steps skipped as non-finite or
    as spikes.
    carry: the state that one batch passes to the next, such as a Transformer-XL's memory: a tree of
    arrays whose first axis is the rows of a batch. It is empty if batches are independent.
    plateau: what the run's policy of `plateau` remembers of held-out losses; empty without one.
    losses: float32 [W], losses of the last steps for `recovery.check_loss`, or None.
    """

    step: jax.Array
    skipped: jax.Array
    params: dict
    opt_state: optax.OptState
    carry: dict
    plateau: dict
    losses: jax.Array | None = None

    def parts(self) -> dict:
        """{field: value} of the fields that are not empty: the content of a checkpoint.

        So a run without a carry can restore a checkpoint from before that field existed.
        """
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if jax.tree.leaves(value)}

    @classmethod
    def create(
        cls,
        params,
        optimizer: optax.GradientTransformation,
        carry=None,
        window: int = 0,
        plateau=None,
    ):
        """A new state at step 0; `window` is the number of losses to keep."""
        return cls(
            step=jnp.zeros([], jnp.int32),
            skipped=jnp.zeros([], jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            carry=carry or {},
            plateau=plateau or {},
            losses=jnp.full(window, jnp.nan, jnp.float32) if window else None,
        )
