"""Losses as sums, and whether predictions are right."""

import jax
import jax.numpy as jnp
import numpy as np


def cross_entropy(logits, targets, weights):
    """Weighted softmax cross-entropy in nats, and the weight of the right predictions.

    Args:
      logits: float [..., C].
      targets: int [...], in [0, C).
      weights: float [...].

    Returns:
      (loss sum, weight of the right predictions), float32 scalars. A prediction is right if no
      logit is greater than the target's.
    """
    logits = logits.astype(jnp.float32)
    losses, right = log_loss(logits, targets)
    return (losses * weights).sum(), (right * weights).sum()


@jax.custom_vjp
def log_loss(logits, targets):
    """Losses [...] and whether the target has the greatest logit, float32 [...]."""
    return _log_loss_forward(logits, targets)[0]


def _log_loss_forward(logits, targets):
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    right = (target_logits >= logits.max(axis=-1)).astype(jnp.float32)
    return (normaliser - target_logits, right), (logits, targets, normaliser)


def _log_loss_backward(saved, gradients):
    # softmax - one-hot in one pass; the gradient of the gather would be a scatter into an array
    # as large as the logits, and the vocabulary's logits are the largest array of the step.
    logits, targets, normaliser = saved
    probabilities = jnp.exp(logits - normaliser[..., None])
    is_target = targets[..., None] == jnp.arange(logits.shape[-1])
    gradient = (probabilities - is_target) * gradients[0][..., None]
    return gradient, np.zeros(targets.shape, jax.dtypes.float0)


log_loss.defvjp(_log_loss_forward, _log_loss_backward)
