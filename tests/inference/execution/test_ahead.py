"""Batches ahead of their reader: in order, a few at a time, on a CPU in threads."""

import threading
import time

import jax
import numpy as np
import pytest

from firth.errors import FirthError
from firth.inference.execution.ahead import computed

BACKENDS = pytest.mark.parametrize("backend", ["cpu", "gpu"])


@BACKENDS
def test_a_few_are_begun_ahead_and_all_come_in_order(monkeypatch, backend):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    begun = []

    def source():
        for i in range(6):
            begun.append(i)
            yield i, (np.array(i),)

    def program(params, i):
        time.sleep(0.02 * (i % 2 == 0))  # the second would be there before the first
        return params + i

    found = [(what, value, len(begun) - 1 - what) for what, value in computed(program, 5, source())]
    assert found == [(i, 5 + i, behind) for i, behind in enumerate([2, 2, 2, 2, 1, 0])]


def test_a_cpu_computes_two_at_a_time():
    both, threads = threading.Barrier(2, timeout=30), set()

    def program(_, i):
        threads.add(threading.current_thread())
        both.wait()  # for the other one
        return i

    found = [value for _, value in computed(program, None, ((i, (i,)) for i in range(6)))]
    assert found == [*range(6)]
    assert len(threads) == 2 and not any(thread.is_alive() for thread in threads)


def test_others_are_started_where_they_are_read(monkeypatch):
    """An accelerator computes while its caller goes on; a thread would bring nothing."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    threads = set()

    def program(_, i):
        threads.add(threading.current_thread())
        return i

    list(computed(program, None, ((i, (i,)) for i in range(3))))
    assert threads == {threading.current_thread()}


@BACKENDS
def test_an_error_reaches_the_reader(monkeypatch, backend):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)

    def program(_, i):
        if i == 2:
            raise FirthError("text 2 is wrong")
        return i

    read = []
    with pytest.raises(FirthError, match="text 2 is wrong"):
        for what, _ in computed(program, None, ((i, (i,)) for i in range(6))):
            read.append(what)
    assert read == ([0, 1] if backend == "cpu" else [])


def test_values_are_numpy_arrays():
    ((_, found),) = computed(lambda x, y: {"sum": x + y}, jax.numpy.ones(2), [(0, (np.ones(2),))])
    assert type(found["sum"]) is np.ndarray and found["sum"].tolist() == [2, 2]
