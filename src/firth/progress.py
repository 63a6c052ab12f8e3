"""Progress of a long job: a bar on a terminal, an occasional plain line elsewhere."""

import sys
import time

_SECONDS_BETWEEN_LINES = 30


class Progress:
    """A progress bar on a terminal; elsewhere, a plain line at most every `every` seconds."""

    def __init__(self, total: int, start: int, label: str, quiet: bool = False, every: float = 30):
        import jax  # late: `firth prepare` shows progress without it

        self.total, self.step, self.label, self.every = total, start, label, every
        self.quiet = quiet or jax.process_index() != 0
        self.start, self.began = start, time.monotonic()
        self.last_line = self.began
        self.bar = None
        if not self.quiet and sys.stderr.isatty():
            from rich import progress

            self.bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[text]}"),
                console=_console(),
            )
            self.task = self.bar.add_task(label, total=total, completed=start, text="")
            self.bar.start()

    def update(self, step: int, text: str = ""):
        """Show that `step` is done, with a short text such as the newest loss."""
        self.step = step
        if self.bar:
            self.bar.update(self.task, completed=step, **({"text": text} if text else {}))
        elif not self.quiet and text and time.monotonic() - self.last_line > self.every:
            self.last_line = time.monotonic()
            self.say(f"{self.label} {step}/{self.total} {text}")

    def done(self, step: int, unit: str):
        """Show that `step` is done, and how many of the unit there were in a second."""
        rate = (step - self.start) / (time.monotonic() - self.began)
        self.update(step, f"{rate:,.0f} {unit}/s")

    def say(self, message: str):
        """Print a line above the bar."""
        if self.quiet:
            return
        if self.bar:
            self.bar.console.print(message, highlight=False, markup=False)
        else:
            print(message, file=sys.stderr, flush=True)

    def close(self):
        """Stop the bar and leave it on the screen."""
        if self.bar:
            self.bar.stop()


class BytesProgress:
    """Context manager that shows the bytes done of `total` and the tokens per second.

    On a terminal it is a rich bar; elsewhere, a line to stderr every half minute.
    """

    def __init__(self, title: str, total: int):
        self._title = title
        self._total = total
        self._begin = self._printed = time.monotonic()
        self._bar = None

    def __enter__(self) -> "BytesProgress":
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
        """Show `done` bytes of input, and the rate for this run's tokens so far."""
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


def _console():
    from rich.console import Console

    return Console(stderr=True)
