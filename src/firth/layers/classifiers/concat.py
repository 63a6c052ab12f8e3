"""ULMFiT's classifier (Howard and Ruder 2018, section 3.3)."""

import flax.linen as nn
import jax.numpy as jnp

from firth.layers.classifiers.batch_norm import BatchNorm
from firth.layers.dropout import Dropout
from firth.layers.transformer import dense


class ConcatClassifierHead(nn.Module):
    """Two blocks of batch normalisation, dropout and an affine map, with ReLU between them.

    For the last, greatest and mean state of a text, beside each other. They differ little from text
    to text, the less the fresher the body; what all texts share is gone after the normalisation.
    `dropout` is that of the first block; the second has a tenth.
    """

    config: object
    num_labels: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x_BD, *, train: bool = False):
        """Logits float32 [B, C]; a regression has C = 1. A row of zeros is padding."""
        c, real_B = self.config, x_BD.any(-1)
        x_BD = BatchNorm(c.norm_epsilon, name="norm")(x_BD, real_B, train=train)
        x_BD = Dropout(self.dropout)(x_BD, train=train)
        he = nn.initializers.he_normal()  # the map is followed by ReLU
        x_BD = nn.relu(dense(c, c.classifier_width, "hidden", init=he)(x_BD))
        x_BD = BatchNorm(c.norm_epsilon, name="hidden_norm")(x_BD, real_B, train=train)
        x_BD = Dropout(0.1)(x_BD, train=train)
        last = dense(c, self.num_labels, "dense", init=nn.initializers.he_normal())
        return last(x_BD).astype(jnp.float32)
