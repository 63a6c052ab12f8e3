"""How much of a count is given away, from the counts of counts: Good-Turing and Kneser-Ney."""

import numpy as np

from firth.errors import FirthError


def kneser_ney(times, *, order: int, several: bool, fallback=()) -> np.ndarray:
    """float64 [4]: the discounts of counts 0, 1, 2 and more.

    `times[i]` says how many n-grams of the order have the count i. `several` gives the three
    discounts of Chen and Goodman (1999, equation 26), else there is one, n1 / (n1 + 2 n2).

    Where the counts of counts give none, `fallback` is used; without one, this raises FirthError
    and says which of them is zero.
    """
    needed = (1, 2, 3) if several else (1, 2)
    missing = [i for i in needed if not times[i]]
    if not missing:
        share = times[1] / (times[1] + 2 * times[2])
        if not several:
            return np.array([0, share, share, share])
        found = [i - (i + 1) * share * times[i + 1] / times[i] for i in needed]
        if all(0 <= value <= i for i, value in enumerate(found, 1)):
            return np.array([0, *found])
        why = f"its discounts would be {', '.join(f'{value:.3g}' for value in found)}"
    else:
        why = f"no n-gram of that order has the count {' or '.join(map(str, missing))}"
    if fallback:
        return np.array([0, *fallback])
    raise FirthError(
        f"order {order}: the counts give no discount, since {why}; the text is too small, repeats "
        "itself or has too small a vocabulary: give more text or a lower order, or discounts of "
        'your own, --config.model.discount_fallback="(0.5,1.0,1.5)"'
    )


def good_turing(times, most: int) -> np.ndarray:
    """float64 [most + 2]: the factor of each count up to `most`, and 1 for all larger ones.

    `times[i]` says how many n-grams have the count i. Katz's factors (1987, equation 13): the
    estimate of Good and Turing over the count, scaled so that counts above `most` keep their mass.
    A factor outside (0, 1] is 1, as in SRILM, and so are those of an order without single n-grams.
    """
    ratio = np.ones(most + 2)
    if not most or not times[1]:
        return ratio
    common = (most + 1) * times[most + 1] / times[1]
    for r in range(1, most + 1):
        if times[r] and times[r + 1] and common < 1:
            turing = (r + 1) * times[r + 1] / (r * times[r])
            value = (turing - common) / (1 - common)
            if turing <= 1 and value > 0:
                ratio[r] = value
    return ratio
