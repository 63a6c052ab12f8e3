"""Progress of a long job: a bar with rates on a terminal, an occasional line elsewhere."""

import sys
import time

_SECONDS_BETWEEN_LINES = 30


class Progress:
    """Shows bytes done of `total` and tokens a second; a context manager.

    On a terminal a rich bar; otherwise a line to stderr every half minute.
    """

    def __init__(self, title: str, total: int):
        self._title = title
        self._total = total
        self._begin = self._printed = time.monotonic()
        self._bar = None

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%  {task.fields[rate]}"),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(self._title, total=self._total or None, rate="")
            self._bar.start()
        return self

    def __exit__(self, *error) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, tokens: int) -> None:
        """Report `done` bytes of input and the number of tokens that this run has made."""
        now = time.monotonic()
        rate = (
            f"{tokens / 1e6:,.1f} M tokens, {tokens / max(now - self._begin, 1e-9):,.0f} tokens/s"
        )
        if self._bar:
            self._bar.update(self._task, completed=done, rate=rate)
        elif now - self._printed >= _SECONDS_BETWEEN_LINES:
            self._printed = now
            share = f"{done / self._total:.0%}, " if self._total else ""
            print(f"{self._title}: {share}{rate}", file=sys.stderr, flush=True)
