"""What is written between two log lines: means of all that was measured, and the speed."""

import contextlib

import pytest

from firth.training import meter
from firth.training.meter import Meter


class Recorder:
    """In the place of the journal, the bar and the clock."""

    def __init__(self):
        self.lines, self.shown = [], []

    def write(self, step, values):
        self.lines.append((step, values))

    def update(self, step, text=""):
        self.shown.append((step, text))

    @contextlib.contextmanager
    def spent(self, kind):
        yield

    def tags(self):
        return {"perf/goodput": 1.0}


@pytest.fixture
def clock(monkeypatch):
    """`clock(seconds)` lets time pass."""
    now = [100.0]
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now[0])

    def pass_(seconds):
        now[0] += seconds

    return pass_


def metered(every, last, window=None):
    record = Recorder()
    return record, Meter(record, record, record, window or {}, every=every, last=last)


def test_a_line_every_so_many_steps_and_at_the_last(clock):
    record, meter = metered(every=3, last=8)
    for step in range(1, 9):
        clock(1)
        meter.add(step, {"loss": (2.0 * step, 2.0)}, tokens=10, waited=0.0)
    assert [step for step, _ in record.lines] == [3, 6, 8]
    assert [values["train/loss"] for _, values in record.lines] == [2.0, 5.0, 7.5]
    assert [values["perf/step_ms"] for _, values in record.lines] == [1000] * 3
    assert [step for step, _ in record.shown] == list(range(1, 9))
    assert [bool(text) for _, text in record.shown] == [s in (3, 6, 8) for s in range(1, 9)]


def test_means_are_weighted_and_go_on_from_what_a_checkpoint_kept(clock):
    record, meter = metered(every=2, last=9, window={"loss": (3.0, 1.0), "seen": (8.0, 2.0)})
    clock(1)
    meter.add(2, {"loss": (1.0, 3.0)}, tokens=1, waited=0.0)
    assert record.lines[0][1]["train/loss"] == 1.0 and record.lines[0][1]["train/seen"] == 4.0
    assert meter.window == {}


def test_speed_is_that_since_the_last_line(clock):
    record, meter = metered(every=2, last=9)
    clock(50)  # it compiles
    meter.restart(waited=7.0)
    for step, waited in ((1, 7.0), (2, 8.0), (3, 8.5), (4, 9.0)):
        clock(2)
        meter.add(step, {"loss": (1.0, 1.0)}, tokens=64, waited=waited)
    for (_, values), share in zip(record.lines, (0.25, 0.25), strict=True):
        assert values["perf/step_ms"] == 2000 and values["perf/tokens_per_sec"] == 32
        assert values["perf/input_wait_fraction"] == share
        assert values["perf/goodput"] == 1.0


def test_what_is_paused_is_not_the_trainings_time(clock):
    record, meter = metered(every=2, last=9)
    clock(2)
    meter.add(1, {}, tokens=1, waited=0.0)
    with meter.paused():
        clock(100)
    clock(2)
    meter.add(2, {}, tokens=1, waited=0.0)
    assert record.lines[0][1]["perf/step_ms"] == 2000
