"""Training metrics and speed of a run between two log lines."""

import contextlib
import math
import time

from firth.training import metrics as pairs


class Meter:
    """Sums metrics over steps; writes their means and the speed every `every` steps.

    `window` ({name: (sum, weight)}) holds the sums since the last line. Checkpoints store it, so
    that a resumed run logs the same lines as an uninterrupted one. `clock` is the run's Goodput;
    each line reports it.
    """

    def __init__(self, journal, bar, clock, window: dict, *, every: int, last: int):
        self.journal, self.bar, self.clock, self.every, self.last = journal, bar, clock, every, last
        self.window = window
        self.restart()

    def restart(self, waited: float = 0.0):
        """Restart the measurement of speed, as after the step that compiles."""
        self.steps, self.tokens, self.waited = 0, 0, waited
        self.since = time.perf_counter()

    def add(self, step: int, measured: dict, tokens: int, waited: float):
        """Add a finished step.

        Args:
          step: its number, from 1.
          measured: {metric: (sum, weight)}, on the host.
          tokens: positions of its batch, padding included, over all hosts.
          waited: seconds that the run has waited for input so far.
        """
        self.window = pairs.add(self.window, measured)
        self.steps += 1
        self.tokens += tokens
        if step % self.every and step != self.last:
            self.bar.update(step)
            return
        means = pairs.means(self.window)
        seconds = time.perf_counter() - self.since
        speed = {
            "perf/step_ms": 1e3 * seconds / self.steps,
            "perf/tokens_per_sec": self.tokens / seconds,
            "perf/input_wait_fraction": (waited - self.waited) / seconds,
        }
        with self.clock.spent("logging"):
            trained = {f"train/{name}": mean for name, mean in means.items()}
            self.journal.write(step, trained | speed | self.clock.tags())
        self.bar.update(
            step,
            f"loss {means.get('loss', math.nan):.3f}  {self.steps / seconds:.2f} steps/s  "
            f"{speed['perf/tokens_per_sec']:,.0f} tokens/s",
        )
        self.window = {}
        self.restart(waited)

    @contextlib.contextmanager
    def paused(self):
        """Leave a block, such as evaluation or saving, out of the training time."""
        began = time.perf_counter()
        yield
        self.since += time.perf_counter() - began
