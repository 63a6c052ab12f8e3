"""What a run takes on this machine: memory before it compiles, and time after ten steps."""

import itertools
import math
import statistics

import jax

from firth.data.views import view_config
from firth.display.table import duration
from firth.planning import here, memory
from firth.planning.hardware import GIB
from firth.planning.report import words
from firth.run.outline import Outline
from firth.training.partition import own_slice

STEPS = 10  # how many steps are timed
LONG = 0.25  # seconds of a step beside which starting the next one is nothing
DAY = 24 * 3600.0
SEVERAL = ("multilabel", "multitask")  # tasks whose labels have an axis that is none of tokens


def announce(config, run, program, mesh, bar) -> None:
    """Say how many steps and tokens a run has, and about how much memory it needs.

    A warning follows if that is more than there is. A quiet `bar` spares the work.
    """
    if bar.quiet or bar.step == bar.total:
        return
    batch = shapes(config, run, bar.step, own_slice(mesh)[1])
    rows, *choices, length = batch["tokens"].shape
    texts = math.prod(choices) * rows
    outlined = Outline(config, run.spec, run.model, run.objective, batch, fresh=run.fresh)
    devices = mesh.local_mesh.size
    if cpu := jax.default_backend() == "cpu":
        room, where, share = here.available(), "free here", devices
    else:
        stats = mesh.local_devices[0].memory_stats() or {}
        room, where, share = stats.get("bytes_limit", 0), "a device", 1
    state = share * sum(memory.device_bytes(outlined, program).values())
    per_device = rows // (mesh.shape["data"] * mesh.shape["fsdp"] * config.accumulate)
    kept = share * memory.activation_bytes(outlined, program.state.params, max(per_device, 1))
    steps = bar.total - bar.step
    of = f" of {size(room)} {where}" if room else ""
    shared = " of all devices" if cpu and devices > 1 else ""
    bar.say(
        f"{steps:,} steps of {texts:,} x {length:,} tokens, {words(steps * texts * length)} in "
        f"all; memory{shared}: {size(state)} for parameters, "
        f"gradients and optimiser, about {size(kept)} for activations{of}"
    )
    parts = memory.parameters(outlined, program.state.params).values()
    total, trained = (sum(part[kind] for part in parts) for kind in ("total", "trained"))
    if trained < total:
        bar.say(f"{trained:,} of {total:,} parameters are trained")
    if room and state + kept > room:
        bar.say(
            "warning: that is more memory than there is. Set a smaller --config.batch_size, "
            f"--config.accumulate above {config.accumulate}, or --config.model.remat=full"
        )


def shapes(config, run, step: int, count: int = 1) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a global batch; of a labelled task, the batch of `step` with longest rows.

    `count` is that of the slices which processes read. Packed rows are of one shape, and fewer than
    `batch_size` texts.
    """
    if not run.task:
        fields, rows = view_config(config.data).fields, config.batch_size
    else:
        batch = run.batch(step)
        fields = {name: (array.shape[1:], array.dtype) for name, array in batch.items()}
        rows = len(batch["tokens"]) * count
        if "text" not in batch:
            before = batch["tokens"].ndim - 2  # axes between those of rows and of tokens
            for name, (shape, dtype) in fields.items():
                if len(shape) > before and not (name == "labels" and run.task.kind in SEVERAL):
                    longest = (*shape[:before], config.data.length, *shape[before + 1 :])
                    fields[name] = (longest, dtype)
    return {
        name: jax.ShapeDtypeStruct((rows, *shape), dtype) for name, (shape, dtype) in fields.items()
    }


class Forecast:
    """Says once how long the rest of a run takes: after ten steps, the compiling one left out.

    It takes the median, since rows of another length compile a step of their own. `clock` is the
    run's Goodput. A warning follows if it is more than a day.

    Attributes:
      alone: whether the next step is to end before another starts. On a CPU, each of two steps
        under way holds activations in the memory of the host. Long steps gain nothing by that.
    """

    def __init__(self, bar, clock, last: int):
        self.bar, self.clock, self.last = bar, clock, last
        self.worked = []  # seconds, at the end of each step since the one that compiles
        self.alone = self.on_cpu = jax.default_backend() == "cpu"
        self.before = None

    def after(self, step: int):
        """Step number `step` is done."""
        left, before, self.before = self.last - step, self.before, self._worked()
        self.alone = self.on_cpu and (before is None or self.before - before > LONG)
        if len(self.worked) > STEPS:
            return
        self.worked.append(self.before)
        if len(self.worked) <= STEPS or not left:
            return
        each = statistics.median(b - a for a, b in itertools.pairwise(self.worked))
        self.bar.say(
            f"about {duration(left * each)} for the other {left:,} steps at {each:.3g} s a step, "
            "evaluation not counted"
        )
        if left * each > DAY:
            self.bar.say(
                "warning: that is more than a day. In an hour this machine takes "
                f"{3600 / each:,.0f} steps (--config.steps); a smaller recipe or batch takes more"
            )

    def _worked(self) -> float:
        self.clock.total()
        return sum(self.clock.seconds[kind] for kind in ("step", "input", "logging"))


def size(count: float) -> str:
    """ "3.2 GiB", "312 MiB"."""
    return f"{count / GIB:.2g} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"
