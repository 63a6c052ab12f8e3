"""Ctrl-C and SIGTERM as a run hears them: when it may save, and when it must not wait."""

import contextlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from firth.run.stopping import INTERRUPTED, TERMINATED, catch_interrupts, catch_sigterm


def test_the_first_ctrl_c_sets_and_the_second_raises(capfd):
    before = signal.getsignal(signal.SIGINT)
    with catch_interrupts() as stop:
        stop.savable = True
        assert not stop.is_set()
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set() and stop.status == INTERRUPTED == 130 and str(stop) == "Ctrl-C"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr().err.count("once more ends at once") == 1


def test_with_nothing_to_save_the_first_one_raises():
    with catch_interrupts() as stop:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert not stop.is_set()


def test_sigterm_sets_until_the_stack_unwinds():
    before = signal.getsignal(signal.SIGTERM)
    with catch_interrupts() as stop:
        with contextlib.ExitStack() as stack:
            catch_sigterm(stop, stack)
            signal.raise_signal(signal.SIGTERM)
        assert stop.is_set() and stop.status == TERMINATED == 143 and str(stop) == "SIGTERM"
        assert signal.getsignal(signal.SIGTERM) is before
        stop.savable = True  # a Ctrl-C after that one does not wait
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_another_thread_catches_nothing():
    found = []

    def run():
        with catch_interrupts() as stop, contextlib.ExitStack() as stack:
            catch_sigterm(stop, stack)
            found.append((stop.is_set(), stop.status))

    handlers = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(False, TERMINATED)]
    assert handlers == [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]


# A process whose main thread is in C code for minutes, as in XLA's compiler, and handles no signal.
BUSY = """
import hashlib
from firth.run import stopping
stopping.GRACE = 0.2
with stopping.catch_interrupts() as stop:
    stop.savable = {savable}
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 10**9)
"""


@pytest.mark.parametrize("savable", [False, True])
def test_a_process_that_hears_nothing_is_ended(savable):
    """By the first Ctrl-C before there is anything to save, else by the second."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY.format(savable=savable)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    if savable:
        process.send_signal(signal.SIGINT)
        assert "once more" in process.stderr.readline() + process.stderr.readline()
        time.sleep(0.4)
        assert process.poll() is None, "the first one only asks"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130 and "firth train: interrupted" in errors
