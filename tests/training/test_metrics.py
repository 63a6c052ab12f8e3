"""Metrics are sums until they are written: how they are cut up can change nothing."""

import math

import numpy as np

from firth.training import metrics


def test_the_mean_is_that_of_all_elements_however_they_are_cut():
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=1000), rng.random(1000)
    cuts = np.sort(rng.integers(0, 1000, 30))
    total = {}
    for part in np.split(np.arange(1000), cuts):
        pair = ((values[part] * weights[part]).sum(), weights[part].sum())
        total = metrics.add(total, {"loss": pair})
    np.testing.assert_allclose(
        metrics.means(total)["loss"], np.average(values, weights=weights), rtol=1e-12
    )


def test_sums_are_kept_in_double_precision():
    """2**24 ones and a thousand more: float32 would stop counting."""
    total = metrics.add({}, {"n": (np.float32(2**24), np.float32(1))})
    for _ in range(1000):
        total = metrics.add(total, {"n": (np.float32(1), np.float32(0))})
    assert total["n"] == (2**24 + 1000, 1)


def test_names_may_come_and_go_and_the_arguments_stay():
    first = {"a": (1.0, 1.0)}
    total = metrics.add(metrics.add(first, {"b": (6.0, 3.0)}), {"a": [2.0, 1.0]})
    assert first == {"a": (1.0, 1.0)}
    assert metrics.means(total) == {"a": 1.5, "b": 2.0}


def test_nothing_measured_is_nan():
    assert math.isnan(metrics.means({"a": (0.0, 0.0)})["a"])
