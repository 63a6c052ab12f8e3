"""The train state: everything that a checkpoint holds and a step changes."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class TrainState:
    """step: int32, steps done (skipped ones too); skipped: int32, steps left out as non-finite.

    carry: what one batch leaves to the next, such as a Transformer-XL's memory: any tree of arrays
    whose first axis is the rows of a batch; empty where batches are independent.
    losses: float32 [W], of the last steps, for `recovery.check_loss`; or None.
    """

    step: jax.Array
    skipped: jax.Array
    params: dict
    opt_state: optax.OptState
    carry: dict
    losses: jax.Array | None = None

    def parts(self) -> dict:
        """{field: value} of the fields that hold anything: what a checkpoint stores.

        So a run without a carry restores what was saved before there was such a field.
        """
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if jax.tree.leaves(value)}

    @classmethod
    def create(cls, params, optimizer: optax.GradientTransformation, carry=None, window=0):
        """Fresh state at step 0; `window` is the number of losses to keep."""
        return cls(
            step=jnp.zeros([], jnp.int32),
            skipped=jnp.zeros([], jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            carry=carry or {},
            losses=jnp.full(window, jnp.nan, jnp.float32) if window else None,
        )
