"""Batches ahead of time: `prefetch` keeps the next few ready while a training step runs.

It drives any pure `batch(step)`, so the two loaders and any depth yield the same bytes.
"""

import contextlib
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from firth.errors import FirthError

Batch = dict[str, np.ndarray]
LOADERS = ("thread", "tf.data")


def prefetch(
    batch_fn: Callable[[int], Batch],
    start: int,
    stop: int | None = None,
    depth: int = 2,
    loader: str = "thread",
) -> "Prefetch":
    """An iterator over batch_fn(start), batch_fn(start + 1), ..., before `stop` if that is given.

    `depth` batches are kept ready, by one thread, or with `loader="tf.data"` by a
    `tf.data.Dataset` that computes several at once (so `batch_fn` must be safe to call from
    several threads, as views are); the order is that of the steps either way. What `batch_fn`
    raises, the consumer gets in its place.

    Raises FirthError for a depth below 1, an unknown loader or where TensorFlow is missing.
    """
    if depth < 1:
        raise FirthError(f"depth={depth} batches ahead: expected at least 1")
    if loader not in LOADERS:
        raise FirthError(f"unknown loader {loader!r}: expected one of {', '.join(LOADERS)}")
    make = _Thread if loader == "thread" else _TfData
    return Prefetch(make(batch_fn, start, stop, depth))


class Prefetch(Iterator[Batch]):
    """What `prefetch` returns: an iterator, and a context manager that stops loading at its end.

    `wait_seconds` is the time that the consumer has spent waiting for batches: that share of the
    run was bound by its input.
    """

    def __init__(self, source: "_Thread | _TfData"):
        self.wait_seconds = 0.0
        self._source = source
        self._finalizer = weakref.finalize(self, source.stop)

    def __next__(self) -> Batch:
        if not self._finalizer.alive:
            raise StopIteration
        began = time.perf_counter()
        try:
            return self._source.take()
        except BaseException:
            self.close()
            raise
        finally:
            self.wait_seconds += time.perf_counter() - began

    def close(self) -> None:
        """Stop loading. The thread has then left `batch_fn`; tf.data may still end a call."""
        self._finalizer()
        self._source.join()

    def __enter__(self) -> "Prefetch":
        return self

    def __exit__(self, *_) -> None:
        self.close()


class _Thread:
    """One thread that fills a bounded buffer; it knows this object, never the Prefetch."""

    def __init__(self, batch_fn, start: int, stop: int | None, depth: int):
        self._steps = itertools.count(start) if stop is None else iter(range(start, stop))
        self._batch_fn = batch_fn
        self._depth = depth
        self._ready: deque[Batch] = deque()
        self._error: BaseException | None = None
        self._done = False
        # Re-entrant, as the garbage collector may call stop() anywhere, even in this lock.
        self._changed = threading.Condition(threading.RLock())
        self._thread = threading.Thread(target=self._load, name="firth prefetch", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        error = None
        try:
            for step in self._steps:
                with self._changed:
                    self._changed.wait_for(lambda: self._done or len(self._ready) < self._depth)
                    if self._done:
                        return
                batch = self._batch_fn(step)
                with self._changed:
                    self._ready.append(batch)
                    self._changed.notify_all()
        except StopIteration as caught:  # must not look like the end of the steps (PEP 479)
            error = RuntimeError("batch_fn raised StopIteration")
            error.__cause__ = caught
        except BaseException as caught:  # whatever it is, the consumer raises it
            error = caught
        with self._changed:
            self._error, self._done = error, True
            self._changed.notify_all()

    def take(self) -> Batch:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._done)
            if self._ready:
                batch = self._ready.popleft()
                self._changed.notify_all()
                return batch
            raise self._error or StopIteration

    def stop(self) -> None:
        with self._changed:
            self._done = True
            self._ready.clear()
            self._changed.notify_all()

    def join(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join()


class _TfData:
    """`Dataset.range -> parallel map, in order -> prefetch`; TensorFlow only moves the arrays."""

    def __init__(self, batch_fn, start: int, stop: int | None, depth: int):
        tf = _tensorflow()
        self._error: BaseException | None = None
        self._batches = iter(())
        if stop is not None and stop <= start:
            return
        first = batch_fn(start)  # tells the names and types
        names, dtypes = list(first), [first[name].dtype for name in first]

        def load(step) -> list[np.ndarray]:
            try:
                batch = batch_fn(int(step))
            except BaseException as caught:
                self._error = self._error or caught
                raise
            return [batch[name] for name in names]

        def loaded(step):
            arrays = tf.numpy_function(load, [step], dtypes, stateful=False)
            return dict(zip(names, arrays, strict=True))

        last = np.iinfo(np.int64).max if stop is None else stop
        dataset = tf.data.Dataset.range(start, last)
        dataset = dataset.map(loaded, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        self._batches = dataset.prefetch(depth).as_numpy_iterator()

    def take(self) -> Batch:
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            raise (self._error or error) from None

    def stop(self) -> None:
        self._batches = iter(())  # TensorFlow cancels a dataset whose iterator is gone

    def join(self) -> None:
        pass


def _tensorflow():
    try:
        import tensorflow as tf
    except ImportError as error:
        raise FirthError(
            f'loader="tf.data" needs TensorFlow, which cannot be imported ({error}); '
            'pip install "firth[tf]", or use loader="thread"'
        ) from None
    # The accelerator belongs to JAX: without this TensorFlow would take all of its memory.
    with contextlib.suppress(RuntimeError):  # the caller's TensorFlow runs already, as it was set
        tf.config.set_visible_devices([], "GPU")
    return tf
