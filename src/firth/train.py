"""THE loop: pretraining and fine-tuning, every objective and every model.

    firth train --config bert.py:mini --workdir runs/mini --config.data.store=store/

Read it top to bottom: mesh, data, model, state, restore, steps, evaluation, checkpoints; the
jitted step is in program.py. Order of what a run starts from: its own workdir, another run
(`resume`), weights (`init_from`), random values.
"""

import contextlib
import logging
import signal
import threading
from pathlib import Path

import jax
import numpy as np

from firth import recipe
from firth.data.prefetch import prefetch
from firth.distributed import job, watch
from firth.errors import FirthError
from firth.layers import fused
from firth.layers.attention import check_fused
from firth.models.model import merge_params, to_layout
from firth.progress import Progress
from firth.run import experiment
from firth.run.agreement import check_equal, facts
from firth.run.evaluator import Evaluators
from firth.run.program import check_rows, lay_out
from firth.run.workdir import describe_run, lock_workdir
from firth.training import optim, partition, recovery
from firth.training.compile_cache import keep_compiled
from firth.training.gathered_checkpoint import open_checkpoints
from firth.training.goodput import Goodput
from firth.training.journal import Journal
from firth.training.meter import Meter
from firth.training.remote_workdir import is_mirror, upload_workdir

log = logging.getLogger("firth")
STOPPED = 128 + signal.SIGTERM  # exit status of a run that SIGTERM ended early, all saved


def train(config, workdir: Path, began: float | None = None) -> dict[str, float]:
    """Run a recipe in a workdir to its last step; returns the last evaluation's metrics.

    `began` (Unix seconds; now, if not given) is from when on time is accounted for.
    Raises FirthError for bad input, and SystemExit(143) after SIGTERM, when all is saved.
    """
    config = recipe.completed(config)
    with contextlib.ExitStack() as whole:
        job.check_workdir(workdir, shared=not is_mirror(workdir))
        if job.leads():
            whole.enter_context(lock_workdir(workdir))
        compiled = whole.enter_context(keep_compiled(workdir))
        clock, rollbacks = Goodput(workdir, began), None
        while True:  # a rollback is a restart that leaves batches out
            try:
                with contextlib.ExitStack() as stack, watch.together(recovery.Rollback):
                    return _train(
                        config,
                        workdir,
                        stack=stack,
                        clock=clock,
                        compiled=compiled,
                        rollbacks=rollbacks,
                    )
            except recovery.Rollback as found:
                log.warning("%s", found)
                rollbacks = found.rollbacks
                clock.turn_to("start")


def _train(config, workdir: Path, *, stack, clock, compiled, rollbacks) -> dict[str, float]:
    """Train until the last step or a rollback.

    `stack` closes what is opened here. `clock` accounts for the time, `compiled` keeps compiled
    programs; both outlive a rollback. `rollbacks` are those of this process so far, or None.
    """
    # ------------------------------------------------------------------ mesh, data, model
    jax.config.update("jax_threefry_partitionable", True)  # one device draws what eight draw
    job.check_accelerator()
    mesh = partition.create_mesh(config.mesh)
    check_rows(config, mesh)
    policy = recovery.read_policy(config)
    run = experiment.build(config, mesh, cache=workdir / "epochs.json")
    check_equal(facts(config, run))
    if run.spec.get("fused_attention") and fused.on_tpu():
        check_fused()

    # --------------------------------------------------------------------- state, restore
    program = lay_out(run.model, run.objective, config, run.steps, mesh, run.fresh)
    if job.leads():
        recipe.record(config, workdir)  # what cannot be built has raised by now
        describe_run(run, workdir)
    saves = open_checkpoints(
        workdir,
        **dict(config.checkpoint) | {"best": run.best, "reach": policy.reach},
        when_saved=lambda: upload_workdir(workdir),  # where the workdir is at a URL
    )
    stack.callback(saves.close)
    if rollbacks:
        saves.discard_after(rollbacks[-1]["step"])
    end = last_step(config, run.steps)
    state, meta = first_state(config, run, program, saves, end)
    start = done = int(jax.device_get(state.step))
    rollbacks = rollbacks or meta.get("rollbacks", [])
    clock.restored(start)

    # --------------------------------------------------- evaluation, logs, what is watched
    evaluators = Evaluators(run, config, mesh)
    journal = Journal(workdir, start)
    stack.callback(journal.close)
    bar = Progress(end, start, workdir.name, quiet=not config.progress)
    stack.callback(bar.close)
    parameters = optim.named_leaves(program.state.params)
    guard = recovery.Guard(policy, parameters, rollbacks, journal, bar)
    meter = Meter(journal, bar, clock, meta["window"], every=config.log_every, last=end)
    terminated = catch_sigterm(stack)

    # ------------------------------------------------------------------------------- loop
    stack.enter_context(jax.set_mesh(mesh))
    stack.enter_context(jax.transfer_guard("disallow"))
    batches = prefetch(
        recovery.following(run.batch, rollbacks),
        *(start, end),
        depth=config.data.prefetch,
        loader=config.data.loader,
    )
    stack.callback(batches.close)

    def absorb(number, measured, squares, tokens):
        """Take in the metrics of a step; the one after it is already under way."""
        measured = guard.check(number, *jax.device_get((measured, squares)))
        meter.add(number, measured, tokens, batches.wait_seconds)
        clock.show_life()

    def evaluate(number, state, names):
        """Measure the state after this many steps with the evaluators of these names."""
        results = evaluators.run(state, names)
        journal.write(number, {f"eval/{name}": value for name, value in results.items()})
        bar.say(f"step {number}: " + "  ".join(f"{k} {v:.4f}" for k, v in results.items()))
        return results

    results, pending = {}, None
    for batch in clock.waiting(batches):
        if done == start:
            clock.turn_to("compile")
        state, measured, squares = program.step(state, partition.put_batch(batch, mesh))
        done += 1
        if pending:
            absorb(*pending)
        pending = done, measured, squares, batch["mask"].shape[-1] * config.batch_size
        last = done == end
        due = evaluators.due(done, last)
        agreed = watch.agreed(done, terminated, saves.overdue())
        saves_now = "" in due or saves.due(done, last) or agreed
        if due or saves_now or done == start + 1:  # what is saved holds the metrics up to this step
            absorb(*pending)
            pending = None
        if done == start + 1:
            meter.restart(batches.wait_seconds)  # the step that compiled says nothing of speed
            clock.turn_to("step")
            compiled.seal()
        with meter.paused():
            with clock.spent("evaluation"):
                results = evaluate(done, state, due) if due else {}
            if saves_now:
                for store in run.stores:
                    store.check_unchanged()
                with clock.spent("checkpoint"):
                    meta = {"window": meter.window, "rollbacks": rollbacks}
                    saves.save(done, state.parts(), meta, results if "" in due else None)
                clock.save(done, saves.steps())
                compiled.seal()  # the first evaluation, and what it compiled, lie behind
        if agreed == "stop" and not last:
            with clock.spent("checkpoint"):
                saves.wait()
            bar.say(f"stopped by SIGTERM at step {done}, saved; the same command goes on from it")
            bar.say(clock.summary())
            clock.write()
            raise SystemExit(STOPPED)
    with clock.spent("evaluation"):
        if not results:  # a run that was over already is measured again
            results = evaluate(done, state, evaluators.due(done, last=True))
    with clock.spent("checkpoint"):
        saves.wait()
    bar.say(clock.summary())
    clock.write(finished=True)
    return results


def last_step(config, steps: int) -> int:
    """After how many of its schedule's `steps` a run ends: all, or as `until` says."""
    until = config.get("until", 0)
    if not 0 <= until <= steps:
        raise FirthError(f"until={until} is not within the {steps:,} steps; 0 stands for the last")
    return until or steps


def first_state(config, run, program, saves, end: int):
    """(state, meta) that a run begins with: its own checkpoint, another run's, weights, or none."""
    restored = saves.restore(program.state.parts())
    if restored is None and config.resume:
        restored = take_over(config, program, end)
    if restored is not None:
        parts, meta = restored
        return program.state.replace(**parts), meta
    state = program.init()
    if run.initial:
        loaded = to_layout(run.initial, run.spec["scan"])
        source = config.init_from or "the teacher"
        params, fresh = merge_params(job.fetch(state.params), loaded, source)
        state = state.replace(params=jax.device_put(params, program.shardings.params))
        if fresh:
            log.info("not in %s, so random: %s", source, ", ".join(fresh))
    return state, {"window": {}}


def take_over(config, program, end: int):
    """(parts of the state, meta) of the newest checkpoint of the run that `resume` names.

    The step is among them, so the schedule goes on where that run left it. The memory is emptied:
    this run may read other text. Raises FirthError for a run that is beyond this one's end.
    """
    restored = open_checkpoints(config.resume, read_only=True).restore(program.state.parts())
    if restored is None:
        raise FirthError(f"resume={config.resume}: no checkpoint there")
    parts, meta = restored
    step = int(jax.device_get(parts["step"]))
    if step > end:
        raise FirthError(
            f"resume={config.resume} is at step {step:,}, but this run ends after {end:,}; "
            "steps and until count those of the run before, so give more"
        )
    log.info("going on from %s after step %s", config.resume, f"{step:,}")
    if "carry" in parts:
        empty = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), parts["carry"])
        parts["carry"] = jax.device_put(empty, program.shardings.carry)
    return parts, meta


def catch_sigterm(stack: contextlib.ExitStack) -> threading.Event:
    """An event that SIGTERM sets, until the stack unwinds; only the main thread may listen."""
    event = threading.Event()
    if threading.current_thread() is threading.main_thread():
        previous = signal.signal(signal.SIGTERM, lambda *_: event.set())
        stack.callback(signal.signal, signal.SIGTERM, previous)
    return event
