"""THE loop: pretraining and fine-tuning, every objective and every model.

    firth train --config bert.py:mini --workdir runs/mini --config.data.store=store/

Read it top to bottom: mesh, data, model, state, restore, steps, evaluation, checkpoints; the
jitted step is in program.py. Order of what a run starts from: its own workdir, another run
(`resume`), weights (`init_from`), random values.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import jax
import numpy as np

from firth import experiment, recipe
from firth.data.pipeline import prefetch
from firth.errors import FirthError
from firth.evaluate import Evaluator
from firth.files import write_text
from firth.models.model import HEADS, overlay, to_layout
from firth.program import check_rows, lay_out
from firth.repeat import train_seeds
from firth.training import optim, partition
from firth.training.checkpoint import Checkpoints
from firth.training.journal import Journal, Progress, describe_environment
from firth.training.meter import Meter

log = logging.getLogger("firth")
STOPPED = 128 + signal.SIGTERM  # exit status of a run that SIGTERM ended early, all saved


def train(config, workdir: Path) -> dict[str, float]:
    """Run a recipe in a workdir to its last step; returns the last evaluation's metrics.

    Raises FirthError for bad input, and SystemExit(143) after SIGTERM, when all is saved.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock_workdir(workdir))
        return _train(config, workdir, stack)


def _train(config, workdir: Path, stack: contextlib.ExitStack) -> dict[str, float]:
    # ------------------------------------------------------------------ mesh, data, model
    jax.config.update("jax_threefry_partitionable", True)  # one device draws what eight draw
    mesh = partition.create_mesh(config.mesh)
    check_rows(config, mesh)
    run = experiment.build(config, cache=workdir / "epochs.json")

    # --------------------------------------------------------------------- state, restore
    program = lay_out(run.model, run.objective, config, run.steps, mesh)
    recipe.record(config, workdir)  # what cannot be built has raised by now
    describe_run(run, workdir)
    saves = Checkpoints(workdir, **dict(config.checkpoint) | {"best": run.best})
    stack.callback(saves.close)
    restored = saves.restore(program.state.parts())
    if restored is None and config.resume:
        restored = Checkpoints(config.resume, read_only=True).restore(program.state.parts())
        if restored is None:
            raise FirthError(f"resume={config.resume}: no checkpoint there")
    if restored is not None:
        state, meta = program.state.replace(**restored[0]), restored[1]
    else:
        state, meta = program.init(), {"window": {}}
        if run.initial:
            loaded = to_layout(run.initial, run.spec["scan"])
            source = config.init_from or "the teacher"
            params, fresh = overlay(jax.device_get(state.params), loaded, source)
            state = state.replace(params=jax.device_put(params, program.shardings.params))
            if fresh:
                log.info("not in %s, so random: %s", source, ", ".join(fresh))
    start = done = int(jax.device_get(state.step))

    # ------------------------------------------------------------------------------- loop
    names = optim.named_leaves(program.state.params)
    evaluator = Evaluator(run, config, mesh)
    journal = Journal(workdir, start)
    stack.callback(journal.close)
    bar = Progress(run.steps, start, workdir.name, quiet=not config.progress)
    stack.callback(bar.close)
    meter = Meter(journal, bar, meta["window"], every=config.log_every, last=run.steps)
    terminated = catch_sigterm(stack)

    def absorb(number, measured, squares, tokens):
        """Take in the metrics of a step; the one after it is already under way."""
        measured, squares = jax.device_get((measured, squares))
        if not check_finite(number, measured, squares, names, config.nonfinite, journal, bar):
            measured = {"nonfinite": (1.0, 1.0)}  # skipped, so kept out of the means
        meter.add(number, measured, tokens, batches.wait_seconds)

    def evaluate(number):
        """Measure the parameters after this many steps."""
        results = evaluator.measurements(state.params)
        if run.best and run.best not in results:
            raise FirthError(
                f"checkpoint.best={run.best!r} is not measured; there are {', '.join(results)}"
            )
        journal.write(number, {f"eval/{name}": value for name, value in results.items()})
        bar.say(f"step {number}: " + "  ".join(f"{k} {v:.4f}" for k, v in results.items()))
        return results

    stack.enter_context(jax.set_mesh(mesh))
    stack.enter_context(jax.transfer_guard("disallow"))
    data = config.data
    batches = prefetch(run.batch, start, run.steps, depth=data.prefetch, loader=data.loader)
    stack.callback(batches.close)
    results, pending = {}, None
    for batch in batches:
        state, measured, squares = program.step(state, partition.put_batch(batch, mesh))
        done += 1
        if pending:
            absorb(*pending)
        pending = done, measured, squares, batch["mask"].size * jax.process_count()
        last = done == run.steps
        evaluates = last or (run.evaluate_every and done % run.evaluate_every == 0)
        saves_now = evaluates or saves.due(done, last) or terminated.is_set()
        if saves_now or done == start + 1:  # what is saved holds the metrics up to this step
            absorb(*pending)
            pending = None
        if done == start + 1:
            meter.restart(batches.wait_seconds)  # the step that compiled says nothing of speed
        with meter.paused():
            results = evaluate(done) if evaluates else {}
            if saves_now:
                saves.save(done, state.parts(), {"window": meter.window}, results or None)
        if terminated.is_set() and not last:
            saves.wait()
            bar.say(f"stopped by SIGTERM at step {done}, saved; the same command goes on from it")
            raise SystemExit(STOPPED)
    return results or evaluate(done)  # a run that was over already is measured again


def check_finite(step, measured, squares, names, policy, journal, bar) -> bool:
    """Whether loss and gradient are finite; if not, log it, and stop unless the policy is to skip.

    `squares` are the squared gradient norms of the parameters called `names`.
    """
    loss = float(measured["loss"][0])
    if np.isfinite(loss) and np.isfinite(squares.sum()):
        return True
    bad = [name for name, value in zip(names, squares, strict=True) if not np.isfinite(value)]
    where = f"the gradient of {bad[0]}" if bad else "the loss"
    journal.write(step, {"train/nonfinite": 1.0, "train/nonfinite_in": where})
    message = (
        f"step {step}: {where} is not finite (loss {loss}, {len(bad)} of {len(names)} tensors)"
    )
    if policy == "stop":
        raise FirthError(
            f"{message}; the parameters are those before the step. Lower the rate, clip, or set "
            "--config.nonfinite=skip to leave such steps out"
        )
    bar.say(f"{message}; skipped")
    return False


def describe_run(run, workdir: Path):
    """Write env.txt, and what reads the checkpoints later: model.json and the tokenizer."""
    write_text(workdir / "env.txt", describe_environment())
    described = {
        "firth": 1,
        "model": run.spec,
        "heads": [head for head in run.model.heads if head in HEADS],
        "num_labels": run.model.num_labels,
        "labels": list(run.task.labels) if run.task and run.task.labels else None,
        "regression": bool(run.task and run.task.kind == "regression"),
        "best": run.best,
        "generator": run.generator,
    }
    write_text(workdir / "model.json", json.dumps(described, indent=2) + "\n")
    if not (workdir / "tokenizer").exists():
        temporary = workdir / f".tokenizer.{os.getpid()}"
        run.tokenizer.save(temporary)
        shutil.move(temporary, workdir / "tokenizer")


def lock_workdir(workdir: Path):
    """Hold the workdir for this process; the kernel lets go of it however the process ends."""
    lock = (workdir / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FirthError(f"another run is using {workdir}; wait for it or choose another") from None
    return lock


def catch_sigterm(stack: contextlib.ExitStack) -> threading.Event:
    """An event that SIGTERM sets, until the stack unwinds; only the main thread may listen."""
    event = threading.Event()
    if threading.current_thread() is threading.main_thread():
        previous = signal.signal(signal.SIGTERM, lambda *_: event.set())
        stack.callback(signal.signal, signal.SIGTERM, previous)
    return event


def main(argv: list[str]) -> int:
    """`firth train`."""
    config, workdir = recipe.from_command_line(argv, prog="firth train")
    if config.get("seeds"):
        train_seeds(config, workdir, train)
    else:
        train(config, workdir)
    return 0


if __name__ == "__main__":
    from firth.cli import run

    sys.exit(run("train", sys.argv[1:]))
