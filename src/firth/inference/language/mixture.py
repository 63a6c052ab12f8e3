"""Mixtures of language models by their log-probabilities on one text, and the unigram cache.

Nothing here knows what made the log-probabilities. M models, T tokens.
"""

import numpy as np

from firth.errors import FirthError

SMALLEST = 1e-6  # of the gain in nats a token; EM ends below it
ROUNDS = 500


def mix(log_probs_MT: np.ndarray, weights_M) -> np.ndarray:
    """float64 [T]: the log of the weighted mean of the probabilities."""
    highest_T = np.max(log_probs_MT, axis=0)
    highest_T = np.where(np.isfinite(highest_T), highest_T, 0)
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(weights_M) @ np.exp(log_probs_MT - highest_T)) + highest_T


def tune(log_probs_MT: np.ndarray) -> np.ndarray:
    """float64 [M]: the weights, of sum 1, under which a text is the most likely, found by EM.

    Each round gives every model its mean share of the probability of a token (Jelinek and Mercer
    1980). A token for which some model has no score, NaN, does not count. Raises FirthError if no
    model gives some token a probability.
    """
    with np.errstate(under="ignore"):
        p_MT = np.exp(log_probs_MT[:, ~np.isnan(log_probs_MT).any(0)])
    impossible = int((p_MT.max(axis=0) == 0).sum())
    if impossible:
        raise FirthError(
            f"{impossible:,} tokens of the text that tunes the weights have probability 0 in every "
            "model; add a model that is smoothed"
        )
    weights_M, before = np.full(len(p_MT), 1 / len(p_MT)), -np.inf
    for _ in range(ROUNDS):
        share_MT = weights_M[:, None] * p_MT
        total_T = share_MT.sum(axis=0)
        now = np.log(total_T).mean()
        if now - before < SMALLEST:
            break
        weights_M, before = (share_MT / total_T).mean(axis=1), now
    return weights_M


def cache(tokens_T: np.ndarray, size: int) -> np.ndarray:
    """float64 [T]: the log of each token's share of the `size` tokens before it.

    The unigram cache of Kuhn and De Mori (1990). It crosses the ends of sentences. A token that is
    not among them has -inf, and so has the first token of all. Raises FirthError for a bad size.
    """
    if size < 1:
        raise FirthError(f"cache={size}: expected at least 1 token")
    T = len(tokens_T)
    order = np.argsort(tokens_T, kind="stable")  # the places of each type, in their order
    place = np.arange(T)
    keys = tokens_T[order].astype(np.int64) * T + order
    oldest = tokens_T[order].astype(np.int64) * T + np.maximum(order - size, 0)
    times = np.empty(T)
    times[order] = place - np.searchsorted(keys, oldest)
    with np.errstate(divide="ignore"):
        return np.log(times / np.maximum(np.minimum(place, size), 1))
