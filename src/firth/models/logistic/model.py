"""Multinomial logistic regression over features of texts (maximum entropy, Berger et al. 1996).

p(c | x) is the softmax of W x + b. N texts, F features, C labels.
"""

import dataclasses
import logging
import warnings
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.special import softmax

from firth.errors import FirthError
from firth.models.logistic.features import WEIGHTINGS, Features, matrix, weighted

log = logging.getLogger("firth")


@dataclasses.dataclass(frozen=True)
class Logistic:
    """A model ready for use.

    features: which features a text has. texts: 1, or 2 for pairs. weighting: one of WEIGHTINGS.
    names: the feature of each column [F]. labels: their names [C].
    weights [C, F], biases [C], idf [F]: float64; idf is None but for tfidf.
    """

    features: Features
    texts: int
    weighting: str
    names: list[str]
    labels: tuple[str, ...]
    weights: np.ndarray
    biases: np.ndarray
    idf: np.ndarray | None = None

    def __post_init__(self):
        object.__setattr__(self, "_columns", {name: i for i, name in enumerate(self.names)})

    def inputs(self, texts: Sequence[Sequence[str]]) -> csr_array:
        """Float64 [N, F]: the features of texts; each is a list of one, or of two for a pair."""
        counts_NF = matrix([self.features.of_texts(one) for one in texts], self._columns)
        return weighted(counts_NF, self.weighting, self.idf)

    def probabilities(self, texts: Sequence[Sequence[str]]) -> np.ndarray:
        """Float64 [N, C]; `texts` as for `inputs`."""
        return softmax(self.inputs(texts) @ self.weights.T + self.biases, axis=1)

    def heaviest(self, count: int) -> dict[str, list[tuple[str, float]]]:
        """{label: [(feature, weight)]}: at most `count` of each, positive, the heaviest first."""
        found = {}
        for label, weights_F in zip(self.labels, self.weights, strict=True):
            order = np.argsort(-weights_F, kind="stable")[:count]
            chosen = [(self.names[i], float(weights_F[i])) for i in order]
            found[label] = [(name, weight) for name, weight in chosen if weight > 0]
        return found


def check_weighting(weighting: str) -> None:
    """Raise FirthError for a name that is none of WEIGHTINGS."""
    if weighting not in WEIGHTINGS:
        raise FirthError(
            f"model.weighting={weighting!r} is unknown; choose {', '.join(WEIGHTINGS)}"
        )


def fit(
    inputs_NF: csr_array, labels_N: np.ndarray, classes: int, l2: float, iterations: int
) -> tuple[np.ndarray, np.ndarray]:
    """(weights [C, F], biases [C]) of the least sum of log losses plus l2 / 2 times the squares.

    scikit-learn's L-BFGS finds them; the penalty leaves out the biases. Of two labels each has half
    of the one weight that decides between them, with the other's sign. Warns where the iterations
    end before the minimum. A label without a text has the weights 0 and a bias of minus infinity.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    solver = LogisticRegression(C=1 / l2, max_iter=iterations)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        solver.fit(inputs_NF, labels_N)
    if any(issubclass(one.category, ConvergenceWarning) for one in caught):
        log.warning(
            "l2=%g: %d iterations end before the minimum; more: --config.iterations=%d",
            *(l2, iterations, 10 * iterations),
        )
    weights, biases = solver.coef_, solver.intercept_
    if len(solver.classes_) == 2:
        weights = np.concatenate([-weights, weights]) / 2
        biases = np.concatenate([-biases, biases]) / 2
    weights_CF = np.zeros((classes, inputs_NF.shape[1]))
    biases_C = np.full(classes, -np.inf)
    weights_CF[solver.classes_], biases_C[solver.classes_] = weights, biases
    return weights_CF, biases_C
