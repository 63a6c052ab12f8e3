"""Batch normalisation (Ioffe and Szegedy 2015), the same on any number of devices.

Its running statistics are parameters that no gradient moves: they are saved, loaded and averaged
like all others. A step in training collects what they should follow in the collection STATISTICS,
as (sum, weight), which add up over devices and micro-batches; then `follow` moves them.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from firth.layers.dropout import rows_axis

STATISTICS = "statistics"
MOMENTUM = 0.1  # the share of a new batch in the running statistics, as in torch


class BatchNorm(nn.Module):
    """Each feature minus its mean and divided by its deviation, then scaled and shifted.

    In training, both are those of the batch (of a micro-batch where gradients are accumulated);
    otherwise the running ones. Padding rows count in neither.
    """

    epsilon: float

    @nn.compact
    def __call__(self, x_BD, real_B, *, train: bool):
        """Return [B, D] of the dtype of `x_BD`. `real_B`: bool, False in rows that do not count."""
        ones, zeros, shape = nn.initializers.ones, nn.initializers.zeros, x_BD.shape[-1:]
        scale_D, bias_D = self.param("scale", ones, shape), self.param("bias", zeros, shape)
        mean_D = self.param("running_mean", zeros, shape)
        variance_D = self.param("running_variance", ones, shape)
        h_BD = x_BD.astype(jnp.float32)
        if train:
            own = real_B.astype(jnp.float32)
            count = jnp.maximum(over_devices(own.sum()), 1.0)
            mean_D = over_devices(own @ h_BD) / count
            variance_D = over_devices(own @ jnp.square(h_BD - mean_D)) / count
            unbiased_D = variance_D * count / jnp.maximum(count - 1, 1.0)
            self._collect("running_mean", mean_D, own.sum())
            self._collect("running_variance", unbiased_D, own.sum())
        h_BD = (h_BD - mean_D) * jax.lax.rsqrt(variance_D + self.epsilon)
        return (h_BD * scale_D + bias_D).astype(x_BD.dtype)

    def _collect(self, name: str, value_D, weight):
        value = jax.lax.stop_gradient((weight * value_D, weight))
        self.sow(STATISTICS, name, value, reduce_fn=lambda _, new: new, init_fn=lambda: None)


def over_devices(x):
    """The sum over devices that each run this code for rows of their own (`rows_over`)."""
    axis = rows_axis()
    return jax.lax.psum(x, axis) if axis else x


def follow(new: dict, old: dict, collected: dict) -> dict:
    """The parameters `new` of a step, with running statistics that lie between `old` and the batch.

    `collected` is {module: {name: (sum, weight)}}, nested as the parameters; {} where there are no
    running statistics. What an optimiser did to them (a decay) does not count.
    """
    if not collected:
        return new
    flat, before = flatten_dict(new), flatten_dict(old)
    for path, (total, weight) in flatten_dict(collected).items():
        batch = total / jnp.maximum(weight, 1.0)
        flat[path] = before[path] + MOMENTUM * (batch - before[path])
    return unflatten_dict(flat)
