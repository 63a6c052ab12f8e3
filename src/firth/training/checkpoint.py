"""Checkpoints: atomic, checked, asynchronous, and kept by two policies.

A save by time is temporary: it goes when `keep` newer ones exist. A save by step number, every
`every` steps, is permanent, and so is the best one by the config's metric. Each finished
checkpoint is sealed with the SHA-256 of its files; one that does not match its seal, or cannot be
read, is set aside and the one before it is used.
"""

import dataclasses
import errno
import json
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from firth.distributed import job
from firth.errors import FirthError
from firth.storage.local import digests, read_seal, seal_text, write_text
from firth.storage.remote import is_url
from firth.training.remote_workdir import fetch

log = logging.getLogger("firth")

# What Orbax would set by itself when reading, with a warning for each.
READ_ONLY = {"read_only": True, "save_interval_steps": 0}

# Process 0 waits for no other process in a save or a restore.
ALONE = ocp.options.MultiprocessingOptions(
    primary_host=0, active_processes={0}, barrier_sync_key_prefix="alone"
)


@dataclasses.dataclass
class Reaching(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps what was saved in the last `steps` steps, and the newest before that."""

    steps: int

    def should_preserve(self, checkpoints, *, context):
        """Whether to keep each; they come oldest first."""
        reached = [c.step for c in checkpoints if c.step <= checkpoints[-1].step - self.steps]
        return [c.step >= max(reached, default=0) for c in checkpoints]


class Checkpoints:
    """The checkpoints of one workdir, under `checkpoints/<step>/`, seals under `seals/`.

    `reach` is how many steps the run may have to go back: what that needs is kept too.
    `read_only` changes nothing there, so that a run may go on beside the reader; the workdir may
    then be at a URL. `alone` is for process 0 where the others have no part in this (gathered.py).
    `when_saved` is called when a save is complete, on process 0, in a thread of its own; an error
    of it is that of the save.
    """

    def __init__(
        self,
        workdir,
        *,
        minutes=10.0,
        every=0,
        keep=2,
        reach=0,
        best="",
        best_mode="max",
        read_only=False,
        alone=False,
        when_saved: Callable[[], None] | None = None,
    ):
        if read_only and is_url(workdir):
            workdir = fetch(workdir)
        self.directory = Path(workdir).absolute() / "checkpoints"
        self.seals = Path(workdir).absolute() / "seals"
        self.minutes, self.every, self.best = minutes, every, best
        self.read_only, self.alone, self.when_saved = read_only, alone, when_saved
        if best_mode not in ("max", "min"):
            raise FirthError(f"checkpoint.best_mode={best_mode!r} should be max or min")
        if keep < 1:
            raise FirthError(f"checkpoint.keep={keep} would delete what was just saved; at least 1")
        worst = -math.inf if best_mode == "max" else math.inf

        def measured(metrics):
            """The metric that chooses the best; a diverged evaluation is never it."""
            value = metrics.get(best, math.nan)
            return value if math.isfinite(value) else worst

        policies = [ocp.checkpoint_managers.LatestN(keep)]
        if every:
            policies.append(ocp.checkpoint_managers.EveryNSteps(every))
        if reach:
            policies.append(Reaching(reach))
        if best:
            policies.append(
                ocp.checkpoint_managers.BestN(
                    get_metric_fn=measured,
                    reverse=best_mode == "min",
                    n=1,
                    keep_checkpoints_without_metrics=False,
                )
            )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.AnyPreservationPolicy(policies),
            best_fn=measured if best else None,  # has metrics written
            best_mode=best_mode,
            step_format_fixed_length=None,
            create=False,
            multiprocessing_options=ALONE if alone else ocp.options.MultiprocessingOptions(),
            # A reader must not clean up: another process's unfinished save looks like a leftover.
            **(READ_ONLY if read_only else {"cleanup_tmp_directories": True}),
        )
        if not read_only:
            self.seals.mkdir(parents=True, exist_ok=True)
            self.directory.mkdir(exist_ok=True)
        self.manager = self._open(options)
        self.last_save = time.monotonic()
        self._sealing: threading.Thread | None = None
        self._failure: tuple[int, BaseException] | None = None
        self._broken = False  # a save failed; Orbax raises that again whatever it is asked

    def _open(self, options) -> ocp.CheckpointManager:
        """Orbax reads small files of every checkpoint on opening: damage there shows already."""
        try:
            return ocp.CheckpointManager(self.directory, options=options)
        except Exception as error:
            names = (folder.name for folder in self.directory.glob("[0-9]*"))
            steps = sorted(int(name) for name in names if name.isdecimal())
            found = {step: self._examine(step)[1] for step in self._of_first(steps)}
            damaged = {step: reason for step, reason in found.items() if reason}
            if self.read_only or not damaged:
                reason = next(iter(damaged.values()), _first_line(error))
                raise FirthError(f"{self.directory} cannot be opened: {reason}") from error
        for step, reason in damaged.items():
            log.warning("checkpoint %s is damaged (%s); falling back", step, reason)
            self._set_aside(step)
        return ocp.CheckpointManager(self.directory, options=options)

    def due(self, step: int, last: bool = False) -> bool:
        """Whether to save after this step whatever the time: a permanent step, or the last one."""
        return last or bool(self.every and step % self.every == 0)

    def overdue(self) -> bool:
        """Whether enough time has passed since the last save; every process's clock differs."""
        return time.monotonic() - self.last_save > 60 * self.minutes

    def save(self, step: int, state, meta: dict, metrics: dict | None = None):
        """Start saving; returns once the arrays are copied from the device.

        Raises FirthError if this save or the one before it failed, with the reason, or, once the
        step is saved, if `metrics` lacks the one that should choose the best.
        """
        self.wait()
        if step in self.manager.all_steps():
            return
        if job.leads():  # that of a run which was killed while it deleted this step
            (self.seals / f"{step}.json").unlink(missing_ok=True)
        unmeasured = bool(self.best) and metrics is not None and self.best not in metrics
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta))
        try:
            self.manager.save(step, args=items, metrics=None if unmeasured else metrics, force=True)
        except Exception as error:
            raise self._explain(step, error) from error
        self.last_save = time.monotonic()
        self._sealing = threading.Thread(target=self._seal, args=(step,), daemon=True)
        self._sealing.start()
        if unmeasured:
            self.wait()
            raise FirthError(
                f"checkpoint.best={self.best!r} is not measured; the evaluation gives "
                f"{', '.join(sorted(metrics))}. Step {step} is saved: set another and go on"
            )

    def _seal(self, step: int):
        """When the save has been committed, record the digest of every file it consists of."""
        try:
            self.manager.wait_until_finished()
            if job.leads():
                found = digests(self.directory / str(step))
                write_text(self.seals / f"{step}.json", seal_text(found))
                kept = {str(s) for s in self.manager.all_steps()}
                for seal in self.seals.glob("*.json"):
                    if seal.stem not in kept:
                        seal.unlink()
                if self.when_saved:
                    self.when_saved()
        except BaseException as error:  # handed to the loop's thread by wait()
            self._failure = (step, error)

    def wait(self):
        """Block until the save under way is complete; raise FirthError if it failed."""
        if self._sealing is not None:
            self._sealing.join()
            self._sealing = None
        if self._failure is not None:
            step, error = self._failure
            self._failure = None
            if isinstance(error, FirthError):
                raise error
            raise self._explain(step, error) from error

    def _explain(self, step: int, error: BaseException) -> FirthError:
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        reason = "the disk is full" if full else f"{type(error).__name__}: {_first_line(error)}"
        self._broken = True
        self.manager.reload()  # it counts the failed one already, and not those that it replaces
        kept = self.manager.latest_step()
        return FirthError(
            f"checkpoint {self.directory / str(step)} could not be written: {reason}; "
            f"the newest complete one is {'none' if kept is None else kept}; "
            "free some space and start the same command again to go on from there"
        )

    def steps(self) -> list[int]:
        """Complete checkpoints, oldest first."""
        return sorted(self.manager.all_steps())

    def best_step(self) -> int | None:
        """The kept checkpoint with the best metric, or the newest when none was measured."""
        best = self.manager.best_step()
        return self.manager.latest_step() if best is None else best

    def discard_after(self, step: int):
        """Delete the checkpoints after this step, newest first, for a run that goes another way."""
        for newer in reversed(self.steps()):
            if newer > step:
                self.manager.delete(newer)
                (self.seals / f"{newer}.json").unlink(missing_ok=True)

    def restore(self, shapes, step: int | None = None):
        """The newest sound checkpoint as (state, meta), or None if there is none.

        `shapes` is the state's tree of ShapeDtypeStruct with shardings. With `step`, that one or
        FirthError. A damaged checkpoint is named in the log and moved to `checkpoints-damaged/`,
        unless this is a reader. Raises FirthError for one that is sound but of another model.
        """
        candidates = [step] if step is not None else sorted(self.manager.all_steps(), reverse=True)
        for candidate in candidates:
            sealed, reason = self._examine(candidate)
            try:
                if reason:
                    raise FirthError(reason)
                items = self.manager.restore(
                    candidate,
                    args=ocp.args.Composite(
                        state=ocp.args.StandardRestore(shapes), meta=ocp.args.JsonRestore()
                    ),
                )
                _check_shapes(items["state"], shapes)
                return items["state"], items["meta"]
            except Exception as error:
                reason = _first_line(error)
                if sealed:
                    reason = f"is sound but does not fit this model: {reason}"
                found_alone = not sealed and not isinstance(error, FirthError)
                found_alone &= job.count() > 1 and not self.alone
                if sealed or step is not None or found_alone:  # the others may have read it
                    path = self.directory / str(candidate)
                    raise FirthError(f"checkpoint {path} {reason}") from error
                log.warning("checkpoint %s is damaged (%s); falling back", candidate, reason)
                if not self.read_only:
                    self._set_aside(candidate)
                    self.manager.reload()
        if candidates:
            raise FirthError(
                f"no checkpoint under {self.directory} can be read; damaged ones are moved to "
                f"{self.directory}-damaged. Start again to train from scratch, or restore a copy"
            )
        return None

    def restore_params(self, step: int | None = None) -> tuple[int, dict]:
        """(step, parameters as numpy arrays) of `step`, else the best, else the newest checkpoint.

        The optimiser's state is not read. Raises FirthError when there is none, or it is damaged.
        """
        chosen = step if step is not None else self.best_step()
        if chosen is None or chosen not in self.manager.all_steps():
            there = ", ".join(map(str, self.steps())) or "none"
            raise FirthError(f"no checkpoint {chosen or ''} under {self.directory}; there: {there}")
        try:
            self._check(chosen)
            path = self.directory / str(chosen) / "state"
            reader = ocp.PyTreeCheckpointer()
            tree = {"params": reader.metadata(path).item_metadata.tree["params"]}
            restored = reader.restore(
                path,
                args=ocp.args.PyTreeRestore(
                    item=jax.tree.map(lambda leaf: np.empty((), leaf.dtype), tree),
                    restore_args=jax.tree.map(
                        lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree
                    ),
                    partial_restore=True,
                ),
            )
        except FirthError:
            raise
        except Exception as error:
            path = self.directory / str(chosen)
            raise FirthError(f"checkpoint {path}: {_first_line(error)}") from error
        return chosen, restored["params"]

    def _check(self, step: int) -> bool:
        """Whether the checkpoint is sealed; raises FirthError where it does not match its seal."""
        seal = self.seals / f"{step}.json"
        if not seal.exists():  # killed between the commit and the seal: Orbax's commit stands
            log.warning(
                "checkpoint %s has no seal %s (killed just before it?): its files are not checked",
                *(step, seal),
            )
            return False
        try:
            expected = read_seal(seal.read_bytes())
        except ValueError:
            raise FirthError(f"{seal} is damaged, so the files cannot be checked") from None
        found = digests(self.directory / str(step))
        for name in sorted(expected.keys() | found):
            if found.get(name) != expected.get(name):
                state = "does not match its checksum" if name in expected else "is not sealed"
                state = state if name in found else "is missing"
                raise FirthError(f"{self.directory / str(step) / name} {state}")
        return True

    def _examine(self, step: int) -> tuple[bool, str]:
        """(whether it is sealed and sound, what is damaged or ""): process 0 looks for all."""
        sealed, reason = False, ""
        if job.leads():
            try:
                sealed = self._check(step)
            except FirthError as error:
                reason = str(error)
        sealed, reason = self._of_first([sealed, reason])
        return sealed, reason

    def _set_aside(self, step: int):
        if job.leads():
            target = self.directory.with_name("checkpoints-damaged") / f"{step}-{time.time_ns()}"
            target.parent.mkdir(exist_ok=True)
            shutil.move(self.directory / str(step), target)
            (self.seals / f"{step}.json").unlink(missing_ok=True)
        self._of_first(None)  # nobody looks for it meanwhile

    def _of_first(self, value):
        """What process 0 gives here, of what JSON knows; all that take part must call it."""
        return value if self.alone else json.loads(job.gather(json.dumps(value))[0])

    def close(self):
        """Finish the save under way and release the directory."""
        self.wait()
        if not self._broken:
            self.manager.close()


def _check_shapes(state, shapes):
    """Raise ValueError for a leaf of another shape; Orbax looks at those of jax.Array alone."""
    for (path, leaf), shape in zip(
        jax.tree.leaves_with_path(state), jax.tree.leaves(shapes), strict=True
    ):
        if leaf.shape != shape.shape:
            name = jax.tree_util.keystr(path)
            raise ValueError(f"{name} has shape {leaf.shape}, expected {shape.shape}")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
