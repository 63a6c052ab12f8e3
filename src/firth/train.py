"""The training loop: pretraining and fine-tuning, every objective and every model.

    firth train --config bert.py:mini --workdir runs/mini --config.data.store=store/

Read it top to bottom: mesh, data, model, state, restore, steps, evaluation, checkpoints. The jitted
step is in program.py. A run starts from the first of these that exists: its own workdir, another
run (`resume`), weights (`init_from`), random values.
"""

import contextlib
import logging
from pathlib import Path

import jax
import numpy as np

from firth import recipe
from firth.data.prefetch import prefetch
from firth.display.curves import draw_workdir
from firth.distributed import job, watch
from firth.errors import FirthError
from firth.layers import fused
from firth.layers.attention import check_fused
from firth.layers.kernels.check import check_relative
from firth.layers.transformer import choose_attention
from firth.models.model import merge_params, to_layout
from firth.planning.forecast import Forecast, announce
from firth.progress import Progress
from firth.run import bounds, counted, ending, experiment, recorded
from firth.run.agreement import check_equal, facts
from firth.run.evaluator import Evaluators
from firth.run.logistic import training as logistic
from firth.run.program import check_rows, lay_out
from firth.run.stopping import catch_interrupts, catch_sigterm
from firth.run.word_vectors import training as word_vectors
from firth.run.workdir import (
    check_folder,
    check_resume,
    describe_run,
    discard_unbegun,
    lock_workdir,
)
from firth.training import optim, partition, recovery
from firth.training.compile_cache import keep_compiled
from firth.training.goodput import Goodput
from firth.training.journal import Journal
from firth.training.leader_checkpoint import open_checkpoints
from firth.training.meter import Meter
from firth.training.plateau import has_stopped
from firth.training.remote_workdir import is_local_copy, upload_workdir

log = logging.getLogger("firth")


def train(config, workdir: Path, began: float | None = None) -> dict[str, float]:
    """Run a recipe in a workdir to its last step; returns the last evaluation's metrics.

    `began` (Unix seconds, default now) is when the account of time starts.
    Raises FirthError for bad input, SystemExit on SIGTERM (143) and Ctrl-C (130), after a save, and
    KeyboardInterrupt on a Ctrl-C that cannot wait (stopping.py).
    """
    if counted.is_counted(config):
        return counted.train(config, workdir)
    if logistic.is_logistic(config):
        return logistic.train(config, workdir)
    if word_vectors.trains_words(config):
        return word_vectors.train(config, workdir)
    config = recipe.located(recipe.completed(config))
    bounds.check(config)
    check_folder(workdir)
    check_resume(config.resume, workdir)
    with contextlib.ExitStack() as whole:
        stop = whole.enter_context(catch_interrupts())
        job.check_workdir(workdir, shared=not is_local_copy(workdir))
        if job.leads():
            whole.enter_context(lock_workdir(workdir))
            whole.callback(discard_unbegun, workdir)
        compiled = whole.enter_context(keep_compiled(workdir))
        clock, rollbacks = Goodput(workdir, began), None
        while True:  # a rollback is a restart that skips batches
            try:
                with contextlib.ExitStack() as stack, watch.together(recovery.Rollback):
                    stack.enter_context(clock.ending())
                    return _train(
                        config,
                        workdir,
                        stack=stack,
                        stop=stop,
                        clock=clock,
                        compiled=compiled,
                        rollbacks=rollbacks,
                    )
            except recovery.Rollback as rollback:
                log.warning("%s", rollback)
                rollbacks = rollback.rollbacks
                clock.turn_to("start")


def _train(config, workdir: Path, *, stack, stop, clock, compiled, rollbacks) -> dict[str, float]:
    """Train until the last step or a rollback.

    `stack` closes the resources that this function opens. `stop` is set when the run should end,
    `clock` accounts for the time, `compiled` keeps compiled programs; they outlive a rollback.
    `rollbacks` are those of this process so far, or None.
    """
    # ------------------------------------------------------------------ mesh, data, model
    jax.config.update("jax_threefry_partitionable", True)  # the same draws on any number of devices
    job.check_accelerator()
    mesh = partition.create_mesh(config.mesh)
    check_rows(config, mesh)
    policy = recovery.read_policy(config)
    masks = ("blocks",) if config.data.get("packed") else ()
    chosen = {"model.attention": choose_attention(config.model, *masks)}
    here = recipe.with_fields(config, chosen) if "attention" in config.model else config
    run = experiment.build(here, mesh, cache=workdir / "epochs.json")
    check_equal(facts(config, run))
    if run.spec.get("fused_attention") and fused.on_tpu():
        check = check_relative if "clamp_len" in run.spec else check_fused
        check()

    # --------------------------------------------------------------------- state, restore
    program = lay_out(run.model, run.objective, config, run.steps, mesh, run.fresh, run.stages)
    if job.leads():
        recorded.record(config, workdir)  # recorded only once all parts are built
    saves = open_checkpoints(
        workdir,
        **dict(config.checkpoint) | {"best": run.best, "rollback_steps": policy.rollback_steps},
        when_saved=lambda: upload_workdir(workdir),  # if the workdir is at a URL
    )
    stack.callback(saves.close)
    if job.leads() and not rollbacks:
        bounds.say_what_stays(config.checkpoint, run.steps)
    if rollbacks:
        saves.discard_after(rollbacks[-1]["step"])
    end = ending.last_step(config, run.steps)
    state, meta = first_state(config, run, program, saves, end)
    start = done = int(jax.device_get(state.step))
    stopped = has_stopped(state)
    end = start if stopped else end
    if ending.has_finished(clock, saves, start, end):
        why = program.policy.reason(run.best) if stopped else ""
        return ending.already_finished(config, workdir, end, run.steps, why)
    if job.leads():
        describe_run(run, workdir)
    rollbacks = rollbacks or meta.get("rollbacks", [])
    clock.restored(start)

    # --------------------------------------------------- evaluation, logs, metrics, signals
    bar = Progress(end, start, workdir.name, quiet=not config.progress)
    stack.callback(bar.close)
    evaluators = Evaluators(run, config, mesh, lambda text: bar.update(bar.step, text))
    journal = Journal(workdir, start)
    stack.callback(journal.close)
    main = [f"eval/{run.best}"] if run.best else []
    journal.describe(recipe.flatten(config), ["train/loss", *main])
    parameters = optim.named_leaves(program.state.params)
    guard = recovery.Guard(policy, parameters, rollbacks, journal, bar)
    meter = Meter(journal, bar, clock, meta["window"], every=config.log_every, last=end)
    catch_sigterm(stop, stack)
    for line in run.overview:
        bar.say(line)
    ending.say_length(config, saves, start, run, meta.get("steps", run.steps), bar)
    announce(config, run, program, mesh, bar)
    forecast = Forecast(bar, clock, end)

    # ------------------------------------------------------------------------------- loop
    stack.enter_context(jax.set_mesh(mesh))
    stack.enter_context(jax.transfer_guard("disallow"))
    batches = prefetch(
        recovery.skip_batches(run.batch, rollbacks),
        *(start, end),
        depth=config.data.prefetch,
        loader=config.data.loader,
    )
    stack.callback(batches.close)

    def finish(number, measured, squares):
        """Check and log the metrics of a step, while the next step runs."""
        measured, squares = jax.device_get((measured, squares))
        _, tokens = measured["pad_fraction"]
        measured = guard.check(number, measured, squares)
        meter.add(number, measured, int(tokens), batches.wait_seconds)
        forecast.after(number)
        clock.show_life()

    def evaluate(number, state, names):
        """Measure the state after step `number` with the evaluators of these names."""
        results = evaluators.run(state, names)
        if results:  # there are none without held-out text
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
            finish(*pending)
        pending = done, measured, squares
        last = done == end
        due = evaluators.due(done, last)
        agreed = watch.agreed(done, stop, saves.overdue())
        saves_now = "" in due or saves.due(done, last) or agreed
        now = due or saves_now or done == start + 1  # a save includes this step's metrics
        if now or forecast.alone:
            finish(*pending)
            pending = None
        if done == start + 1:
            meter.restart(batches.wait_seconds)  # leave the compiling step out of the speed
            clock.turn_to("step")
            compiled.write_checksums()
            stop.savable = True
        with meter.paused():
            with clock.spent("evaluation"):
                results = evaluate(done, state, due) if due else {}
            if run.evaluate_every and done % run.evaluate_every == 0:
                state = heed(program, state, results, run.best)
                stopped = has_stopped(state)
                if stopped:
                    journal.write(done, {"train/stopped": program.policy.reason(run.best)})
            if saves_now:
                for store in run.stores:
                    store.check_unchanged()
                with clock.spent("checkpoint"):
                    meta = {"window": meter.window, "rollbacks": rollbacks, "steps": run.steps}
                    saves.save(done, state.parts(), meta, results if "" in due else None)
                clock.save(done, saves.steps())
                compiled.write_checksums()  # the first evaluation has compiled too
        if agreed == "stop" and not last:
            with clock.spent("checkpoint"):
                saves.wait()
            bar.say(f"stopped by {stop} at step {done}, saved; the same command resumes from it")
            bar.say(clock.summary())
            clock.write()
            raise SystemExit(stop.status)
        if stopped:
            bar.say(f"stopped at step {done}: {program.policy.reason(run.best)}")
            results = {}  # the parameters may be earlier ones
            break
    with clock.spent("evaluation"):
        if not results:  # no step was left, but the run had not come to its end
            results = evaluate(done, state, evaluators.due(done, last=True))
    with clock.spent("checkpoint"):
        saves.wait()
    stop.savable, stop.saved = False, True
    with clock.spent("evaluation"):
        tested = ending.conclude(
            run, workdir, evaluators, saves, state, program.state.parts(), journal, bar
        )
    bar.say(clock.summary())
    clock.write(finished=True)
    if config.curves and job.leads():
        draw_workdir(workdir)
    return results | tested


def heed(program, state, results: dict[str, float], best: str):
    """The state after an evaluation, as the policy of the config has it, if there is one.

    `best` is the metric that chooses the best checkpoint.
    """
    metric = program.policy.heeded(best)
    if not metric:
        return state
    if metric not in results:
        raise FirthError(
            f"plateau.metric={metric!r} is not measured; there are {', '.join(results)}"
        )
    loss = jax.device_put(np.float32(results[metric]), program.shardings.step)  # on all devices
    return program.heed(state, loss)


def first_state(config, run, program, saves, end: int):
    """(state, meta) to start from: its own checkpoint, another run's, weights or random values."""
    restored = saves.restore(program.state.parts())
    if restored is None and config.resume:
        restored = resume_from(config, program, end)
    if restored is not None:
        parts, meta = restored
        return program.state.replace(**parts), meta
    state = program.init()
    if run.initial:
        loaded = to_layout(run.initial, run.spec["scan"])
        source = config.init_from or "the teacher"
        params, fresh = merge_params(job.to_host(state.params), loaded, source)
        params = jax.device_put(params, program.shardings.params)
        state = state.replace(params=params, plateau=program.begin(params))
        if fresh:
            log.info("not in %s, so random: %s", source, ", ".join(fresh))
    return state, {"window": {}}


def resume_from(config, program, end: int):
    """(parts of the state, meta) of the newest checkpoint of the run that `resume` names.

    The parts include the step, so the schedule continues from there. The model's memory is emptied,
    since this run may read other text. Raises FirthError if that run has no checkpoint, or if its
    step is beyond this run's end.
    """
    restored = open_checkpoints(config.resume, read_only=True).restore(program.state.parts())
    if restored is None:
        raise FirthError(f"resume={config.resume}: no checkpoint there")
    parts, meta = restored
    step = int(jax.device_get(parts["step"]))
    if step > end:
        raise FirthError(
            f"resume={config.resume} is at step {step:,}, but this run ends after {end:,}; "
            "steps and until include the steps of that run, so set more"
        )
    log.info("resuming from %s after step %s", config.resume, f"{step:,}")
    if "carry" in parts:
        empty = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), parts["carry"])
        parts["carry"] = jax.device_put(empty, program.shardings.carry)
    return parts, meta
