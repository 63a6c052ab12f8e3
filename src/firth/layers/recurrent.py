"""Recurrent layers: the LSTM (Hochreiter and Schmidhuber 1997) and Elman's network (1990).

A layer multiplies all its inputs by their kernel at once. One scan over time then has only the
recurrent product and the cell's element-wise functions.

B rows, L length, D width of the inputs, G gates, H hidden size, N layers.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.layers.affine import kernel_gradient, multiply
from firth.layers.dropout import Dropout
from firth.layers.transformer import initializer, run_layers

UNROLL = 1  # steps in one turn of the loop


def lstm_cell(capped: bool, z_BGH, state):
    """(h, c) after one step of an LSTM without peepholes.

    Args:
      capped: let at most what the forget gate gives up come in: min(1 - f, i) instead of i (Melis
        et al. 2017, section 4.1).
      z_BGH: what the gates are computed from, in the order input, forget, candidate, output.
      state: (h, c) before, each [B, H].
    """
    _, c_BH = state
    i_BH, f_BH = jax.nn.sigmoid(z_BGH[:, 0]), jax.nn.sigmoid(z_BGH[:, 1])
    if capped:
        i_BH = jnp.minimum(1 - f_BH, i_BH)
    c_BH = f_BH * c_BH + i_BH * jnp.tanh(z_BGH[:, 2])
    return jax.nn.sigmoid(z_BGH[:, 3]) * jnp.tanh(c_BH), c_BH


def elman_cell(z_BGH, state):
    """(h,) after one step of Elman's network with sigmoid units (Mikolov et al. 2010, eq. 1-3)."""
    del state
    return (jax.nn.sigmoid(z_BGH[:, 0]),)


# The cells by name: how many gates they have, which arrays make their state, the function.
CELLS = {
    "lstm": (4, ("h", "c"), functools.partial(lstm_cell, False)),
    "capped_lstm": (4, ("h", "c"), functools.partial(lstm_cell, True)),
    "elman": (1, ("h",), elman_cell),
}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def unroll(cell, z_LBGH, kernel_HGH, state, keep_BH, mask_LB):
    """Run a cell over time.

    Automatic differentiation would add to the kernel's gradient in every step. Here the backward
    scan only collects the gradients of the gates, and one product makes that of the kernel.

    Args:
      cell: a function of `CELLS`.
      z_LBGH: float, the part of the gates' inputs that does not depend on the state.
      kernel_HGH: maps h to the rest; its dtype is that of the product.
      state: tuple of float32 [B, H], h first.
      keep_BH: float factors of h before the recurrent product, for dropout of the state; or None.
      mask_LB: bool, False where a row has no token and its state stays; or None: no such places.

    Returns (h float32 [L, B, H], the last state).
    """
    return _forward(cell, z_LBGH, kernel_HGH, state, keep_BH, mask_LB)[0]


def _advance(cell, z_BGH, state, mask_B):
    """The next state; that before it in rows without a token."""
    new = cell(z_BGH, state)
    if mask_B is None:
        return new
    return tuple(jnp.where(mask_B[:, None], x, y) for x, y in zip(new, state, strict=True))


def _recurrent(h_BH, keep_BH, dtype):
    """What the recurrent kernel multiplies."""
    return (h_BH if keep_BH is None else h_BH * keep_BH).astype(dtype)


def _forward(cell, z_LBGH, kernel_HGH, state, keep_BH, mask_LB):
    H, G, _ = kernel_HGH.shape
    matrix = kernel_HGH.reshape(H, G * H)

    def step(state, at):
        z_BGH, mask_B = at
        h_BH = _recurrent(state[0], keep_BH, matrix.dtype)
        z = jnp.dot(h_BH, matrix, preferred_element_type=jnp.float32)
        z_BGH = z_BGH.astype(jnp.float32) + z.reshape(z_BGH.shape)
        new = _advance(cell, z_BGH, state, mask_B)
        return new, (z_BGH, new)

    last, (z_LBGH, states) = jax.lax.scan(step, state, (z_LBGH, mask_LB), unroll=UNROLL)
    return (states[0], last), (z_LBGH, kernel_HGH, state, states, keep_BH, mask_LB)


def _backward(cell, saved, gradients):
    z_LBGH, kernel_HGH, first, states, keep_BH, mask_LB = saved
    given_LBH, last = gradients
    H, G, _ = kernel_HGH.shape
    matrix_T = kernel_HGH.reshape(H, G * H).T
    before = tuple(jnp.concatenate([x[None], y[:-1]]) for x, y in zip(first, states, strict=True))

    def step(gradient, at):
        z_BGH, state, given_BH, mask_B = at
        gradient = (gradient[0] + given_BH, *gradient[1:])
        _, transposed = jax.vjp(functools.partial(_advance, cell, mask_B=mask_B), z_BGH, state)
        dz_BGH, (dh_BH, *rest) = transposed(gradient)
        flat = dz_BGH.reshape(len(dz_BGH), G * H).astype(matrix_T.dtype)
        product = jnp.dot(flat, matrix_T, preferred_element_type=jnp.float32)
        return (dh_BH + (product if keep_BH is None else product * keep_BH), *rest), dz_BGH

    of_first, dz_LBGH = jax.lax.scan(
        step, last, (z_LBGH, before, given_LBH, mask_LB), reverse=True, unroll=UNROLL
    )
    h_LBH = _recurrent(before[0], keep_BH, kernel_HGH.dtype)
    dkernel = kernel_gradient(h_LBH.reshape(-1, H), dz_LBGH.reshape(-1, G * H))
    return dz_LBGH, dkernel.reshape(kernel_HGH.shape).astype(kernel_HGH.dtype), of_first, None, None


unroll.defvjp(_forward, _backward)


class Layer(nn.Module):
    """One recurrent layer, for `run_layers`.

    Kernels are [D, G, H], biases [G, H]. Dropout falls on what the next layer reads, with a mask of
    its own at every place or (`locks_dropout`) one for all places of a row; on the h that the
    recurrent product reads, with one for a row; and on the recurrent kernel (`weight_dropout`),
    with one for the batch. Elman's network adds the embeddings as they are.
    """

    config: object

    @nn.compact
    def __call__(self, x_BLD, mask_LB, train: bool, attentions: bool, *state):
        """Return what the next layer reads [B, L, H], and (h [B, L, H], None, *new state)."""
        del attentions
        c = self.config
        gates, _, cell = CELLS[c.cell]
        H = c.hidden_size
        x_LBD = x_BLD.swapaxes(0, 1)
        if c.projects_input:
            D, M = x_LBD.shape[-1], x_LBD.shape[:2]
            kernel = self.param("input", initializer(c), (D, gates, H)).astype(c.dtype)
            z_MF = multiply(x_LBD.reshape(-1, D), kernel.reshape(D, gates * H))
            z_LBGH = z_MF.reshape(*M, gates, H)
            z_LBGH += self.param("bias", gate_biases(c), (gates, H))
        else:
            z_LBGH = x_LBD[:, :, None]
        kernel = self.param("recurrent", initializer(c), (H, gates, H)).astype(c.dtype)
        kernel = Dropout(c.weight_dropout)(kernel, train=train, rows=False)
        keep_BH = None
        if train and c.state_dropout:
            drop = Dropout(c.state_dropout)
            keep_BH = drop.mask((len(x_BLD), H)) * jnp.float32(drop.scale)
        h_LBH, state = unroll(cell, z_LBGH, kernel, state, keep_BH, mask_LB)
        h_BLH = h_LBH.swapaxes(0, 1).astype(c.dtype)
        drop = Dropout(c.dropout).locked if c.locks_dropout else Dropout(c.dropout)
        return drop(h_BLH, train=train), (h_BLH, None, *state)


def gate_biases(config):
    """Initial values of an LSTM's biases: as the other parameters', with the forget gate's raised.

    `forget_bias` is added to them, which is the same as adding it in every step.
    """

    def init(key, shape, dtype=jnp.float32):
        return initializer(config)(key, shape, dtype).at[1].add(config.forget_bias)

    return init


class Stack(nn.Module):
    """`num_layers` layers, each with its own part of the state; see `run_layers`."""

    config: object

    @nn.compact
    def __call__(self, x_BLD, mask_BL, state: dict, *, train: bool):
        """Return the outputs of all layers [N, B, L, H] and the new state.

        `state` is that of `empty_state`. It does not advance where `mask_BL` is False.
        """
        c = self.config
        names = CELLS[c.cell][1]
        parts_NBH = [state[name].swapaxes(0, 1) for name in names]
        mask_LB = None if mask_BL is None else mask_BL.swapaxes(0, 1)
        _, hidden, _, *parts = run_layers(c, Layer, x_BLD, mask_LB, train, False, *parts_NBH)
        return hidden, {
            name: jnp.stack(part, axis=1) if isinstance(part, tuple) else part.swapaxes(0, 1)
            for name, part in zip(names, parts, strict=True)
        }


def empty_state(config, rows: int) -> dict:
    """The state before a text: zeros float32 [rows, N, H] under "h" and, for an LSTM, "c"."""
    shape = (rows, config.num_layers, config.hidden_size)
    return {name: jnp.zeros(shape, jnp.float32) for name in CELLS[config.cell][1]}
