"""Batches that are computed while the host prepares the next ones and reads those before."""

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax

AHEAD = 2  # batches that are begun while the host waits for the one before them
THREADS = 2  # of a CPU, with a batch each


def computed(program: Callable, params, prepared: Iterable[tuple]) -> Iterator[tuple]:
    """(what, value) of each (what, arrays) in turn; the value is that of the program, in numpy.

    A few batches are begun ahead of the one that is read. A CPU computes two of them at a time: its
    cores do more with a batch each than together on one. GPUs and TPUs take one after another.
    """
    if jax.default_backend() != "cpu":
        started = ((what, program(params, *arrays)) for what, arrays in prepared)
        yield from _behind(started, jax.device_get)
        return

    def compute(arrays):
        return jax.device_get(program(params, *arrays))

    with ThreadPoolExecutor(THREADS) as pool:
        started = ((what, pool.submit(compute, arrays)) for what, arrays in prepared)
        yield from _behind(started, Future.result)


def of_view(view, names: Sequence[str], batch_size: int) -> Iterator[tuple]:
    """(batch, its arrays of these names) of each batch of one pass over a view, for `computed`."""
    return ((batch, [batch[name] for name in names]) for batch in view.sequential(batch_size))


def _behind(started: Iterable[tuple], finish: Callable) -> Iterator[tuple]:
    """(what, finish(value)) of each pair in turn, AHEAD pairs behind the source."""
    waiting = collections.deque()
    for pair in started:
        waiting.append(pair)
        if len(waiting) > AHEAD:
            what, value = waiting.popleft()
            yield what, finish(value)
    for what, value in waiting:
        yield what, finish(value)
