import gc
import sys
import threading
import time
import traceback

import numpy as np
import pytest
from made_stores import IDS, made_store, random_documents

from firth.data.pipeline import prefetch
from firth.data.views import pairs
from firth.errors import FirthError

loaders = pytest.mark.parametrize("loader", ["thread", "tf.data"])


def numbered(step):
    return {"step": np.array([step])}


def loading_threads():
    return [thread for thread in threading.enumerate() if thread.name == "firth prefetch"]


def eventually(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


@loaders
def test_batches_come_in_order_with_the_same_bytes(loader):
    view = pairs(made_store(random_documents(0, 40)), 64, **IDS)

    def batch(step):
        return view.batch(step, 8)

    for start in (0, 5):
        with prefetch(batch, start, 25, loader=loader) as batches:
            loaded = list(batches)
        assert len(loaded) == 25 - start
        for step, got in enumerate(loaded, start):
            expected = batch(step)
            assert got.keys() == expected.keys()
            assert all(got[n].dtype == expected[n].dtype for n in got)
            assert all(got[n].tobytes() == expected[n].tobytes() for n in got)
            assert all(got[n].shape == expected[n].shape for n in got)


@loaders
def test_shapes_may_change_from_batch_to_batch(loader):
    with prefetch(lambda step: {"x": np.zeros((2, step + 1))}, 0, 5, loader=loader) as batches:
        assert [batch["x"].shape for batch in batches] == [(2, n) for n in range(1, 6)]


@loaders
def test_endless_and_empty_ranges(loader):
    with prefetch(numbered, 7, loader=loader) as batches:
        assert [int(next(batches)["step"][0]) for _ in range(20)] == list(range(7, 27))
    with prefetch(numbered, 3, 3, loader=loader) as batches:
        assert list(batches) == []
        assert list(batches) == []


@loaders
def test_an_exception_reaches_the_consumer_at_its_step(loader):
    def batch(step):
        if step == 3:
            raise KeyError("shard 3")
        return numbered(step)

    batches = prefetch(batch, 0, 10, loader=loader)
    assert [int(next(batches)["step"][0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="shard 3") as caught:
        next(batches)
    assert "raise KeyError" in "".join(traceback.format_tb(caught.tb))
    with pytest.raises(StopIteration):
        next(batches)
    assert eventually(lambda: not loading_threads())


def test_stop_iteration_inside_is_no_silent_end():
    batches = prefetch(lambda step: next(iter(())), 0, 10)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(batches)


def test_no_more_than_depth_batches_wait():
    calls = []
    with prefetch(lambda step: calls.append(step) or numbered(step), 0, depth=3) as batches:
        assert eventually(lambda: len(calls) == 3)
        time.sleep(0.05)
        assert calls == [0, 1, 2]
        next(batches)
        assert eventually(lambda: len(calls) == 4)
        time.sleep(0.05)
        assert calls == [0, 1, 2, 3]


def test_close_ends_the_thread_at_once_and_the_iterator():
    batches = prefetch(numbered, 0)
    next(batches)
    began = time.monotonic()
    batches.close()
    assert not loading_threads() and time.monotonic() - began < 1
    assert list(batches) == []
    batches.close()


def test_leaving_the_context_ends_the_thread_after_an_error_too():
    with pytest.raises(ZeroDivisionError), prefetch(numbered, 0) as batches:
        next(batches)
        raise ZeroDivisionError
    assert not loading_threads()


def test_forgotten_iterators_end_their_thread():
    batches = prefetch(numbered, 0)
    next(batches)
    assert len(loading_threads()) == 1
    del batches
    gc.collect()
    assert eventually(lambda: not loading_threads())


def test_exhausted_iterators_end_their_thread():
    batches = prefetch(numbered, 0, 3)
    assert len(list(batches)) == 3
    assert not loading_threads()


def test_waiting_is_measured():
    def slow(step):
        time.sleep(0.03)
        return numbered(step)

    with prefetch(slow, 0, 5) as batches:
        list(batches)
        assert batches.wait_seconds > 0.1
    with prefetch(numbered, 0, 5, depth=5) as batches:
        time.sleep(0.1)
        list(batches)
        assert batches.wait_seconds < 0.05


def test_bad_arguments_are_refused():
    with pytest.raises(FirthError, match="depth=0"):
        prefetch(numbered, 0, depth=0)
    with pytest.raises(FirthError, match=r"unknown loader 'grain'.*thread, tf.data"):
        prefetch(numbered, 0, loader="grain")


def test_missing_tensorflow_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(FirthError, match=r'needs TensorFlow.*pip install "firth\[tf\]"'):
        prefetch(numbered, 0, loader="tf.data")
