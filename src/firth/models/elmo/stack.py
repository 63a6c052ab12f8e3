"""Stacked LSTMs whose outputs are projected and clipped, as in ELMo's released code.

Sak et al. (2014, section 2) give the cell, without peepholes here: c = f c + i j, clipped; h is
the projection of o tanh(c), clipped. B rows, L length, P width of inputs and outputs, G the gates
input, candidate, forget, output, H cells, N layers.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.layers.affine import multiply
from firth.layers.characters.cnn import uniform
from firth.layers.dropout import Dropout

FORGET_BIAS = 1.0  # added in every step; the parameter does not hold it


def clip(x, limit: float):
    """`x` within `limit` of zero; 0 is no limit."""
    return jnp.clip(x, -limit, limit) if limit else x


def unroll(config, z_LBGH, recurrent_PGH, project_HP, state, mask_LB):
    """Run the cell over time.

    Args:
      config: with `cell_clip` and `projection_clip`.
      z_LBGH: float32, the part of the gates' inputs that does not depend on the state.
      recurrent_PGH, project_HP: kernels, of h to the gates and of the cells' output to h.
      state: (c [B, H], h [B, P]), float32.
      mask_LB: bool, False where a row has no token and its state stays; or None.

    Returns (h float32 [L, B, P], the last state).
    """
    P, G, H = recurrent_PGH.shape
    matrix, dtype = recurrent_PGH.reshape(P, G * H), recurrent_PGH.dtype

    def step(state, at):
        (c_BH, h_BP), (z_BGH, mask_B) = state, at
        of_state = jnp.dot(h_BP.astype(dtype), matrix, preferred_element_type=jnp.float32)
        i, j, f, o = (z_BGH + of_state.reshape(-1, G, H)).swapaxes(0, 1)
        new_BH = jax.nn.sigmoid(f + FORGET_BIAS) * c_BH + jax.nn.sigmoid(i) * jnp.tanh(j)
        new_BH = clip(new_BH, config.cell_clip)
        out_BH = (jax.nn.sigmoid(o) * jnp.tanh(new_BH)).astype(dtype)
        new_BP = jnp.dot(out_BH, project_HP, preferred_element_type=jnp.float32)
        new_BP = clip(new_BP, config.projection_clip)
        if mask_B is not None:
            new_BH = jnp.where(mask_B[:, None], new_BH, c_BH)
            new_BP = jnp.where(mask_B[:, None], new_BP, h_BP)
        return (new_BH, new_BP), new_BP

    last, h_LBP = jax.lax.scan(step, state, (z_LBGH, mask_LB))
    return h_LBP, last


class Layer(nn.Module):
    """One LSTM. `adds_input`: its output is added to its input, as dropout leaves it.

    `kernel` [2 P, G, H] is that of the inputs and then of the state. Kernels begin uniform as
    TensorFlow's do by default (Glorot and Bengio 2010), and biases at zero.
    """

    config: object
    adds_input: bool

    @nn.compact
    def __call__(self, x_BLP, mask_LB, state, *, train: bool):
        """Return (outputs [B, L, P], the new state)."""
        c, H = self.config, self.config.cell_size
        (B, L, P), G = x_BLP.shape, 4
        x_BLP = Dropout(c.dropout)(x_BLP, train=train)
        limit = math.sqrt(6 / (2 * P + G * H))
        kernel = self.param("kernel", uniform(limit), (2 * P, G, H)).astype(c.dtype)
        project = self.param("project", nn.initializers.glorot_uniform(), (H, P)).astype(c.dtype)
        bias = self.param("bias", nn.initializers.zeros, (G, H))
        x_LBP = x_BLP.swapaxes(0, 1).astype(c.dtype)
        z_LBGH = multiply(x_LBP.reshape(L * B, P), kernel[:P].reshape(P, G * H))
        z_LBGH = z_LBGH.reshape(L, B, G, H) + bias
        h_LBP, state = unroll(c, z_LBGH, kernel[P:], project, state, mask_LB)
        h_BLP = h_LBP.swapaxes(0, 1).astype(x_BLP.dtype)
        return (h_BLP + x_BLP if self.adds_input else h_BLP), state


class Stack(nn.Module):
    """The layers of one direction."""

    config: object

    @nn.compact
    def __call__(self, x_BLP, mask_BL, state: dict, *, train: bool):
        """Return the outputs of all layers [N, B, L, P] and the new state.

        `state` has "c" float32 [B, N, H] and "h" [B, N, P]. It does not advance where `mask_BL` is
        False.
        """
        c, outputs, states = self.config, [], []
        mask_LB = None if mask_BL is None else mask_BL.swapaxes(0, 1)
        for i in range(c.num_layers):
            layer = Layer(c, c.skip_connections and i > 0, name=f"layer_{i}")
            before = state["c"][:, i], state["h"][:, i]
            x_BLP, after = layer(x_BLP, mask_LB, before, train=train)
            outputs.append(x_BLP)
            states.append(after)
        cells, hidden = (jnp.stack(part, 1) for part in zip(*states, strict=True))
        return jnp.stack(outputs), {"c": cells, "h": hidden}
