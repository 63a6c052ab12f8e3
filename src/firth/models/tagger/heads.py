"""Heads that give every word of a row scores for its tags, alone or in a CRF.

They stand above the tagger and, reading the first piece of each word, above any encoder.
"""

import flax.linen as nn
import jax.numpy as jnp

from firth.layers.dropout import Dropout
from firth.layers.transformer import dense
from firth.models.heads import Head
from firth.models.tagger.crf import Steps


class TagScores(nn.Module):
    """Dropout and an affine map to the tags."""

    config: object
    num_labels: int
    dropout: float

    @nn.compact
    def __call__(self, x_BWD, *, train: bool = False):
        """Scores float32 [B, W, C] of hidden states [B, W, D]."""
        x_BWD = Dropout(self.dropout)(x_BWD, train=train)
        return dense(self.config, self.num_labels, "dense", bias=True)(x_BWD).astype(jnp.float32)


class ChainScores(nn.Module):
    """The same, and the steps of a CRF between them, which begin at zero."""

    config: object
    num_labels: int
    dropout: float

    def setup(self):
        """Name the parameters."""
        C = self.num_labels
        self.words = TagScores(self.config, C, self.dropout)
        self.transitions = self.param("transitions", nn.initializers.zeros, (C, C))
        self.first = self.param("first", nn.initializers.zeros, (C,))
        self.last = self.param("last", nn.initializers.zeros, (C,))

    def __call__(self, x_BWD, *, train: bool = False):
        """Scores float32 [B, W, C] of hidden states [B, W, D]; see `steps`."""
        return self.words(x_BWD, train=train)

    @property
    def steps(self) -> Steps:
        """The scores of steps between tags."""
        return Steps(self.transitions, self.first, self.last)


class Tags(Head):
    """Scores [B, L, C] of the tags of words, each by itself."""

    per_token = True
    module = TagScores

    def build(self, model, name):
        """Above the encoder's last layer."""
        c = model.encoder.config
        return self.module(c, model.num_labels, model.classifier_dropout, name=name)


class Chain(Tags):
    """The same, with a CRF's scores of steps between tags."""

    module = ChainScores
