"""Goodput: every second belongs to one kind, over all the processes of a run."""

import json
import os
import subprocess
import sys
import time

import pytest

from firth.training import goodput
from firth.training.goodput import KINDS, Goodput, process_start


@pytest.fixture
def clock(monkeypatch):
    """`clock(seconds)` lets time pass."""
    now = [1_000_000.0]
    monkeypatch.setattr(goodput.time, "time", lambda: now[0])
    monkeypatch.setattr(goodput.time, "perf_counter", lambda: now[0] - 999_000.0)

    def pass_(seconds):
        now[0] += seconds
        return now[0]

    return pass_


def spent(account):
    return {kind: round(s, 6) for kind, s in account.seconds.items() if s}


def test_every_second_belongs_to_one_kind(tmp_path, clock):
    account = Goodput(tmp_path, began=clock(7) - 7)  # imports took seven seconds
    clock(3)
    account.restored(0)
    account.turn_to("compile")
    clock(10)
    account.turn_to("step")
    clock(50)
    with account.spent("evaluation"):
        clock(5)
        with account.spent("logging"):
            clock(1)
        clock(2)

    def slow():
        for batch in (1, 2):
            clock(4)
            yield batch

    for _ in account.waiting(slow()):
        clock(8)
    assert account.total() == 102 == sum(account.seconds.values())
    assert spent(account) == dict(start=10, compile=10, step=66, evaluation=7, logging=1, input=8)


def test_after_a_kill_lost_steps_and_the_time_of_death_are_known(tmp_path, clock):
    account = Goodput(tmp_path)
    account.restored(0)
    account.turn_to("step")
    clock(100)
    account.save(10, [5])
    clock(30)
    account.show_life()
    clock(2)  # nobody knows of these
    second = Goodput(tmp_path, began=clock(18))
    clock(6)
    second.restored(10)
    assert spent(second) == dict(step=100, lost=30, dead=20, start=6)
    assert second.restarts == 1
    second.turn_to("step")
    clock(4)
    second.save(20, [10])
    assert second.saved == {"10": 100, "20": 104}
    assert second.tags()["perf/goodput"] == pytest.approx(104 / 160)
    assert set(second.tags()) == {"perf/goodput"} | {f"perf/seconds/{kind}" for kind in KINDS}


def test_a_rollback_loses_the_steps_since_the_checkpoint(tmp_path, clock):
    account = Goodput(tmp_path)
    account.restored(0)
    account.turn_to("step")
    clock(10)
    account.save(7, [])
    clock(5)
    account.turn_to("start")
    account.restored(7)
    account.turn_to("step")
    clock(1)
    assert account.total() == 16 and spent(account) == dict(step=11, lost=5)
    account.restored(7)  # once more
    assert spent(account) == dict(step=10, lost=6)
    account.restored(0)
    assert spent(account) == dict(lost=16) and account.saved == {}


def test_nobody_waits_for_a_run_that_has_finished(tmp_path, clock):
    account = Goodput(tmp_path)
    account.turn_to("step")
    clock(10)
    account.write(finished=True)
    clock(1000)
    assert "dead" not in spent(Goodput(tmp_path))


def test_a_clock_set_back_counts_as_no_time(tmp_path, clock):
    account = Goodput(tmp_path)
    account.turn_to("step")
    clock(10)
    account.write()
    clock(-500)
    account = Goodput(tmp_path)
    assert spent(account) == dict(step=10) and account.total() == 10


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seconds": {}}', "\x00"])
def test_an_account_that_cannot_be_read_is_begun_anew(tmp_path, text):
    (tmp_path / "goodput.json").write_text(text)
    assert Goodput(tmp_path).restarts == 0


def test_the_account_is_written_now_and_then(tmp_path, clock):
    account = Goodput(tmp_path)
    account.write()
    clock(1)
    account.show_life()
    assert json.loads((tmp_path / "goodput.json").read_text())["seconds"]["start"] == 0
    clock(5)
    account.show_life()
    assert json.loads((tmp_path / "goodput.json").read_text())["seconds"]["start"] == 6


def test_the_summary_is_one_line_of_shares(tmp_path, clock):
    account = Goodput(tmp_path)
    account.turn_to("step")
    clock(90)
    with account.spent("checkpoint"):
        clock(10)
    assert account.summary() == "goodput 90.0% of 100.0 s, 0 restarts: checkpoint 10.0 s (10.0%)"


def test_the_start_of_this_process_is_known():
    code = (
        "import time; began = time.time(); time.sleep(0.3)\n"
        "from firth.training.goodput import process_start\n"
        "print(began - process_start())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert -0.05 < float(run.stdout) < 30
    assert time.time() - process_start() > 0.1 or not os.path.exists("/proc/self/stat")


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (SystemExit(143), "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (ValueError("a NaN\n at step 3"), "failed: a NaN at step 3"),
        (MemoryError(), "failed: MemoryError"),
    ],
)
def test_the_account_says_how_a_process_ended(tmp_path, error, ended):
    def account():
        return json.loads((tmp_path / "goodput.json").read_text())

    clock = Goodput(tmp_path)
    with pytest.raises(type(error)), clock.ending():
        raise error  # the command was wrong: nothing is known against the run
    assert not (tmp_path / "goodput.json").exists()
    clock.restored(0)
    assert account()["ended"] == ""
    with pytest.raises(type(error)), clock.ending():
        raise error
    assert account()["ended"] == ended and account()["alive"]
    clock.write(finished=True)
    assert account()["ended"] == "finished" and account()["alive"] is None
