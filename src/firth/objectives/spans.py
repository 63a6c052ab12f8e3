"""Corruption of runs of whole words: the n-grams of ALBERT and the spans of SpanBERT.

Lengths are in words and budgets in tokens. B batch, L length, P prediction slots, N longest run.
"""

import jax
import jax.numpy as jnp
import numpy as np

from firth.objectives.mask import noise, pack


def ngram_probs(longest: int = 3) -> np.ndarray:
    """Chance of n-grams of 1 .. `longest` words, in proportion to 1/n: 6/11, 3/11, 2/11.

    Lan et al. 2019, section 3.1.
    """
    probs = 1 / np.arange(1, longest + 1)
    return probs / probs.sum()


def geometric_probs(p: float = 0.2, longest: int = 10) -> np.ndarray:
    """Chance of spans of 1 .. `longest` words: geometric, renormalised, 3.8 words on average.

    Joshi et al. 2020, section 3.1.
    """
    probs = p * (1 - p) ** np.arange(longest)
    return probs / probs.sum()


def place_spans(keys_B, candidates_BL, starts_BL, counts_B, length_probs):
    """Place runs of whole words in `counts_B` tokens: the tokens of the run at its start [B, L].

    As ALBERT's create_pretraining_data, it visits the words of a row in random order. Each draws a
    length from `length_probs` (float [N], for 1 .. N words). The run loses words until it fits into
    the rest of the count. It is skipped if not even its first word fits, or if one of its words is
    taken. `starts_BL` marks the tokens that begin a word. Unlike there, a run ends before a token
    that is no candidate, so it never crosses [SEP]. SpanBERT draws until the budget is spent, lets
    spans overlap and cuts the last inside a word; here its spans are placed as ALBERT's.

    Returns int32 [B, L], 0 where no run starts.
    """
    L = candidates_BL.shape[1]
    at_L = jnp.arange(L)
    limits = jnp.asarray(np.cumsum(length_probs)[:-1], jnp.float32)
    lengths_N = jnp.arange(1, len(length_probs) + 1)

    def row(key, candidates_L, starts_L, count):
        before_L = jnp.roll(candidates_L, 1).at[0].set(False)
        begins_L = candidates_L & (starts_L | ~before_L)
        # The next word may begin where the word that begins here ends. Where no word begins the
        # step is 0, so a run at the end of the text is shorter than its draw.
        bounds_L = jnp.where(begins_L | ~candidates_L, at_L, L)
        following_L = jnp.append(jax.lax.cummin(bounds_L, reverse=True)[1:], L)
        step = jnp.append(jnp.where(begins_L, following_L, at_L), L)
        ends = [step[:L]]
        for _ in length_probs[1:]:
            ends.append(step[ends[-1]])
        sizes_LN = jnp.stack(ends, axis=1) - at_L[:, None]
        u_L = jax.random.uniform(jax.random.fold_in(key, 4), (L,))
        drawn_L = 1 + jnp.searchsorted(limits, u_L, side="right")
        order_L = jnp.argsort(jnp.where(begins_L, noise(key, L), 2.0))

        def place(state, start):
            taken_L, total = state
            sizes_N = sizes_LN[start]
            fits_N = (lengths_N <= drawn_L[start]) & (total + sizes_N <= count)
            size = jnp.max(jnp.where(fits_N, sizes_N, 0))
            run_L = (start <= at_L) & (at_L < start + size)
            size = jnp.where((taken_L & run_L).any(), 0, size)
            return (taken_L | (run_L & (size > 0)), total + size), size

        state = (jnp.zeros(L, bool), 0)
        _, placed_L = jax.lax.scan(place, state, order_L)
        return jnp.zeros(L, jnp.int32).at[order_L].set(placed_L)

    return jax.vmap(row)(keys_B, candidates_BL, starts_BL, counts_B)


def select_spans(keys_B, candidates_BL, starts_BL, counts_B, slots: int, length_probs):
    """Choose the tokens of the runs of `place_spans`, within `counts_B` and the slots.

    Returns positions int32 [B, P] in ascending order and weights float32 [B, P]; unused slots hold
    position 0 and weight 0.
    """
    L = candidates_BL.shape[1]
    counts_B = jnp.minimum(counts_B, slots)  # otherwise the last run would be cut
    sizes_BL = place_spans(keys_B, candidates_BL, starts_BL, counts_B, length_probs)
    at_L = jnp.arange(L)
    end_BL = jax.lax.cummax(jnp.where(sizes_BL > 0, at_L + sizes_BL, 0), axis=1)
    positions_BL = jnp.where(at_L < end_BL, at_L, L)
    return pack(jnp.sort(positions_BL, axis=1)[:, :slots], L)


def scattered_spans(key, starts_S, budget: int, alpha: int, beta: int, *, words: bool):
    """Bool [S]: spans of 1 to 5 tokens with free context around them, as XLNet chooses its targets.

    From left to right, it draws n with probability proportional to 1/n, and a context of
    n * alpha // beta tokens. A random share of the context lies before the span, the rest after it.
    The span begins at the next start of a word (`starts_S`). Spans end when `budget` tokens are
    chosen or the row is over. `words` counts n in words instead of tokens. Yang et al. 2019,
    section 2.5 and A.
    """
    size, longest = starts_S.shape[0], 5
    probs = 1 / np.arange(1, longest + 1)
    steps = jnp.asarray(np.cumsum(probs / probs.sum())[:-1], jnp.float32)
    place_S = jnp.arange(size)
    next_start = jax.lax.cummin(jnp.where(starts_S, place_S, size), reverse=True)
    next_start = jnp.append(next_start, jnp.full(longest + 1, size))

    def step(state, uniforms):
        at, chosen, over = state
        n = jnp.minimum(1 + (uniforms[0] >= steps).sum(), budget - chosen)
        context = n * alpha // beta
        before = (uniforms[1] * context).astype(jnp.int32)
        begin = next_start[jnp.minimum(at + before, size)]
        end = begin + n
        if words:
            border = begin
            for number in range(longest):
                following = next_start[jnp.minimum(border + 1, size)]
                border = jnp.where(number < n, following, border)
            end = jnp.minimum(border, begin + budget - chosen)
        over |= (chosen >= budget) | (begin >= size) | (end >= size)
        end = jnp.where(over, begin, end)
        span = (begin, end)
        return (end + context - before, chosen + end - begin, over), span

    uniforms = jax.random.uniform(key, (budget, 2))
    state = (jnp.int32(0), jnp.int32(0), jnp.array(False))
    _, (begin_N, end_N) = jax.lax.scan(step, state, uniforms)
    inside = (place_S >= begin_N[:, None]) & (place_S < end_N[:, None])
    return inside.any(axis=0)
