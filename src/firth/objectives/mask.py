"""Corruptions of token batches, on the device, inside the jitted step.

Every random choice is keyed by the row's example number (and by the step, when masking is
dynamic), so it does not depend on the batch, the device or the host that the row lands on.

B batch, L length, P prediction slots, V vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np


def row_keys(key, batch):
    """One key a row [B], from the batch's `example` and `copy` numbers."""

    def fold(example, copy):
        return jax.random.fold_in(jax.random.fold_in(key, example), copy)

    return jax.vmap(fold)(batch["example"], batch["copy"])


def prediction_counts(length: int, rate: float, max_predictions: int) -> np.ndarray:
    """Number of predictions for a row of n tokens, specials included: int32 [length + 1].

    `min(max_predictions, max(1, round(rate * n)))` with Python's rounding of halves to even, as
    the BERT code counts.
    """
    counts = np.round(rate * np.arange(length + 1))
    return np.clip(counts, 1, max_predictions).astype(np.int32)


def select_tokens(keys_B, candidates_BL, counts_B, slots: int):
    """Choose `counts_B` of the candidates uniformly without replacement.

    Returns positions int32 [B, P] in ascending order and weights float32 [B, P]; unused slots
    hold position 0 and weight 0. Rows with fewer candidates than asked give all they have.
    """
    L = candidates_BL.shape[1]
    noise_BL = jax.vmap(lambda key: _noise(key, L))(keys_B)
    order_BP = jnp.argsort(jnp.where(candidates_BL, noise_BL, 2.0), axis=1)[:, :slots]
    wanted_B = jnp.minimum(counts_B, candidates_BL.sum(1))
    chosen_BP = jnp.arange(order_BP.shape[1]) < wanted_B[:, None]
    return _pack(jnp.where(chosen_BP, order_BP, L), L)


def select_words(keys_B, candidates_BL, starts_BL, counts_B, slots: int):
    """Choose whole words in random order while they fit into `counts_B` tokens.

    `starts_BL` marks the tokens that begin a word. A word that would overshoot the count is
    passed over and later, shorter ones may still be taken, as in the BERT code. Returns as
    `select_tokens`; a row whose every word is longer than its count predicts nothing.
    """

    def row(key, candidates_L, starts_L, count):
        L = candidates_L.shape[0]
        word_L = jnp.cumsum((starts_L | ~candidates_L).at[0].set(True)) - 1
        sizes_L = jnp.zeros(L, jnp.int32).at[word_L].add(candidates_L)
        order_L = jnp.argsort(jnp.where(sizes_L > 0, _noise(key, L), 2.0))

        def take(total, size):
            fits = (size > 0) & (total + size <= count)
            return total + jnp.where(fits, size, 0), fits

        _, fits_L = jax.lax.scan(take, 0, sizes_L[order_L])
        chosen_L = jnp.zeros(L, bool).at[order_L].set(fits_L)[word_L] & candidates_L
        return jnp.where(chosen_L, jnp.arange(L), L)

    L = candidates_BL.shape[1]
    positions_BL = jax.vmap(row)(keys_B, candidates_BL, starts_BL, counts_B)
    return _pack(jnp.sort(positions_BL, axis=1)[:, :slots], L)


def _noise(key, L: int):
    """Uniform noise [L] for the choice of positions; `replace` folds other numbers into the key."""
    return jax.random.uniform(jax.random.fold_in(key, 0), (L,))


def _pack(positions_BP, L: int):
    """Sort positions and turn the filler L into position 0 with weight 0."""
    positions_BP = jnp.sort(positions_BP, axis=1).astype(jnp.int32)
    used_BP = positions_BP < L
    return jnp.where(used_BP, positions_BP, 0), used_BP.astype(jnp.float32)


def gather(x_BL, positions_BP):
    """Values of [B, L, ...] at the positions: [B, P, ...]."""
    index = positions_BP.reshape(positions_BP.shape + (1,) * (x_BL.ndim - 2))
    return jnp.take_along_axis(x_BL, index, axis=1)


def replace(keys_B, tokens_BL, positions_BP, weights_BP, *, mask_id, vocab_size, rates):
    """Replace the chosen tokens: [MASK] and a random token with probabilities `rates`, else keep.

    `rates` is (mask, random), (0.8, 0.1) in the paper. Each token draws independently; a random
    token is uniform over the whole vocabulary, specials included, as in the BERT code.
    """
    P = positions_BP.shape[1]
    draw_BP = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, 1), (P,)))(keys_B)
    random_BP = jax.vmap(
        lambda k: jax.random.randint(jax.random.fold_in(k, 2), (P,), 0, vocab_size)
    )(keys_B)
    mask_rate, random_rate = rates
    original_BP = gather(tokens_BL, positions_BP)
    new_BP = jnp.where(
        draw_BP < mask_rate,
        mask_id,
        jnp.where(draw_BP < mask_rate + random_rate, random_BP, original_BP),
    )
    # Unused slots write beyond the row, that is nowhere: position 0 may be a chosen one.
    target_BP = jnp.where(weights_BP > 0, positions_BP, tokens_BL.shape[1])
    rows_B1 = jnp.arange(tokens_BL.shape[0])[:, None]
    return tokens_BL.at[rows_B1, target_BP].set(new_BP.astype(tokens_BL.dtype), mode="drop")
