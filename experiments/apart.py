"""Sides of a benchmark that take turns, each in a process of its own.

A side is the benchmark's own script with `--side NAME`, which calls `answer`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence


def answer(run: Callable[[str], object], first: str) -> None:
    """Be a side: say `first`, then for each line of stdin the seconds that run(line) takes."""
    print(first, flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        run(line.strip())
        print(time.perf_counter() - began, flush=True)


class Sides:
    """The processes of a benchmark; they start one after the other, with the allocator of users.

    `said` is {name: the first line that it says}. Ends the program if a side fails to start.
    """

    def __init__(self, script: str, names: Sequence[str], argv: Sequence[str], **variables: str):
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        free = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        self._processes, self.said = {}, {}
        for name in names:
            command = [sys.executable, script, *argv, "--side", name]
            process = subprocess.Popen(command, env=free | variables, **pipes)
            self._processes[name], self.said[name] = process, process.stdout.readline().strip()
            if not self.said[name]:
                raise SystemExit(f"{name} failed: {' '.join(command)}")

    def in_turn(self, rounds: int, line: str = "") -> dict[str, list[float]]:
        """{name: seconds of each round} of what a side does for this line."""
        times = {name: [] for name in self._processes}
        for _ in range(rounds):
            for name, process in self._processes.items():
                process.stdin.write(f"{line}\n")
                process.stdin.flush()
                times[name].append(float(process.stdout.readline()))
        return times

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.communicate()
