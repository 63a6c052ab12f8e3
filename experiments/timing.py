"""Seconds of calls in one process, as several experiments take them."""

import time


def in_turn(ours, other, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of both in each round, after one of each that is not counted."""
    found = [], []
    for number in range(rounds + 1):
        for run, seconds in zip((ours, other), found, strict=True):
            began = time.perf_counter()
            run()
            if number:
                seconds.append(time.perf_counter() - began)
    return found


def least_seconds(run, rounds: int) -> float:
    """The least seconds of a call, after two that are not counted."""
    times = []
    for _ in range(rounds + 2):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times[2:])
