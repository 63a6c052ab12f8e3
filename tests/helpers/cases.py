"""Which cases of a test run with each change, and which at night alone."""

from collections.abc import Collection, Iterable

import pytest


def nightly(*values):
    """A case of a promise that each change sees by another case."""
    return pytest.param(*values, marks=(pytest.mark.slow, pytest.mark.nightly))


def with_each_change(chosen: Collection, cases: Iterable) -> list:
    """The cases in their order; those that are not among the chosen run at night alone."""
    cases = list(cases)
    assert all(case in cases for case in chosen), "a chosen case that is none"
    return [
        case if case in chosen else nightly(*(case if isinstance(case, tuple) else (case,)))
        for case in cases
    ]
