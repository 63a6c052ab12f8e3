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


def binary_cross_entropy(logits_BC, targets_BC):
    """The mean over C labels of each one's sigmoid cross-entropy in nats, float32 [B].

    Targets are 0 or 1. It is torch's BCEWithLogitsLoss of each row.
    """
    logits_BC, targets_BC = logits_BC.astype(jnp.float32), targets_BC.astype(jnp.float32)
    signs_BC = 2 * targets_BC - 1
    return -jax.nn.log_sigmoid(signs_BC * logits_BC).mean(-1)


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


def ranked_right(logits, positive, weights):
    """Sum over pairs of a positive and a negative of how they are ranked, and the sum of all pairs.

    A pair counts 1 if the positive has the greater logit, 1/2 if both are equal, so the ratio is
    the area under the ROC curve: 1/2 for a constant.

    Args:
      logits: float [...].
      positive: bool [...].
      weights: float [...]; 0 leaves one out.

    Returns:
      Two float32 scalars.
    """
    logits_N, positives_N = logits.ravel(), (weights * positive).ravel()
    negatives_N = weights.ravel() - positives_N
    order_N = jnp.argsort(logits_N)
    below_M = jnp.append(0.0, negatives_N[order_N].cumsum())
    less_N, most_N = (
        jnp.searchsorted(logits_N[order_N], logits_N, side=side) for side in ("left", "right")
    )
    ranked = positives_N * (below_M[less_N] + below_M[most_N]) / 2
    return ranked.sum(), positives_N.sum() * negatives_N.sum()
