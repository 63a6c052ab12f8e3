"""The end of a run: where it lies, what is measured and said there, and how a run goes on after it.

A run may become longer in its workdir: by `epochs`, `steps` or `until`. It goes on from its newest
checkpoint. Batches, masks and dropout are functions of the step, so they do not depend on the
length. The learning rate does: it follows the schedule of the whole new length from there on.
"""

import json
import logging
from pathlib import Path

import jax

from firth.data.multitask.tasks import KIND, table
from firth.data.submissions.predictions import save_predictions
from firth.data.tasks.overview import figures
from firth.distributed import job
from firth.errors import FirthError
from firth.storage.local import write_text
from firth.training.journal import measured_at
from firth.training.unfreezing.gradual import create_staged_schedule

log = logging.getLogger("firth")


def last_step(config, steps: int) -> int:
    """The step at which a run ends: `until` if it is set, else all `steps` of the schedule."""
    until = config.get("until", 0)
    if not 0 <= until <= steps:
        raise FirthError(f"until={until} is not within the {steps:,} steps; 0 stands for the last")
    return until or steps


def has_finished(clock, saves, start: int, end: int) -> bool:
    """Whether nothing is left to do in a workdir whose newest checkpoint is that of step `start`.

    A run that died between its last save and its end still has to measure. Process 0 decides, since
    it has the files of the workdir.
    """
    finished = start == end and clock.finished and start in saves.steps()
    return json.loads(job.all_gather(json.dumps(finished))[0])


def already_finished(config, workdir: Path, end: int, steps: int, stopped: str) -> dict[str, float]:
    """Say in one line that a run has finished; returns the last evaluation's metrics.

    `stopped` says why its policy has ended it, "" where none has.
    """
    field = "epochs" if config.get("epochs") and not config.steps else "steps"
    field = "until" if end < steps else field
    if not job.leads():
        return {}
    if stopped:
        log.info(
            "%s has stopped at step %s (%s): nothing is left to do",
            *(workdir, f"{end:,}", stopped),
        )
        return measured_at(workdir, end)
    log.info(
        "%s has finished (%s=%s, step %s), so nothing is left to do; a larger --config.%s goes on",
        *(workdir, field, config[field], f"{end:,}", field),
    )
    return measured_at(workdir, end)


def say_length(config, saves, start: int, run, before: int, bar) -> None:
    """Say what becomes of the learning rate in a run that was of `before` steps, and now has more.

    `start` is the step from which it goes on. A run that resumes from another one's checkpoint has
    settings of its own, so there is nothing to say.
    """
    steps = run.steps
    if before == steps or start not in saves.steps():
        return
    old, new = (
        float(create_staged_schedule(config.schedule, total, run.stages)(start))
        for total in (before, steps)
    )
    bar.say(
        f"goes on after step {start:,} to {steps:,} instead of {before:,}, under the schedule of "
        f"the whole new length: the learning rate here is {new:.3g} instead of {old:.3g}"
    )


def conclude(run, workdir: Path, evaluators, saves, state, shapes, journal, bar) -> dict:
    """Score a task's labelled test sets by its best checkpoint, and say how that one did.

    `state` is that of the last step; `shapes` is its tree of ShapeDtypeStruct. Logs the test
    metrics, writes `predictions/<split>.tsv` and `baselines.json`, {split: {metric: what a constant
    answer has}}, and returns {"<split>/<metric>": value}. All processes must call it; it does
    nothing in pretraining.
    """
    if not run.baselines:
        return {}
    last = int(jax.device_get(state.step))
    best = json.loads(job.all_gather(json.dumps(saves.best_step()))[0])
    tests = [name for name in run.baselines if not name.startswith("dev")]
    results = {}
    if tests:
        params = state.params
        if best != last:
            with jax.transfer_guard("allow"):
                params = saves.restore(shapes, best)[0]["params"]
        for name in tests:
            measured, predictions = evaluators.heldout.measure(params, name)
            results |= {f"{name}/{metric}": value for metric, value in measured.items()}
            if job.leads():
                save_predictions(workdir, name, run.task, predictions)
        journal.write(last, {f"eval/{name}": value for name, value in results.items()})
    if job.leads():
        constant = {name: dict(baseline.metrics) for name, baseline in run.baselines.items()}
        write_text(workdir / "baselines.json", json.dumps(constant, indent=2) + "\n")
        measured = measured_at(workdir, best) | results
        for name, baseline in run.baselines.items():
            names = dict.fromkeys([*run.task.metrics, *baseline.metrics])
            found = {n: measured.get(f"{name}/{n}") for n in names}
            shown = figures({n: value for n, value in found.items() if value is not None})
            bar.say(f"{name}, best checkpoint (step {best}): {shown}; {baseline}")
        if run.task.kind == KIND:
            for line in table(run.task, measured, constant):
                bar.say(line)
    return results
