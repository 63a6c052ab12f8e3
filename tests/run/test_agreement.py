"""What processes compare before they step; whole jobs are in tests/train/test_jobs.py."""

import json

import pytest

from firth.distributed import job
from firth.errors import FirthError
from firth.run import agreement


def records(*facts, clocks=None):
    clocks = clocks or [0.0] * len(facts)
    return [
        {"host": f"h{i}", "clock": clock, "facts": fact}
        for i, (fact, clock) in enumerate(zip(facts, clocks, strict=True))
    ]


def test_what_differs_is_named_with_its_process():
    same = {"config.seed": "0", "store 0": "aa"}
    assert agreement.differences(records(same, same, same)) == []
    found = agreement.differences(records(same, same | {"store 0": "bb"}, {"config.seed": "1"}))
    assert found == [
        "process 1 (h1): store 0 is bb, on process 0 aa",
        "process 2 (h2): config.seed is 1, on process 0 0",
        "process 2 (h2): store 0 is None, on process 0 aa",
    ]


@pytest.mark.parametrize(
    "skew, noted, refused", [(2, 0, 0), (-30, 1, 0), (30, 1, 0), (-901, 0, 1), (901, 0, 1)]
)
def test_clocks_that_differ_are_noted_and_absurd_ones_refused(
    monkeypatch, capsys, skew, noted, refused
):
    answers = [json.dumps(r) for r in records({}, {}, {}, clocks=[1e9, 1e9 + 1, 1e9 + skew])]
    monkeypatch.setattr(job, "all_gather", lambda text="": answers)
    if refused:
        with pytest.raises(FirthError, match=r"process 2 \(h2\) is [+-]901 s off"):
            agreement.check_equal({})
    else:
        agreement.check_equal({})
    assert ("process 2 (h2)" in capsys.readouterr().err) == bool(noted)
