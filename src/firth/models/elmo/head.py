"""ELMo's softmax, which both directions share, with a bias (Peters et al. 2018, section 3.1).

B rows, L length, P width of one direction, V vocabulary.
"""

import math

import flax.linen as nn
import jax.numpy as jnp

from firth.layers.heads import word_scores
from firth.models.heads import Head


class SharedSoftmax(nn.Module):
    """A row of a table and a bias for each word."""

    config: object

    def setup(self):
        """The parameters: normal with the inverse root of P, and zero."""
        V, P = self.config.vocab_size, self.config.width
        self.table = self.param("table", nn.initializers.normal(1 / math.sqrt(P)), (V, P))
        self.bias = self.param("bias", nn.initializers.zeros, (V,))

    def __call__(self, hidden_BLP):
        """Scores of all words, float32 [..., V]."""
        scores = word_scores(hidden_BLP, self.table.astype(hidden_BLP.dtype))
        return scores.astype(jnp.float32) + self.bias


class BothNeighbours(Head):
    """Logits [B, L, 2, V] of the word after each, and of the word before each."""

    per_token = True

    def build(self, model, name):
        """One softmax."""
        return SharedSoftmax(model.encoder.config, name=name)

    def logits(self, model, name, out, mask_BL):
        """Of the forward and of the backward half of the last layer."""
        del mask_BL
        halves = out.last.reshape(*out.last.shape[:-1], 2, -1)
        return model.head(name)(halves)
