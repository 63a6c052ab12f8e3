"""What a test session accounts for: why a test was skipped, and how much memory all of it took.

A skip whose reason is not in `ALLOWED` is a failure, so that nothing goes untested unseen. It holds
with pytest-xdist too: workers judge their own reports, and the process that reads them counts.
"""

import collections
import contextlib
import ctypes
import gc
import sys
import threading

import psutil
import pytest

ALLOWED = {  # what a machine may lack -> the words with which a skip says so
    "a GPU": "needs a GPU",
    "a TPU": "needs a TPU",
    "Linux": "needs Linux",
    "the shared data": "set FIRTH_DATA to the folder of shared data",
}
ROOM = 150e6  # bytes by which a process may grow before it gives back what it compiled
SECONDS = 2.0  # between two looks at the memory of all processes


def lacking(report) -> str | None:
    """What the machine lacks of `ALLOWED`, for the report of a skip; None for any other reason."""
    return next((name for name, words in ALLOWED.items() if words in reason(report)), None)


def reason(report) -> str:
    """The reason of a skipped test or file, or of a test that was expected to fail."""
    if hasattr(report, "wasxfail"):
        return f"xfail {report.wasxfail}"
    return report.longrepr[2].removeprefix("Skipped: ")


def judged(report):
    """The report, of a failure where it is a skip for a reason that is not in the list."""
    if report.skipped and lacking(report) is None:
        known = ", ".join(map(repr, ALLOWED.values()))
        report.longrepr = (
            f"{report.nodeid} is skipped: {reason(report)!r}; tests/account.py allows a skip that "
            f"says one of {known}"
        )
        report.outcome = "failed"
        vars(report).pop("wasxfail", None)  # else pytest would not count it
    return report


def held() -> tuple[int, int]:
    """Bytes of memory of all processes of this session, and of those that tests started alone.

    What several share, such as the code of libraries, counts once where the system tells (Linux).
    """
    tests, commands, this = 0, 0, psutil.Process()
    workers = this.children() if sys.modules.get("xdist.dsession") else []
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended
            found = process.memory_full_info()
            own = getattr(found, "pss", found.rss)
            if process in (this, *workers):
                tests += own
            else:
                commands += own
    return tests + commands, commands


def forget(module) -> None:
    """Empty the caches of a module's functions, which hold compiled programs too."""
    for value in vars(module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def free() -> None:
    """Give back what JAX compiled: it is compiled again where it is run again."""
    import jax

    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc keeps what is freed, unless told
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class Account:
    """A plugin of pytest."""

    def __init__(self):
        self.peak, self.over = (0, 0), threading.Event()
        self.thread = threading.Thread(target=self.watch, name="memory", daemon=True)
        self.process, self.kept = psutil.Process(), 0

    def watch(self):
        while not self.over.wait(SECONDS):
            self.look()

    def look(self):
        self.peak = max(self.peak, held())

    def pytest_sessionstart(self, session):
        self.kept = self.process.memory_info().rss  # with what the conftest has imported
        if not hasattr(session.config, "workerinput"):  # one watch, over all workers
            self.thread.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        return judged((yield))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self):
        return judged((yield))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item, nextitem):
        yield
        if nextitem is None or nextitem.module is not item.module:
            forget(item.module)
        before = self.process.memory_info().rss
        if before > self.kept + ROOM:
            free()
            self.kept = self.process.memory_info().rss

    def pytest_terminal_summary(self, terminalreporter):
        self.over.set()
        self.look()
        skipped = terminalreporter.stats.get("skipped", [])
        terminalreporter.write_line(f"skipped: {len(skipped)}")
        for (name, why), times in collections.Counter(
            (lacking(report), reason(report)) for report in skipped
        ).most_common():
            terminalreporter.write_line(f"  {times:4d}  {name}: {why}")
        total, commands = (size / 1e9 for size in self.peak)
        terminalreporter.write_line(
            f"memory: {total:.2f} GB at once, {commands:.2f} of it of commands that tests started"
        )
