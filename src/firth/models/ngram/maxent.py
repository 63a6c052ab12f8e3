"""Maximum-entropy n-gram models: log-linear, with a weight for every n-gram (Rosenfeld 1996).

    p(w | h) = exp(sum of the weights of the n-grams that end h w) / Z(h)

Only the words seen after h have weights that a shorter context lacks, so that

    Z(h) / Z(h') = 1 + sum over w seen after h of p(w | h') (exp(weight of h w) - 1)

where h' is h without its first word (Wu and Khudanpur 2000). That quotient is one over a back-off
weight: the trained model is an `Ngram`, exactly, and costs no sums over the vocabulary.

G n-grams of one order, C contexts: the n-grams of the order below. P weights, V words.
"""

import logging
from dataclasses import dataclass

import numpy as np

from firth.errors import FirthError
from firth.models.ngram.counts import Counts
from firth.models.ngram.model import Ngram
from firth.models.ngram.smoothing import at, check_thresholds, without

log = logging.getLogger("firth")

NAME = "maximum_entropy"
CORRECTIONS = 7  # pairs of vectors that L-BFGS keeps, each as long as all weights
MOST_BITS = 30
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: Knuth's hash


@dataclass(frozen=True, kw_only=True)
class MaximumEntropy:
    """What is trained, and how.

    l2: for each order, what half the square of every weight costs, in nats: one over the variance
      of its Gaussian prior. The last value holds for the orders after it.
    minimum: for each order, how often an n-gram must occur to have a weight.
    hash_bits: 0, or the n-grams from order 2 on share 2^hash_bits weights, by a hash of their
      words and with the l2 of order 2; nothing is done about collisions.
    iterations: of L-BFGS, at most.
    tolerance: an iteration that lowers the objective by a smaller share of it is the last.
    """

    name: str = NAME
    l2: tuple[float, ...] = (1.0,)
    minimum: tuple[int, ...] = (1,)
    hash_bits: int = 0
    iterations: int = 300
    tolerance: float = 1e-6

    def __post_init__(self):
        numbers = [value for value in self.l2 if isinstance(value, int | float)]
        least, most = min(numbers, default=0), max(numbers, default=0)
        if not 0 < least <= most < float("inf") or len(numbers) < len(self.l2):
            raise FirthError(
                f"l2={self.l2}: expected numbers above 0, one an order; without a penalty the "
                "weights grow without end"
            )
        check_thresholds("minimum", self.minimum, 1)
        if self.minimum and self.minimum[0] != 1:
            raise FirthError(f"minimum={self.minimum}: words stay, so the first value must be 1")
        if not 0 <= self.hash_bits <= MOST_BITS:
            raise FirthError(f"hash_bits={self.hash_bits}: expected 0 (no hash) to {MOST_BITS}")
        if self.iterations < 1 or not 0 <= self.tolerance < 1:
            raise FirthError(
                f"iterations={self.iterations}, tolerance={self.tolerance}: expected at least one "
                "iteration and a tolerance in [0, 1)"
            )


class Likelihood:
    """The penalised likelihood of a text as a function of the weights, and its gradient.

    weights: their number, P. tokens: of the text.
    """

    def __init__(self, counts: Counts, settings: MaximumEntropy):
        self.counts = counts
        last = len(counts.orders)
        self.prefix = [counts.prefix(n) for n in range(1, last + 1)]
        self.suffix = [grams.suffix.astype(np.int64) for grams in counts.orders]
        # Each place of the text counts once, with its longest context.
        self.target = [
            grams.counts * (grams.begins | (n == last)) for n, grams in enumerate(counts.orders, 1)
        ]
        self.target[0] = self.target[0][: counts.size]
        self.tokens = sum(int(target_G.sum()) for target_G in self.target)
        self.has_weight = [
            grams.counts >= at(settings.minimum, n, 1) if n > 1 else ~grams.begins
            for n, grams in enumerate(counts.orders, 1)
        ]
        self.slot, self.weights, costs = self._slots(settings)
        self.l2_P = np.concatenate(costs)

    def _slots(self, settings: MaximumEntropy):
        """(place of each n-gram's weight for each order, P, l2 of the places); P: it has none."""
        slots, first, costs = [], 0, []
        hashes = hash_ngrams(self.counts) if settings.hash_bits else None
        for n, has_G in enumerate(self.has_weight, 1):
            if hashes and n > 1:
                slot_G = self.counts.size + (hashes[n - 1] >> (64 - settings.hash_bits)).astype(int)
                end = self.counts.size + (1 << settings.hash_bits)
            else:
                slot_G = first + np.cumsum(has_G) - 1
                end = first + int(has_G.sum())
            if end > first:
                costs.append(np.full(end - first, at(settings.l2, n, 1.0)))
            slots.append(np.where(has_G, slot_G, -1))
            first = end
        for slot_G in slots:
            slot_G[slot_G < 0] = first
        return slots, first, costs

    def scale(self) -> np.ndarray:
        """float64 [P]: about how far each weight may move, one over the root of its curvature.

        The second derivative by a weight is the penalty's and, where the n-gram's probability is
        small, about how often it is expected; near the end that is how often it occurs. Frequent
        and rare n-grams differ by a factor of thousands, and L-BFGS alone takes several times as
        many iterations to find that out.
        """
        times_P = np.zeros(self.weights + 1)
        for slot_G, grams in zip(self.slot, self.counts.orders, strict=True):
            times_P += np.bincount(slot_G, grams.counts, len(times_P))
        return 1 / np.sqrt((times_P[:-1] + self.l2_P) / self.tokens)

    def start(self) -> np.ndarray:
        """float64 [P]: the relative frequencies of the words, smoothed; no other weights."""
        weights_P = np.zeros(self.weights)
        logs_V = np.log(self.counts.orders[0].counts[: self.counts.size] + 0.5)
        weights_P[: self.counts.size] = logs_V - logs_V.mean()
        return weights_P

    def forward(self, weights_P):
        """(weights, log p and quotients of Z) for each order.

        Arrays of [G] (order 1: [V]), [G] (order 1: [V]) and [C] (order 1: none).
        """
        padded = np.append(weights_P, 0)
        thetas = [padded[slot_G] for slot_G in self.slot]
        thetas[0] = thetas[0][: self.counts.size]
        log_p, quotients = [thetas[0] - np.logaddexp.reduce(thetas[0])], [None]
        for n in range(1, len(thetas)):
            lower_G = log_p[-1][self.suffix[n]]
            prefix_G = self.prefix[n]
            change_G = np.exp(lower_G) * np.expm1(thetas[n])
            quotient_C = 1 + np.bincount(prefix_G, change_G, len(self.slot[n - 1]))
            # A step of L-BFGS that goes too far may take all of the mass away, but for rounding.
            quotient_C = np.maximum(quotient_C, np.finfo(float).tiny)
            log_p.append(lower_G + thetas[n] - np.log(quotient_C)[prefix_G])
            quotients.append(quotient_C)
        return thetas, log_p, quotients

    def __call__(self, weights_P) -> tuple[float, np.ndarray]:
        """(nats a token with the penalty, its gradient float64 [P])."""
        thetas, log_p, quotients = self.forward(weights_P)
        loss = -sum(float(t @ p) for t, p in zip(self.target, log_p, strict=True)) / self.tokens
        gradient = np.zeros(self.weights + 1)
        flow_G = self.target[-1].astype(np.float64)  # the derivative by log p
        for n in range(len(thetas) - 1, 0, -1):
            prefix_G, suffix_G = self.prefix[n], self.suffix[n]
            flow_C = np.bincount(prefix_G, flow_G, len(self.slot[n - 1]))[prefix_G]
            p_G = np.exp(log_p[n])
            gradient += np.bincount(self.slot[n], flow_G - flow_C * p_G, len(gradient))
            unchanged_G = np.exp(log_p[n - 1][suffix_G]) / quotients[n][prefix_G]
            flow_G = flow_G - flow_C * (p_G - unchanged_G)
            flow_G = np.bincount(suffix_G, flow_G, len(log_p[n - 1])) + self.target[n - 1]
        words = self.counts.size
        gradient[:words] += flow_G - flow_G.sum() * np.exp(log_p[0])
        cost_P = self.l2_P * weights_P / self.tokens
        return loss + 0.5 * float(cost_P @ weights_P), cost_P - gradient[:-1] / self.tokens


def hash_ngrams(counts: Counts) -> list[np.ndarray]:
    """uint64 [G] of each order: a hash of the words of every n-gram, the same in every text."""
    found = [(counts.orders[0].keys.astype(np.uint64) + np.uint64(1)) * MULTIPLIER]
    for n in range(2, len(counts.orders) + 1):
        word_G = (counts.orders[n - 1].keys % (counts.size + 1)).astype(np.uint64)
        mixed_G = found[-1][counts.prefix(n)]
        mixed_G = (mixed_G ^ (mixed_G >> np.uint64(29))) + word_G + np.uint64(1)
        found.append(mixed_G * MULTIPLIER)
    return found


def fit(counts: Counts, settings: MaximumEntropy, start_P=None) -> tuple[Ngram, np.ndarray]:
    """(the model of the likeliest weights, the weights float64 [P]).

    `start_P` are weights to begin with. Every tenth iteration is logged. The problem is convex:
    training ends at its one minimum, or is logged as unfinished after `settings.iterations`.
    """
    import scipy.optimize  # takes a while, and no other command needs it

    function, done = Likelihood(counts, settings), 0
    scale_P = function.scale()
    start_P = function.start() if start_P is None else start_P

    def scaled(weights_P):
        loss, gradient_P = function(weights_P * scale_P)
        return loss, gradient_P * scale_P

    def report(intermediate_result):
        nonlocal done
        done += 1
        if done == 1 or done % 10 == 0:
            log.info("iteration %d: %.5f nats a token", done, intermediate_result.fun)

    log.info("%s weights of n-grams of up to %d", f"{function.weights:,}", len(counts.orders))
    found = scipy.optimize.minimize(
        scaled,
        start_P / scale_P,
        jac=True,
        method="L-BFGS-B",
        callback=report,
        options=dict(
            maxiter=settings.iterations,
            maxfun=2 * settings.iterations + 20,
            maxcor=CORRECTIONS,
            ftol=settings.tolerance,
            gtol=0,
        ),
    )
    if done >= settings.iterations:
        log.warning(
            "the weights have not settled after %d iterations; give more: "
            "--config.model.iterations=%d",
            *(done, 2 * done),
        )
    weights_P = found.x * scale_P
    return as_ngram(function, weights_P), weights_P


def as_ngram(function: Likelihood, weights_P: np.ndarray) -> Ngram:
    """The same probabilities in the form of a back-off; n-grams without a weight are left out."""
    counts = function.counts
    _, log_p, quotients = function.forward(weights_P)
    log_p[0] = np.append(log_p[0], -np.inf)  # <s> is never predicted
    kept = [np.ones(counts.size + 1, bool), *function.has_weight[1:]]
    backoffs = [-np.log(quotient_C) for quotient_C in quotients[1:]]
    return without(
        counts,
        kept,
        [logs.astype(np.float32) for logs in log_p],
        [logs.astype(np.float32) for logs in backoffs],
    )
