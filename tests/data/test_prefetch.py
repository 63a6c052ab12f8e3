import gc
import subprocess
import sys
import threading
import time
import traceback
import weakref

import jax
import numpy as np
import pytest
from helpers.stores import IDS, random_documents, store_of
from helpers.views import pairs

import firth.data.prefetch as module
from firth.data.prefetch import prefetch
from firth.data.tensorflow import import_tensorflow
from firth.errors import FirthError

loaders = pytest.mark.parametrize("loader", ["thread", "tf.data"])


def numbered(step):
    return {"step": np.array([step])}


def threads_called(name):
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def loading_threads():
    return threads_called("firth prefetch")


def eventually(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


class Handover:
    """Lets TensorFlow be imported when `allow()` is called, and not before."""

    def __init__(self, monkeypatch):
        self.began, self._allowed = threading.Event(), threading.Event()
        monkeypatch.setattr(module, "import_tensorflow", self._import)

    def _import(self):
        self.began.set()
        assert self._allowed.wait(60)
        return import_tensorflow()

    def allow(self):
        self._allowed.set()
        assert eventually(lambda: not threads_called("firth tensorflow"), 60), "it goes on"


@pytest.fixture
def handover(monkeypatch):
    return Handover(monkeypatch)


def take(batches, handover, after):
    """All batches; tf.data takes over `after` so many of them, or the thread stays with None."""
    taken = []
    for batch in batches:
        taken.append(batch)
        if len(taken) == 2:
            assert after is None or handover.began.wait(10)
        if len(taken) == after:
            handover.allow()
    handover.allow()
    return taken


@pytest.mark.parametrize(
    ("loader", "start", "after"), [("thread", 5, None), ("tf.data", 0, 2), ("tf.data", 5, 9)]
)
def test_batches_come_in_order_with_the_same_bytes(loader, start, after, handover):
    """From views of a store, which several threads of tf.data read at once."""
    view = pairs(store_of(random_documents(0, 40)), 64, **IDS)
    by = {}

    def batch(step):
        by[step] = threading.current_thread().name
        return view.batch(step, 8)

    with prefetch(batch, start, 25, loader=loader) as batches:
        loaded = take(batches, handover, after)
    others = [step for step, name in by.items() if name != "firth prefetch"]
    assert sorted(others) == ([] if after is None else list(range(start + after, 25)))
    assert len(loaded) == 25 - start
    for step, got in enumerate(loaded, start):
        expected = batch(step)
        assert got.keys() == expected.keys()
        assert all(got[n].dtype == expected[n].dtype for n in got)
        assert all(got[n].tobytes() == expected[n].tobytes() for n in got)
        assert all(got[n].shape == expected[n].shape for n in got)


def test_types_and_shapes_come_as_they_are(handover):
    """Shapes may change from batch to batch, also between what the two loaders load."""

    def batch(step):
        kinds = (np.bool_, np.int32, np.uint32, np.float32, np.int64)
        return {kind.__name__: np.ones((2, step + 1), kind) for kind in kinds}

    with prefetch(batch, 0, 6, loader="tf.data") as batches:
        for step, got in enumerate(take(batches, handover, 3)):
            assert {name: array.dtype.name for name, array in got.items()} == {
                name.rstrip("_"): name.rstrip("_") for name in got
            }
            assert all(array.shape == (2, step + 1) for array in got.values())


@loaders
def test_endless_and_empty_ranges(loader):
    with prefetch(numbered, 7, loader=loader) as batches:
        assert [int(next(batches)["step"][0]) for _ in range(20)] == list(range(7, 27))
    with prefetch(numbered, 3, 3, loader=loader) as batches:
        assert list(batches) == []
        assert list(batches) == []


@pytest.mark.parametrize(("loader", "after"), [("thread", None), ("tf.data", 2)])
def test_an_exception_reaches_the_consumer_at_its_step(loader, after, handover):
    def batch(step):
        if step == 5:
            raise KeyError("shard 5")
        return numbered(step)

    batches, taken = prefetch(batch, 0, 10, loader=loader), []
    with pytest.raises(KeyError, match="shard 5") as caught:
        take(map(lambda batch: taken.append(batch) or batch, batches), handover, after)
    assert [int(batch["step"][0]) for batch in taken] == [0, 1, 2, 3, 4]
    assert "raise KeyError" in "".join(traceback.format_tb(caught.tb))
    with pytest.raises(StopIteration):
        next(batches)
    assert eventually(lambda: not loading_threads())
    handover.allow()


def test_the_import_waits_until_a_step_is_compiled(handover, monkeypatch):
    """Before, it would only take Python's lock from the tracing of that step."""
    monkeypatch.setattr(module, "_GRACE", 0.05)
    with prefetch(numbered, 0, loader="tf.data") as batches:
        jax.jit(lambda x: x + 1)(np.zeros(3))  # as the parameters are made
        next(batches)
        time.sleep(0.2)
        assert not handover.began.is_set()
        jax.jit(lambda x: x + 2)(np.zeros(3))
        assert handover.began.wait(10), "it should begin with the first step"
        handover.allow()
    assert eventually(lambda: not loading_threads())


@pytest.mark.parametrize("compiled", [True, False])
def test_the_import_begins_at_the_second_batch_at_the_latest(handover, monkeypatch, compiled):
    """As where the first step was found compiled, or is none of JAX's."""
    monkeypatch.setattr(module, "_GRACE", 60.0)
    with prefetch(numbered, 0, loader="tf.data") as batches:
        next(batches)
        if compiled:
            jax.jit(lambda x: x + 3)(np.zeros(3))
        time.sleep(0.1)
        assert not handover.began.is_set()
        next(batches)
        assert handover.began.wait(10)
        handover.allow()


def test_a_loader_that_is_closed_imports_nothing(handover, monkeypatch):
    monkeypatch.setattr(module, "_GRACE", 60.0)
    for compiled in (True, False):
        batches = prefetch(numbered, 0, loader="tf.data")
        next(batches)
        if compiled:
            jax.jit(lambda x: x + 4)(np.zeros(3))
        batches.close()
        jax.jit(lambda x: x + 5)(np.zeros((3, 1 + compiled)))
        assert eventually(lambda: not threads_called("firth"))
        assert not handover.began.is_set()
        source = weakref.ref(batches._source)
        del batches
        gc.collect()
        assert source() is None, "JAX still tells it of what is compiled"


BLOCKED = """
import logging, sys, threading, time
import numpy as np
from firth.data.prefetch import prefetch
from firth.errors import FirthError

how, folder = sys.argv[1:]
if how == "missing":
    sys.modules["tensorflow"] = None
else:
    sys.path.insert(0, folder)
by, heard = set(), []
logging.getLogger("firth").addFilter(lambda record: heard.append(record.getMessage()))

def batch(step):
    by.add(threading.current_thread().name)
    return {"step": np.array([step])}

def take(loader):
    end = time.monotonic() + 30
    with prefetch(batch, 0, loader=loader) as batches:
        for step in range(10**9):
            assert next(batches)["step"][0] == step
            if step > 20 and (how == "missing" or heard or time.monotonic() > end):
                break
            time.sleep(0.001)

take("auto")
assert by == {"firth prefetch"}, by
print("auto:", heard)
heard.clear()
try:
    take("tf.data")
except FirthError as error:
    print("tf.data:", error)
"""


@pytest.mark.parametrize(
    ("how", "warned", "said"),
    [
        ("missing", "[]", "it is not installed"),
        ("broken", "['TensorFlow cannot be imported (no CUDA), so a thread load", "no CUDA"),
    ],
)
def test_auto_without_tensorflow_is_the_thread(tmp_path, how, warned, said):
    """In a process that cannot import it: where it is missing, and where it is broken."""
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise OSError('no CUDA')")
    command = [sys.executable, "-c", BLOCKED, how, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0 and not run.stderr, run.stderr
    auto, explicit = run.stdout.splitlines()
    assert auto.startswith(f"auto: {warned}")
    assert explicit == (
        f'tf.data: loader="tf.data" needs TensorFlow, which cannot be imported ({said}); '
        'pip install "firth[tf]", or use loader="thread"'
    )


def test_tensorflow_leaves_the_accelerator_to_jax(monkeypatch):
    hidden = []
    tf = import_tensorflow()
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *a: hidden.append(a))
    import_tensorflow()
    assert sorted(hidden) == [([], "GPU"), ([], "TPU")]


def test_stop_iteration_inside_is_no_silent_end():
    batches = prefetch(lambda step: next(iter(())), 0, 10, loader="thread")
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(batches)


def test_no_more_than_depth_batches_wait():
    calls = []
    with prefetch(
        lambda step: calls.append(step) or numbered(step), 0, depth=3, loader="thread"
    ) as batches:
        assert eventually(lambda: len(calls) == 3)
        time.sleep(0.05)
        assert calls == [0, 1, 2]
        next(batches)
        assert eventually(lambda: len(calls) == 4)
        time.sleep(0.05)
        assert calls == [0, 1, 2, 3]


def test_close_ends_the_thread_at_once_and_the_iterator():
    batches = prefetch(numbered, 0, loader="thread")
    next(batches)
    began = time.monotonic()
    batches.close()
    assert not loading_threads() and time.monotonic() - began < 1
    assert list(batches) == []
    batches.close()


def test_leaving_the_context_ends_the_thread_after_an_error_too():
    with pytest.raises(ZeroDivisionError), prefetch(numbered, 0, loader="thread") as batches:
        next(batches)
        raise ZeroDivisionError
    assert not loading_threads()


def test_forgotten_iterators_end_their_thread():
    batches = prefetch(numbered, 0, loader="thread")
    next(batches)
    assert len(loading_threads()) == 1
    del batches
    gc.collect()
    assert eventually(lambda: not loading_threads())


def test_exhausted_iterators_end_their_thread():
    batches = prefetch(numbered, 0, 3, loader="thread")
    assert len(list(batches)) == 3
    assert not loading_threads()


def test_waiting_is_measured():
    def slow(step):
        time.sleep(0.03)
        return numbered(step)

    with prefetch(slow, 0, 5, loader="thread") as batches:
        list(batches)
        assert batches.wait_seconds > 0.1
    with prefetch(numbered, 0, 5, depth=5, loader="thread") as batches:
        time.sleep(0.1)
        list(batches)
        assert batches.wait_seconds < 0.05


def test_bad_arguments_are_refused():
    with pytest.raises(FirthError, match="depth=0"):
        prefetch(numbered, 0, depth=0)
    with pytest.raises(FirthError, match=r"unknown loader 'grain'.*auto, thread, tf.data"):
        prefetch(numbered, 0, loader="grain")
