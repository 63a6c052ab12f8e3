"""Checkpoints: atomic, checksummed, asynchronous, and kept by two policies.

A save by time is temporary: it is deleted when `keep` newer ones exist. A save by step number,
every `every` steps, is permanent, and so is the best one by the config's metric. The SHA-256 of
each file of a complete checkpoint is recorded. A checkpoint that does not match its checksums, or
cannot be read, is set aside, and the run falls back to the one before it.
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
from firth.storage.local import checksums_text, digests, read_checksums, write_text
from firth.storage.remote import is_url
from firth.training.remote_workdir import download_workdir

log = logging.getLogger("firth")

# Orbax sets these itself for reading, but warns of each.
READ_ONLY = {"read_only": True, "save_interval_steps": 0}

# What tensorstore says of a full disk, a quota and a limit on the size of files.
FULL = ("No space left", "quota exceeded", "File too large")

# Process 0 saves and restores without waiting for other processes.
ALONE = ocp.options.MultiprocessingOptions(
    primary_host=0, active_processes={0}, barrier_sync_key_prefix="alone"
)


@dataclasses.dataclass
class KeepForRollback(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the checkpoints of the last `steps` steps, and the newest one before those."""

    steps: int

    def should_preserve(self, checkpoints, *, context):
        """Whether to keep each; they come oldest first."""
        older = [c.step for c in checkpoints if c.step <= checkpoints[-1].step - self.steps]
        return [c.step >= max(older, default=0) for c in checkpoints]


class Checkpoints:
    """The checkpoints of one workdir, under `checkpoints/<step>/`, with checksums under `seals/`.

    `rollback_steps` is how many steps a rollback may go back: checkpoints for it are kept too.
    `read_only` changes no file, so that a run may continue beside the reader; the workdir may then
    be at a URL. With `alone`, process 0 works without the others (leader_checkpoint.py).
    `when_saved` is called after each complete save, on process 0, in a separate thread; its error
    counts as an error of the save.
    """

    def __init__(
        self,
        workdir,
        *,
        minutes=10.0,
        every=0,
        keep=2,
        rollback_steps=0,
        best="",
        best_mode="max",
        read_only=False,
        alone=False,
        when_saved: Callable[[], None] | None = None,
    ):
        if read_only and is_url(workdir):
            workdir = download_workdir(workdir)
        self.directory = Path(workdir).absolute() / "checkpoints"
        self.checksums = Path(workdir).absolute() / "seals"
        self.minutes, self.every, self.best = minutes, every, best
        self.read_only, self.alone, self.when_saved = read_only, alone, when_saved
        if best_mode not in ("max", "min"):
            raise FirthError(f"checkpoint.best_mode={best_mode!r} should be max or min")
        if keep < 1:
            raise FirthError(f"checkpoint.keep={keep} would delete what was just saved; at least 1")
        worst = -math.inf if best_mode == "max" else math.inf

        def measured(metrics):
            """The metric that chooses the best; a diverged evaluation counts as the worst."""
            value = metrics.get(best, math.nan)
            return value if math.isfinite(value) else worst

        policies = [ocp.checkpoint_managers.LatestN(keep)]
        if every:
            policies.append(ocp.checkpoint_managers.EveryNSteps(every))
        if rollback_steps:
            policies.append(KeepForRollback(rollback_steps))
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
            best_fn=measured if best else None,  # makes Orbax write metrics
            best_mode=best_mode,
            step_format_fixed_length=None,
            create=False,
            multiprocessing_options=ALONE if alone else ocp.options.MultiprocessingOptions(),
            # A reader must not clean up: an unfinished save of another process looks abandoned.
            **(READ_ONLY if read_only else {"cleanup_tmp_directories": True}),
        )
        if not read_only:
            self.checksums.mkdir(parents=True, exist_ok=True)
            self.directory.mkdir(exist_ok=True)
        self.manager = self._open(options)
        self.last_save = time.monotonic()
        self._finishing: threading.Thread | None = None
        self._failure: tuple[int, BaseException] | None = None
        self._broken = False  # after a failed save, every call to Orbax raises its error again

    def _open(self, options) -> ocp.CheckpointManager:
        """Open Orbax's manager, which reads small files of every checkpoint and may find damage."""
        try:
            return ocp.CheckpointManager(self.directory, options=options)
        except Exception as error:
            names = (folder.name for folder in self.directory.glob("[0-9]*"))
            steps = sorted(int(name) for name in names if name.isdecimal())
            reasons = {step: self._verify(step)[1] for step in self._from_leader(steps)}
            damaged = {step: reason for step, reason in reasons.items() if reason}
            if self.read_only or not damaged:
                reason = next(iter(damaged.values()), _first_line(error))
                raise FirthError(f"{self.directory} cannot be opened: {reason}") from error
        for step, reason in damaged.items():
            log.warning("checkpoint %s is damaged (%s); falling back", step, reason)
            self._set_aside(step)
        return ocp.CheckpointManager(self.directory, options=options)

    def due(self, step: int, last: bool = False) -> bool:
        """Whether to save after this step at any time: a permanent step, or the last one."""
        return last or bool(self.every and step % self.every == 0)

    def overdue(self) -> bool:
        """Whether a save by time is due; the clocks of processes differ."""
        return time.monotonic() - self.last_save > 60 * self.minutes

    def save(self, step: int, state, meta: dict, metrics: dict | None = None):
        """Start saving; returns once the arrays are copied from the device.

        Raises FirthError with the reason if this save or the one before it failed. Also raises it,
        after the save, if `metrics` lacks the metric that chooses the best.
        """
        self.wait()
        if step in self.manager.all_steps():
            return
        if job.leads():  # left by a run that was killed while it deleted this step
            (self.checksums / f"{step}.json").unlink(missing_ok=True)
        unmeasured = bool(self.best) and metrics is not None and self.best not in metrics
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta))
        try:
            self.manager.save(step, args=items, metrics=None if unmeasured else metrics, force=True)
        except Exception as error:
            raise self._explain(step, error) from error
        self.last_save = time.monotonic()
        self._finishing = threading.Thread(target=self._finish, args=(step,), daemon=True)
        self._finishing.start()
        if unmeasured:
            self.wait()
            raise FirthError(
                f"checkpoint.best={self.best!r} is not measured; the evaluation gives "
                f"{', '.join(sorted(metrics))}. Step {step} is saved: set another and resume"
            )

    def _finish(self, step: int):
        """Wait for Orbax to commit the save, then write the checksums of its files."""
        try:
            self.manager.wait_until_finished()
            if job.leads():
                text = checksums_text(digests(self.directory / str(step)))
                write_text(self.checksums / f"{step}.json", text)
                steps = {str(s) for s in self.manager.all_steps()}
                for path in self.checksums.glob("*.json"):
                    if path.stem not in steps:
                        path.unlink()
                if self.when_saved:
                    self.when_saved()
        except BaseException as error:  # wait() raises it in the loop's thread
            self._failure = (step, error)

    def wait(self):
        """Block until the save under way is complete; raise FirthError if it failed."""
        if self._finishing is not None:
            self._finishing.join()
            self._finishing = None
        if self._failure is not None:
            step, error = self._failure
            self._failure = None
            if isinstance(error, FirthError):
                raise error
            raise self._explain(step, error) from error

    def _explain(self, step: int, error: BaseException) -> FirthError:
        full = getattr(error, "errno", None) == errno.ENOSPC or any(s in str(error) for s in FULL)
        reason = "the disk is full" if full else f"{type(error).__name__}: {_first_line(error)}"
        self._broken = True
        self.manager.reload()  # or it counts the failed save, and not those that this one replaces
        newest = self.manager.latest_step()
        return FirthError(
            f"checkpoint {self.directory / str(step)} could not be written: {reason}; "
            f"the newest complete one is {'none' if newest is None else newest}; "
            "free some space and start the same command again to resume from it"
        )

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        return sorted(self.manager.all_steps())

    def best_step(self) -> int | None:
        """Step of the checkpoint with the best metric, or of the newest if none was measured."""
        best = self.manager.best_step()
        return self.manager.latest_step() if best is None else best

    def discard_after(self, step: int):
        """Delete the checkpoints after this step, newest first, as a rollback needs."""
        for newer in reversed(self.steps()):
            if newer > step:
                self.manager.delete(newer)
                (self.checksums / f"{newer}.json").unlink(missing_ok=True)

    def restore(self, shapes, step: int | None = None):
        """The newest sound checkpoint as (state, meta), or None if there is none.

        `shapes` is the state's tree of ShapeDtypeStruct with shardings. `step` asks for one
        checkpoint. A damaged checkpoint is logged and moved to `checkpoints-damaged/`; a reader
        leaves it. Raises FirthError if that of `step` cannot be read, if none can, and for a sound
        checkpoint of another model.
        """
        candidates = [step] if step is not None else sorted(self.manager.all_steps(), reverse=True)
        for candidate in candidates:
            verified, reason = self._verify(candidate)
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
                if verified:
                    reason = f"is sound but does not fit this model: {reason}"
                one_process = not verified and not isinstance(error, FirthError)
                one_process &= job.count() > 1 and not self.alone
                if verified or step is not None or one_process:  # the others may have read it
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

        Leaves out the optimiser's state. Raises FirthError if there is none, or it is damaged.
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
        """Whether the checkpoint has checksums; raises FirthError if a file does not match them."""
        path = self.checksums / f"{step}.json"
        if not path.exists():  # killed between Orbax's commit and the checksums: the commit counts
            log.warning(
                "checkpoint %s has no checksums %s (killed just before?): files are not checked",
                *(step, path),
            )
            return False
        try:
            expected = read_checksums(path.read_bytes())
        except ValueError:
            raise FirthError(f"{path} is damaged, so the files cannot be checked") from None
        actual = digests(self.directory / str(step))
        for name in sorted(expected.keys() | actual):
            if actual.get(name) != expected.get(name):
                state = "does not match its checksum" if name in expected else "has no checksum"
                state = state if name in actual else "is missing"
                raise FirthError(f"{self.directory / str(step) / name} {state}")
        return True

    def _verify(self, step: int) -> tuple[bool, str]:
        """(whether it matches its checksums, the damage or ""), as process 0 finds it."""
        verified, reason = False, ""
        if job.leads():
            try:
                verified = self._check(step)
            except FirthError as error:
                reason = str(error)
        verified, reason = self._from_leader([verified, reason])
        return verified, reason

    def _set_aside(self, step: int):
        if job.leads():
            target = self.directory.with_name("checkpoints-damaged") / f"{step}-{time.time_ns()}"
            target.parent.mkdir(exist_ok=True)
            shutil.move(self.directory / str(step), target)
            (self.checksums / f"{step}.json").unlink(missing_ok=True)
        self._from_leader(None)  # the others wait until it is moved

    def _from_leader(self, value):
        """The JSON value that process 0 passes; all processes with a part in this must call it."""
        return value if self.alone else json.loads(job.all_gather(json.dumps(value))[0])

    def close(self):
        """Finish the save under way and release the directory."""
        self.wait()
        if not self._broken:
            self.manager.close()


def _check_shapes(state, shapes):
    """Raise ValueError for a leaf of another shape; Orbax checks the shape of jax.Array alone."""
    for (path, leaf), shape in zip(
        jax.tree.leaves_with_path(state), jax.tree.leaves(shapes), strict=True
    ):
        if leaf.shape != shape.shape:
            name = jax.tree_util.keystr(path)
            raise ValueError(f"{name} has shape {leaf.shape}, expected {shape.shape}")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
