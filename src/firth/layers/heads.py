"""Prediction heads over hidden states or the pooled output."""

import flax.linen as nn
import jax.numpy as jnp

from firth.layers.dropout import Dropout
from firth.layers.transformer import ACTIVATIONS, dense, layer_norm


class MaskedLMHead(nn.Module):
    """Dense, activation, LayerNorm, then the tied word table and a bias (Devlin et al., A.2)."""

    config: object

    @nn.compact
    def __call__(self, hidden_BMD, decode):
        """Vocabulary logits float32 [B, M, V] for the given (gathered) positions.

        `decode` maps [B, M, D] to [B, M, V] with the encoder's word embeddings.
        """
        c = self.config
        h_BMD = ACTIVATIONS[c.activation](dense(c, c.hidden_size, "dense")(hidden_BMD))
        logits_BMV = decode(layer_norm(c, "norm")(h_BMD))
        bias_V = self.param("bias", nn.initializers.zeros, (c.vocab_size,))
        return logits_BMV.astype(jnp.float32) + bias_V


class ClassifierHead(nn.Module):
    """Dropout and an affine map on the pooled output (Devlin et al. 2019, section 4.1)."""

    config: object
    num_labels: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, pooled_BD, *, train: bool = False):
        """Logits float32 [B, C]; a regression has C = 1."""
        x_BD = Dropout(self.dropout)(pooled_BD, train=train)
        return dense(self.config, self.num_labels, "dense")(x_BD).astype(jnp.float32)
