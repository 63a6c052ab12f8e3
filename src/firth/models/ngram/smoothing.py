"""From counts to probabilities: the smoothings of the textbooks, all in the form of a back-off.

    mle                  Relative frequencies; a context that was never seen leaves the choice to
                         the shorter one.
    add_k                k more of every word after every context of full length.
    katz                 Good-Turing discounts with Katz's back-off (Katz 1987), as SRILM has it.
    absolute             Kneser-Ney's discount on plain counts (Ney et al. 1994).
    kneser_ney           One discount an order (Kneser and Ney 1995), interpolated.
    modified_kneser_ney  Three discounts an order (Chen and Goodman 1999), as KenLM's lmplz has it.

G n-grams of one order, C contexts: the n-grams of the order below, or the one empty context.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from firth.errors import FirthError
from firth.models.ngram.counts import Counts
from firth.models.ngram.discounts import good_turing, kneser_ney
from firth.models.ngram.model import Ngram

SMALLEST = 1e-12  # a probability mass below this is a rounding error


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """How counts become probabilities.

    name: one of NAMES.
    add: the k of add_k, above 0.
    discount_fallback: three discounts for counts of 1, 2 and more, used in the orders where the
      counts of counts give none; empty: such an order is an error.
    interpolate_unigrams: whether unigrams are mixed with the uniform distribution, as KenLM does by
      default. If not, the discounted mass goes to the words that were never seen, as in SRILM.
    prune: for each order, leave out the n-grams that occur at most so often; the last value holds
      for the orders after it. Empty: leave out none.
    good_turing_max: for each order, the largest count that is discounted.
    good_turing_min: for each order, the smallest count that is kept.
    """

    name: str = "modified_kneser_ney"
    add: float = 1.0
    discount_fallback: tuple[float, ...] = ()
    interpolate_unigrams: bool = True
    prune: tuple[int, ...] = ()
    good_turing_max: tuple[int, ...] = (1, 7)
    good_turing_min: tuple[int, ...] = (1, 1, 2)

    def __post_init__(self):
        if self.name not in NAMES:
            from firth.recipe import suggest

            raise FirthError(f"smoothing={self.name!r} is unknown{suggest(self.name, NAMES)}")
        if not (0 < self.add < float("inf")):
            raise FirthError(f"add={self.add}: expected a number above 0; for none, use mle")
        _check_discounts(self.discount_fallback)
        for field, least in (("prune", 0), ("good_turing_max", 0), ("good_turing_min", 1)):
            check_thresholds(field, getattr(self, field), least)
        if self.prune and self.prune[0]:
            raise FirthError(f"prune={self.prune}: words stay, so the first value must be 0")
        if self.name == "katz" and any(self.prune):
            raise FirthError("prune has no effect on katz; set good_turing_min instead")


def _check_discounts(values):
    if values and not (
        len(values) == 3 and all(0 <= value <= n for n, value in enumerate(values, 1))
    ):
        raise FirthError(
            f"discount_fallback={values}: expected three discounts, of counts of 1, 2 and more, "
            "none of them above its count, as in 0.5,1,1.5"
        )


def check_thresholds(field: str, values, least: int):
    """Raise FirthError unless `values` are whole numbers from `least` on that do not fall."""
    good = all(isinstance(value, int) and value >= least for value in values)
    if not good or (field != "good_turing_max" and list(values) != sorted(values)):
        raise FirthError(
            f"{field}={values}: expected whole numbers from {least} on, one an order, none of them "
            "below that of the order before"
        )


def at(values: Sequence[int], order: int, default: int) -> int:
    """The value of an order, 1 for the first; the last one holds for the orders after it."""
    return values[min(order, len(values)) - 1] if values else default


def estimate(counts: Counts, smoothing: Smoothing) -> Ngram:
    """The model of these counts.

    Raises FirthError for counts of counts that give no discounts.
    """
    rule = NAMES[smoothing.name](counts, smoothing)
    probs, backoffs, low_G = [], [], None
    kept = []
    for order, grams in enumerate(counts.orders, 1):
        prefix_G = counts.prefix(order)
        contexts = len(counts.orders[order - 2]) if order > 1 else 1
        lower_G = low_G[grams.suffix] if order > 1 else None
        low_G, weight_C, keep_G = rule(order, prefix_G, contexts, lower_G)
        probs.append(_log(low_G))
        kept.append(keep_G)
        if order > 1:
            backoffs.append(_log(weight_C))
    return without(counts, kept, probs, backoffs)


def _log(values) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(values).astype(np.float32)


def without(counts: Counts, kept, log_probs, backoffs) -> Ngram:
    """The model of the n-grams that are kept, from arrays of all; their prefixes are kept too.

    kept: bool [G] of each order. log_probs, backoffs: float32, as in `Ngram`.
    """
    keys, new_rank = [counts.orders[0].keys], None
    log_probs, backoffs = list(log_probs), list(backoffs)
    for n in range(1, len(counts.orders)):
        keep_G, own = kept[n], counts.orders[n].keys
        if new_rank is not None:
            own = new_rank[own // (counts.size + 1)] * (counts.size + 1) + own % (counts.size + 1)
        if keep_G.all() and new_rank is None:
            keys.append(own)
            continue
        keys.append(own[keep_G])
        log_probs[n] = log_probs[n][keep_G]
        if n < len(backoffs):
            backoffs[n] = backoffs[n][keep_G]
        new_rank = np.cumsum(keep_G) - 1
    return Ngram(counts.size, tuple(keys), tuple(log_probs), tuple(backoffs))


# A rule gives, for one order, (p [G], weight of the back-off [C], which n-grams stay [G]). It gets
# the number of the order, the context of each n-gram [G], the number of contexts and, from order 2
# on, the probability of each n-gram without its first word [G].
Rule = Callable[[int, np.ndarray, int, np.ndarray | None], tuple]


def _discounted(counts: Counts, smoothing: Smoothing, *, plain: bool, several: bool) -> Rule:
    """Interpolated discounting; `plain`: of counts in all orders; `several`: three discounts."""

    def rule(order, prefix_G, contexts, lower_G):
        grams, size = counts.orders[order - 1], counts.size
        count_G = grams.counts if plain else continuation_counts(counts, order)
        if order == 1:
            count_G = np.where(grams.begins, 0, count_G)
        discount_4 = kneser_ney(
            np.bincount(np.minimum(count_G, 5), minlength=6),
            order=order,
            several=several,
            fallback=smoothing.discount_fallback,
        )
        cut_G = discount_4[np.minimum(count_G, 3)]
        keep_G = grams.counts > at(smoothing.prune, order, 0) if order > 1 else grams.counts >= 0
        total_C = np.bincount(prefix_G, count_G, contexts)
        empty_C = total_C == 0  # nothing follows: the shorter context says all
        total_C[empty_C] = 1
        freed_C = np.bincount(prefix_G, np.where(keep_G, cut_G, count_G), contexts)
        weight_C = np.where(empty_C, 1, freed_C / total_C)
        own_G = (count_G - cut_G) / total_C[prefix_G]
        if order > 1:
            return own_G + weight_C[prefix_G] * lower_G, weight_C, keep_G
        return _unigrams(own_G, weight_C[0], smoothing.interpolate_unigrams, size), None, keep_G

    return rule


def _unigrams(own_G, freed: float, interpolate: bool, size: int) -> np.ndarray:
    """Unigrams [V + 1] with the mass that discounts freed; `<s>`, the last, has none."""
    unseen_G = own_G == 0
    unseen_G[size] = False
    if interpolate or not unseen_G.any():
        own_G = own_G + freed / size
    else:
        own_G = own_G + freed * unseen_G / unseen_G.sum()
    own_G[size] = 0
    return own_G


def continuation_counts(counts: Counts, order: int) -> np.ndarray:
    """int64 [G]: in how many different words' company each n-gram occurs, before it.

    The n-grams of the highest order, and those after `<s>`, which follow nothing, have their count.
    """
    grams = counts.orders[order - 1]
    if order == len(counts.orders):
        return grams.counts
    before_G = np.bincount(counts.orders[order].suffix, minlength=len(grams))
    return np.where(grams.begins, grams.counts, before_G)


def _katz(counts: Counts, smoothing: Smoothing) -> Rule:
    def rule(order, prefix_G, contexts, lower_G):
        grams, size = counts.orders[order - 1], counts.size
        count_G = np.where(grams.begins, 0, grams.counts) if order == 1 else grams.counts
        most = at(smoothing.good_turing_max, order, 0)
        ratio = good_turing(np.bincount(np.minimum(count_G, most + 2), minlength=most + 3), most)
        keep_G = count_G >= at(smoothing.good_turing_min, order, 1)
        kept_G = np.where(keep_G, count_G * ratio[np.minimum(count_G, most + 1)], 0)
        total_C = np.bincount(prefix_G, count_G, contexts)
        mass_C = np.bincount(prefix_G, kept_G, contexts)
        full_C = total_C - mass_C < SMALLEST * total_C  # nothing was discounted
        total_C = np.where((order > 1) & full_C, total_C + 1, total_C)
        total_C[total_C == 0] = 1
        own_G, left_C = kept_G / total_C[prefix_G], 1 - mass_C / total_C
        if order == 1:
            keep_G = np.ones(size + 1, bool)
            return _unigrams(own_G, left_C[0], False, size), None, keep_G
        room_C = 1 - np.bincount(prefix_G, np.where(keep_G, lower_G, 0), contexts)
        closed_C = room_C < SMALLEST  # every word occurs after this context
        own_G = own_G / np.where(closed_C, 1 - left_C, 1)[prefix_G]
        weight_C = np.where(closed_C, 0, left_C / np.where(closed_C, 1, room_C))
        # What takes the place of an n-gram that is left out, in the orders above.
        own_G = np.where(keep_G, own_G, weight_C[prefix_G] * lower_G)
        return own_G, weight_C, keep_G

    return rule


def _frequencies(counts: Counts, smoothing: Smoothing) -> Rule:
    def rule(order, prefix_G, contexts, lower_G):
        grams = counts.orders[order - 1]
        count_G = np.where(grams.begins, 0, grams.counts) if order == 1 else grams.counts
        total_C = np.bincount(prefix_G, count_G, contexts)
        own_G = count_G / np.where(total_C, total_C, 1)[prefix_G]
        keep_G = grams.counts > at(smoothing.prune, order, 0) if order > 1 else grams.counts >= 0
        left_C = np.bincount(prefix_G, np.where(keep_G, 0, own_G), contexts)
        weight_C = np.where(total_C == 0, 1, 0.0)
        if order > 1 and left_C.any():
            room_C = 1 - np.bincount(prefix_G, np.where(keep_G, lower_G, 0), contexts)
            weight_C = np.where(left_C > 0, left_C / np.maximum(room_C, SMALLEST), weight_C)
        if order > 1:
            own_G = np.where(keep_G, own_G, weight_C[prefix_G] * lower_G)
        return own_G, weight_C, keep_G

    return rule


def _add_k(counts: Counts, smoothing: Smoothing) -> Rule:
    """Contexts are of full length, or shorter after `<s>`; shorter ones elsewhere say nothing."""

    def rule(order, prefix_G, contexts, lower_G):
        grams, size = counts.orders[order - 1], counts.size
        count_G = np.where(grams.begins, 0, grams.counts) if order == 1 else grams.counts
        whole_G = grams.begins | (order == len(counts.orders))
        added = smoothing.add * size
        total_C = np.bincount(prefix_G, np.where(whole_G, count_G, 0), contexts)
        share_G = (count_G + smoothing.add) / (total_C[prefix_G] + added)
        own_G = np.where(whole_G, share_G, 1 / size)
        if order == 1:
            own_G[size] = 0
        weight_C = added / (total_C + added)
        return own_G, weight_C, np.ones(len(grams), bool)

    return rule


NAMES = {
    "mle": _frequencies,
    "add_k": _add_k,
    "katz": _katz,
    "absolute": lambda c, s: _discounted(c, s, plain=True, several=False),
    "kneser_ney": lambda c, s: _discounted(c, s, plain=False, several=False),
    "modified_kneser_ney": lambda c, s: _discounted(c, s, plain=False, several=True),
}
