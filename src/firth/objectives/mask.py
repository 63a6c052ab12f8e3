"""Corruptions of token batches, on the device, inside the jitted step.

These functions choose how many tokens to predict, which ones, and their replacements; `spans`
chooses runs of words. The key of a random choice comes from the row's example number (and from the
step, when masking is dynamic), so it does not depend on the row's batch, device or host. The
choices of one row fold different numbers into its key: 0 the order of its positions, 1 and 2 their
replacement, 3 the count and 4 the lengths of spans.

B batch, L length, P prediction slots, V vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np

from firth.layers.attention import gather


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


def drawn_counts(keys_B, sizes_B, length: int, rate: float, max_predictions: int):
    """Number of predictions of rows with n = `sizes_B` tokens, specials included: int32 [B].

    `min(max_predictions, floor(rate * n + U))` with U uniform over [0, 1), a draw for each row, as
    RoBERTa's code (fairseq) counts: `rate * n` on average where the cap allows, and maybe none.
    """
    exact = rate * np.arange(length + 1)  # float64, so the average is not off by a rounding
    whole, part = np.floor(exact), exact - np.floor(exact)
    u_B = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, 3)))(keys_B)
    up_B = u_B >= jnp.asarray(1 - part, jnp.float32)[sizes_B]
    return jnp.minimum(jnp.asarray(whole, jnp.int32)[sizes_B] + up_B, max_predictions)


def select_tokens(keys_B, candidates_BL, counts_B, slots: int):
    """Choose `counts_B` of the candidates uniformly without replacement.

    Returns positions int32 [B, P] in ascending order and weights float32 [B, P]; unused slots
    hold position 0 and weight 0. A row with too few candidates gives all of them.
    """
    L = candidates_BL.shape[1]
    noise_BL = jax.vmap(lambda key: noise(key, L))(keys_B)
    return _select_least(noise_BL, candidates_BL, counts_B, slots)


def smoothed_weights(counts_V, smoothing: float, special_ids) -> np.ndarray:
    """Weights float32 [V] of DistilBERT's choice: `max(count, 1) ** -smoothing`, specials 0.

    Sanh et al. 2019 take 0.7, which prefers rare tokens as XLM does; 0 makes all tokens equal.
    """
    weights = np.maximum(np.asarray(counts_V, np.float64), 1) ** -smoothing
    weights[list(special_ids)] = 0
    return weights.astype(np.float32)


def select_weighted(keys_B, candidates_BL, weights_BL, counts_B, slots: int):
    """Choose `counts_B` candidates without replacement, each with chance in proportion to weight.

    The largest of log weight + Gumbel noise: the distribution of drawing one after another from
    those left, as `torch.multinomial` does for DistilBERT (Sanh et al. 2019). The original draws
    jointly over its whole batch. Here each row has its own count, so its mask does not depend on
    its batch. Tokens of weight 0 are never chosen. Returns as `select_tokens`.
    """
    L = candidates_BL.shape[1]
    gumbel_BL = jax.vmap(lambda key: jax.random.gumbel(jax.random.fold_in(key, 0), (L,)))(keys_B)
    score_BL = jnp.log(weights_BL) + gumbel_BL
    return _select_least(-score_BL, candidates_BL & (weights_BL > 0), counts_B, slots)


def select_with_replacement(keys_B, candidates_BL, counts_B, slots: int):
    """Draw `counts_B` times from the candidates, uniformly and with replacement.

    ELECTRA's code (Clark et al. 2020) draws so. A position drawn twice fills two slots: it counts
    twice in a loss over slots, and fewer than `counts_B` tokens are corrupted. `replace` does not
    define which of its two replacements such a token gets. Returns as `select_tokens`, with equal
    positions side by side; a row without candidates predicts nothing.
    """

    def row(key, candidates_L):
        key, total = jax.random.fold_in(key, 0), candidates_L.sum()
        number_P = jax.random.randint(key, (slots,), 0, jnp.maximum(total, 1))
        return jnp.argsort(~candidates_L)[number_P]  # the candidates in order, then the others

    position_BP = jax.vmap(row)(keys_B, candidates_BL)
    drawn_B = jnp.where(candidates_BL.any(1), counts_B, 0)
    drawn_BP = jnp.arange(slots) < drawn_B[:, None]
    L = candidates_BL.shape[1]
    return pack(jnp.where(drawn_BP, position_BP, L), L)


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
        order_L = jnp.argsort(jnp.where(sizes_L > 0, noise(key, L), 2.0))

        def take(total, size):
            fits = (size > 0) & (total + size <= count)
            return total + jnp.where(fits, size, 0), fits

        _, fits_L = jax.lax.scan(take, 0, sizes_L[order_L])
        chosen_L = jnp.zeros(L, bool).at[order_L].set(fits_L)[word_L] & candidates_L
        return jnp.where(chosen_L, jnp.arange(L), L)

    L = candidates_BL.shape[1]
    positions_BL = jax.vmap(row)(keys_B, candidates_BL, starts_BL, counts_B)
    return pack(jnp.sort(positions_BL, axis=1)[:, :slots], L)


def _select_least(score_BL, candidates_BL, counts_B, slots: int):
    """The `counts_B` candidates of the lowest score, or all where there are fewer."""
    L = candidates_BL.shape[1]
    order_BP = jnp.argsort(jnp.where(candidates_BL, score_BL, jnp.inf), axis=1)[:, :slots]
    wanted_B = jnp.minimum(counts_B, candidates_BL.sum(1))
    chosen_BP = jnp.arange(order_BP.shape[1]) < wanted_B[:, None]
    return pack(jnp.where(chosen_BP, order_BP, L), L)


def noise(key, L: int):
    """Uniform noise [L] in [0, 1) of one row, for the order of its positions."""
    return jax.random.uniform(jax.random.fold_in(key, 0), (L,))


def pack(positions_BP, L: int):
    """Positions int32 [B, P], ascending, and weights float32 [B, P]; L marks an unused slot."""
    positions_BP = jnp.sort(positions_BP, axis=1).astype(jnp.int32)
    used_BP = positions_BP < L
    return jnp.where(used_BP, positions_BP, 0), used_BP.astype(jnp.float32)


def scatter(x_BL, positions_BP, weights_BP, values_BP):
    """`x_BL` with the values (array or scalar) at the positions whose slots are used."""
    # Unused slots write beyond the row, which drops them: position 0 may be a chosen one.
    target_BP = jnp.where(weights_BP > 0, positions_BP, x_BL.shape[1])
    values_BP = jnp.broadcast_to(jnp.asarray(values_BP, x_BL.dtype), target_BP.shape)
    # Row by row: the partitioner then sees that no row needs another device's indices.
    return jax.vmap(lambda x_L, at_P, values_P: x_L.at[at_P].set(values_P, mode="drop"))(
        x_BL, target_BP, values_BP
    )


def replace(keys_B, tokens_BL, positions_BP, weights_BP, *, mask_id, vocab_size, rates, avoid=()):
    """Replace the chosen tokens: [MASK] and a random token with probabilities `rates`, else keep.

    `rates` is (mask, random), (0.8, 0.1) in the paper. Each token draws independently; a random
    token is uniform over the vocabulary without the ids to `avoid`. The BERT code avoids none, not
    even specials; RoBERTa's avoids them.
    """
    avoid = np.unique(np.asarray(avoid, np.int32))  # ascending
    P = positions_BP.shape[1]
    draw_BP = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, 1), (P,)))(keys_B)
    random_BP = jax.vmap(
        lambda k: jax.random.randint(jax.random.fold_in(k, 2), (P,), 0, vocab_size - len(avoid))
    )(keys_B)
    if len(avoid):  # the n-th other id comes after each avoided one with at most n others before
        others_before = avoid - np.arange(len(avoid), dtype=np.int32)
        random_BP += jnp.searchsorted(others_before, random_BP, side="right")
    mask_rate, random_rate = rates
    original_BP = gather(tokens_BL, positions_BP)
    new_BP = jnp.where(
        draw_BP < mask_rate,
        mask_id,
        jnp.where(draw_BP < mask_rate + random_rate, random_BP, original_BP),
    )
    return scatter(tokens_BL, positions_BP, weights_BP, new_BP)
