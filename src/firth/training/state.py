"""The train state: everything that a checkpoint holds and a step changes."""

import flax.struct
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class TrainState:
    """step: int32, steps done (skipped ones too); skipped: int32, steps left out as non-finite."""

    step: jax.Array
    skipped: jax.Array
    params: dict
    opt_state: optax.OptState

    @classmethod
    def create(cls, params, optimizer: optax.GradientTransformation):
        """Fresh state at step 0."""
        return cls(
            step=jnp.zeros([], jnp.int32),
            skipped=jnp.zeros([], jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
        )
