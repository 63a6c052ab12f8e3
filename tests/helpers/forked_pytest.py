"""pytest run again and again, each time in a fork of a process that has imported the libraries.

    python tests/helpers/forked_pytest.py jax torch ...

imports these modules. It reads lines of JSON, {"argv": [...], "output": FILE}, runs pytest with
these arguments in a fork, and prints two lines for each: the process group, then the exit status.
The code under test is not imported before the fork, so every run sees its files as they are.
"""

import contextlib
import importlib
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

MEMORY = 24 << 30  # bytes of addresses, of which JAX and TensorFlow take many and use few
TIMEOUT = 1000


class ForkedPytest:
    """The other end: starts such a process and runs pytest in its forks, one at a time."""

    def __init__(self, folder: Path, environment: dict[str, str], modules: tuple[str, ...] = ()):
        self.process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            **dict(cwd=folder, env=environment, text=True, bufsize=1),
            **dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL),
        )

    def run(self, argv: list[str], output: Path, timeout: float) -> int:
        """The exit status of pytest; -signal where one ended it, TIMEOUT where it took longer.

        What it printed is in the file `output`. Processes that it left behind are killed.
        """
        print(json.dumps({"argv": argv, "output": str(output)}), file=self.process.stdin)
        group, late = int(self.process.stdout.readline()), threading.Event()

        def end():
            late.set()
            _kill(group)

        timer = threading.Timer(timeout, end)
        timer.start()
        status = int(self.process.stdout.readline())
        timer.cancel()
        _kill(group)
        return TIMEOUT if late.is_set() else status

    def close(self):
        """End the process."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def _kill(group: int):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 9)


def _serve(modules: list[str]):
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        if not (child := os.fork()):
            _run(**request)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(argv: list[str], output: str):
    """Run pytest and end this process."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # for loops without an end
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    import pytest

    status = 1
    try:
        status = int(pytest.main(argv))
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1:])
