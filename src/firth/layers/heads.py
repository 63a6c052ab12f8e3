"""Prediction heads over hidden states or the pooled output.

Class attributes of a family's Config say how its heads differ: `head_activation`,
`classifier_hidden`, `classifier_input_dropout`, `classifier_norm`, `classifier_bias`, `lm_bias`.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.layers.affine import is_narrow, multiply, narrow_product
from firth.layers.classifiers.concat import ConcatClassifierHead
from firth.layers.dropout import Dropout
from firth.layers.transformer import (
    ACTIVATIONS,
    dense,
    edge_initializer,
    initializer,
    layer_norm,
)


def _word_scores(x_BME, table_VE):
    return jnp.einsum("...E,VE->...V", x_BME, table_VE, preferred_element_type=jnp.float32)


def word_scores(x_BME, table_VE):
    """Scores of all words by the word table: [..., E] to float32 [..., V]."""
    if is_narrow(x_BME):  # the barrier turns the table, and its gradient, in memory
        return narrow_product(x_BME, jax.lax.optimization_barrier(table_VE.T))
    return _scores(x_BME, table_VE)


@jax.custom_vjp
def _scores(x_BME, table_VE):
    return _word_scores(x_BME, table_VE)


def _word_scores_backward(saved, gradient_BMV):
    x_BME, table_VE = saved
    _, transposed = jax.vjp(_word_scores, x_BME, table_VE)

    def turned(gradient_BMV):
        # On a CPU, XLA's product wants the gradient, the largest array of a step, turned from rows
        # to columns, and computes it once more for that. Here the result is turned.
        places = tuple(range(x_BME.ndim - 1))
        table_EV = jnp.tensordot(x_BME, gradient_BMV, (places, places))
        return jax.lax.optimization_barrier(table_EV).T.astype(table_VE.dtype)

    table_gradient = jax.lax.platform_dependent(
        gradient_BMV, cpu=turned, default=lambda gradient_BMV: transposed(gradient_BMV)[1]
    )
    return transposed(gradient_BMV)[0], table_gradient


_scores.defvjp(lambda *given: (_word_scores(*given), given), _word_scores_backward)


class MaskedLMHead(nn.Module):
    """Dense to the embeddings' width, activation, LayerNorm, tied table, bias (Devlin et al., A.2).

    `config` is the encoder's. `width` is that of the word table in `decode` (0: the encoder's own);
    a generator may use its discriminator's table.
    """

    config: object
    width: int = 0

    @nn.compact
    def __call__(self, hidden_BMD, decode):
        """Vocabulary logits float32 [B, M, V] at gathered positions.

        `decode` maps [B, M, E] to [B, M, V] with the word embeddings.
        """
        c = self.config
        activation = ACTIVATIONS[c.head_activation or c.activation]
        h_BME = activation(dense(c, self.width or c.embedding_width, "dense")(hidden_BMD))
        logits_BMV = decode(layer_norm(c, "norm")(h_BME))
        bias_V = self.param("bias", nn.initializers.zeros, (c.vocab_size,))
        return logits_BMV.astype(jnp.float32) + bias_V


class LanguageModelHead(nn.Module):
    """Products with the word table, and a bias where the family's head has one (`lm_bias`).

    The table is that of the embeddings, or a kernel of the head's own (`tied_softmax=False`).
    """

    config: object

    @nn.compact
    def __call__(self, hidden_BMD, decode):
        """Vocabulary logits float32 [B, M, V].

        `decode` maps [B, M, D] to [B, M, V] with the word embeddings.
        """
        c, (*outer, D) = self.config, hidden_BMD.shape
        if getattr(c, "tied_softmax", True):
            logits_BMV = decode(hidden_BMD).astype(jnp.float32)
        else:
            kernel_DV = self.param("softmax", initializer(c), (D, c.vocab_size)).astype(c.dtype)
            logits_BMV = multiply(hidden_BMD.reshape(-1, D), kernel_DV).reshape(*outer, -1)
        if not c.lm_bias:
            return logits_BMV
        drawn = getattr(c, "draws_biases", False)  # as Zaremba et al. draw every parameter
        init = initializer(c) if drawn else nn.initializers.zeros
        return logits_BMV + self.param("bias", init, logits_BMV.shape[-1:])


class ClassifierHead(nn.Module):
    """Dropout and an affine map on one vector a text (Devlin et al. 2019, section 4.1).

    Families without a pooler put a dense layer of their own before it (`classifier_hidden` names
    its activation): RoBERTa, DistilBERT, ELECTRA and ModernBERT as published.
    """

    config: object
    num_labels: int
    dropout: float = 0.0
    hidden: str = ""

    @nn.compact
    def __call__(self, x_BD, *, train: bool = False):
        """Logits float32 [B, C]; a regression has C = 1."""
        c, drop = self.config, Dropout(self.dropout)
        if self.hidden:
            if c.classifier_input_dropout:
                x_BD = drop(x_BD, train=train)
            x_BD = ACTIVATIONS[self.hidden](dense(c, c.hidden_size, "hidden")(x_BD))
            if c.classifier_norm:
                x_BD = layer_norm(c, "norm")(x_BD)
        x_BD = drop(x_BD, train=train)
        last = dense(c, self.num_labels, "dense", c.classifier_bias, edge_initializer(c))
        return last(x_BD).astype(jnp.float32)


def classifier_head(config, outputs: int, dropout: float, name: str) -> nn.Module:
    """The classifier of a family with so many outputs; `config` is the encoder's."""
    if config.classifier_pooling == "concat":
        return ConcatClassifierHead(config, outputs, dropout, name=name)
    return ClassifierHead(config, outputs, dropout, config.classifier_hidden, name=name)


class TaskHeads(nn.Module):
    """The classifiers of several tasks on one vector a text, their parameters under their names.

    `outputs` are (name, outputs) of each.
    """

    config: object
    outputs: tuple[tuple[str, int], ...]
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x_BD, *, train: bool = False):
        """Logits float32 [B, sum of outputs], beside each other in the order of the tasks."""
        heads = [classifier_head(self.config, n, self.dropout, name) for name, n in self.outputs]
        return jnp.concatenate([head(x_BD, train=train) for head in heads], axis=-1)


class SpanHead(nn.Module):
    """Dropout and two logits a token, for a span (Devlin et al. 2019, section 4.2)."""

    config: object
    dropout: float = 0.0

    @nn.compact
    def __call__(self, hidden_BLD, *, train: bool = False):
        """Logits float32 [B, L, 2] that the span begins, and that it ends, at each token."""
        c = self.config
        hidden_BLD = Dropout(self.dropout)(hidden_BLD, train=train)
        last = dense(c, 2, "dense", bias=True, init=edge_initializer(c))
        return last(hidden_BLD).astype(jnp.float32)


class TokenHead(nn.Module):
    """Dense, activation and one logit a token (ELECTRA's discriminator; Clark et al. 2020)."""

    config: object

    @nn.compact
    def __call__(self, hidden_BLD):
        """Logits float32 [B, L]."""
        c = self.config
        h_BLD = ACTIVATIONS[c.activation](dense(c, c.hidden_size, "hidden")(hidden_BLD))
        last = dense(c, 1, "dense", bias=True, init=edge_initializer(c))
        return last(h_BLD)[..., 0].astype(jnp.float32)
