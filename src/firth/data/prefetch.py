"""Load batches ahead of time: `prefetch` keeps the next few ready while a training step runs.

It calls any pure `batch(step)`. So both loaders yield the same bytes at any depth, and one may
replace the other at any step.
"""

import itertools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np

from firth.data.tensorflow import has_tensorflow, import_tensorflow
from firth.errors import FirthError

log = logging.getLogger("firth")
Batch = dict[str, np.ndarray]
LOADERS = ("auto", "thread", "tf.data")
_TRACED = "/jax/core/compile/jaxpr_to_mlir_module_duration"  # JAX's event before it compiles
_GRACE = 4.0  # seconds to load a compiled program from the cache and run it


def prefetch(
    batch_fn: Callable[[int], Batch],
    start: int,
    stop: int | None = None,
    depth: int = 2,
    loader: str = "auto",
) -> "Prefetch":
    """An iterator over batch_fn(start), batch_fn(start + 1), ..., up to `stop` if it is not None.

    It keeps `depth` batches ready in the order of the steps. `loader="thread"` uses one thread.
    `loader="tf.data"` uses a `tf.data.Dataset` that computes `depth` batches at once, so `batch_fn`
    must be safe to call from several threads, as views are. TensorFlow's import runs beside the
    consumer, and the thread loads until it is done. "auto" means tf.data if TensorFlow is
    installed, else the thread. The consumer gets an exception of `batch_fn` in place of its batch.

    Raises FirthError for a depth below 1, an unknown loader or a missing TensorFlow.
    """
    if depth < 1:
        raise FirthError(f"depth={depth} batches ahead: expected at least 1")
    if loader not in LOADERS:
        raise FirthError(f"unknown loader {loader!r}: expected one of {', '.join(LOADERS)}")
    if loader == "tf.data" and not has_tensorflow():
        raise _cannot_import("it is not installed")
    if resolve(loader) == "thread":
        return Prefetch(_Thread(batch_fn, start, stop, depth))
    return Prefetch(_Handover(batch_fn, start, stop, depth, required=loader == "tf.data"))


def resolve(loader: str) -> str:
    """The loader that "auto" means on this machine; other names stay as they are."""
    return ("tf.data" if has_tensorflow() else "thread") if loader == "auto" else loader


def _cannot_import(reason: object) -> FirthError:
    return FirthError(
        f'loader="tf.data" needs TensorFlow, which cannot be imported ({reason}); '
        'pip install "firth[tf]", or use loader="thread"'
    )


class Prefetch(Iterator[Batch]):
    """The iterator of `prefetch`, and a context manager that stops loading at its end.

    `wait_seconds` is the time that the consumer has waited for batches. Input bounds that share of
    the run.
    """

    def __init__(self, source: "_Thread | _Handover"):
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
        """Stop loading. This waits for the thread to leave `batch_fn`; tf.data may finish later."""
        self._finalizer()
        self._source.join()

    def __enter__(self) -> "Prefetch":
        return self

    def __exit__(self, *_) -> None:
        self.close()


class _Thread:
    """One thread that fills a bounded buffer; it refers to this object, never to the Prefetch."""

    def __init__(self, batch_fn, start: int, stop: int | None, depth: int):
        self._steps = itertools.count(start) if stop is None else iter(range(start, stop))
        self._batch_fn = batch_fn
        self._depth = depth
        self._ready: deque[Batch] = deque()
        self._error: BaseException | None = None
        self._done = False
        # Re-entrant, because the garbage collector may call stop() anywhere, even in this lock.
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


class _Handover:
    """The thread until TensorFlow is imported, then tf.data.

    The import holds Python's lock for most of several seconds, which would slow down tracing. So it
    begins while JAX compiles the first step, which needs no lock. It waits a little first, because
    a cached program runs at once, but no longer than until the second batch is requested. Breaking
    the import off would crash, so a process that ends meanwhile waits for it, as Python does for
    any thread pool.
    """

    def __init__(self, batch_fn, start: int, stop: int | None, depth: int, required: bool):
        self._batch_fn, self._step, self._stop, self._depth = batch_fn, start, stop, depth
        self._required = required
        self._dtypes: dict[str, np.dtype] = {}  # of the first batch
        self._import: Future | None = None
        self._wanted, self._closed = threading.Event(), False
        self._decided = False  # whether the final source is in place
        self._source: _Thread | _TfData = _Thread(batch_fn, start, stop, depth)
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, seconds: float, **_) -> None:
        if event == _TRACED and self._dtypes:
            self._begin_import()

    def _begin_import(self) -> None:
        if not self._import:
            pool = ThreadPoolExecutor(1, "firth tensorflow")
            self._import = pool.submit(self._import_when_wanted)
            pool.shutdown(wait=False)

    def _import_when_wanted(self):
        self._wanted.wait(_GRACE)
        return None if self._closed else import_tensorflow()

    def take(self) -> Batch:
        if self._dtypes and not self._decided:
            self._begin_import()
            self._wanted.set()
            if self._import.done():
                self._decide(self._import)
        batch = self._source.take()
        self._dtypes = self._dtypes or {name: array.dtype for name, array in batch.items()}
        self._step += 1
        return batch

    def _decide(self, imported: Future) -> None:
        self._decided = True
        if error := imported.exception():
            if self._required:
                raise _cannot_import(error)
            log.warning("TensorFlow cannot be imported (%s), so a thread loads batches", error)
            return
        self._source.stop()  # tf.data computes its ready batches again
        self._source = _TfData(
            imported.result(), self._batch_fn, self._dtypes, self._step, self._stop, self._depth
        )

    def stop(self) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_event)
        self._closed = True
        self._wanted.set()
        self._source.stop()

    def join(self) -> None:
        self._source.join()


class _TfData:
    """`Dataset.range -> parallel map, in order -> prefetch`; TensorFlow only moves the arrays."""

    def __init__(self, tf, batch_fn, dtypes: dict[str, np.dtype], start: int, stop, depth: int):
        self._error: BaseException | None = None

        def load(step) -> list[np.ndarray]:
            try:
                batch = batch_fn(int(step))
            except BaseException as caught:
                self._error = self._error or caught
                raise
            return [batch[name] for name in dtypes]

        def loaded(step):
            arrays = tf.numpy_function(load, [step], list(dtypes.values()), stateful=False)
            return dict(zip(dtypes, arrays, strict=True))

        last = np.iinfo(np.int64).max if stop is None else stop
        dataset = tf.data.Dataset.range(start, last)
        dataset = dataset.map(loaded, num_parallel_calls=depth, deterministic=True)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.threading.private_threadpool_size = depth
        options.threading.max_intra_op_parallelism = 1
        self._batches = dataset.prefetch(depth).with_options(options).as_numpy_iterator()

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
