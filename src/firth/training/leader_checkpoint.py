"""Checkpoints of a job that process 0 alone writes: its workdir is a local copy of one at a URL.

For a save, every process gathers the state as whole arrays, and process 0 writes them as a run of
one process does. For a restore, process 0 reads them and broadcasts them. So a bucket has one
writer, and its files are the same for any number of processes. The state must fit in the memory of
a host, and its largest array in that of a device. The models here take at most a few GB with their
optimiser. A workdir on a shared file system has no such bounds: there each process writes its part.
"""

import json

import jax
import numpy as np

from firth.distributed import job
from firth.storage.remote import is_url
from firth.training.checkpoint import Checkpoints
from firth.training.remote_workdir import is_local_copy


def open_checkpoints(workdir, **options) -> "Checkpoints | LeaderCheckpoints":
    """The checkpoints of a workdir for all processes of the job; one at a URL is read-only."""
    one_writer = is_url(workdir) or is_local_copy(workdir)
    return (LeaderCheckpoints if job.count() > 1 and one_writer else Checkpoints)(
        workdir, **options
    )


class LeaderCheckpoints:
    """The methods of `Checkpoints` that the loop calls, with the same options, through process 0.

    All processes must call `save` and `restore`. An error is raised on process 0 and ends the job.
    """

    def __init__(self, workdir, *, every=0, **options):
        self.every = every
        self.checkpoints = None  # on process 0 alone
        if job.leads():
            self.checkpoints = Checkpoints(workdir, every=every, alone=True, **options)

    due = Checkpoints.due

    def overdue(self) -> bool:
        """Whether a save by time is due, by process 0's clock; False on the others."""
        return self.checkpoints is not None and self.checkpoints.overdue()

    def save(self, step: int, state, meta: dict, metrics: dict | None = None):
        """Start saving; returns once the hosts have the whole arrays in memory."""
        self.wait()
        job.all_gather()  # a collective would time out while the save before this one is written
        whole = job.to_host(state)
        if self.checkpoints:
            self.checkpoints.save(step, whole, meta, metrics)

    def wait(self):
        """On process 0, block until the save under way is complete."""
        if self.checkpoints:
            self.checkpoints.wait()

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first; empty on processes other than 0."""
        return self.checkpoints.steps() if self.checkpoints else []

    def best_step(self) -> int | None:
        """Step of the best checkpoint, as `Checkpoints` has it; None on processes other than 0."""
        return self.checkpoints.best_step() if self.checkpoints else None

    def discard_after(self, step: int):
        """Delete the checkpoints after this step."""
        if self.checkpoints:
            self.checkpoints.discard_after(step)

    def restore(self, shapes, step: int | None = None):
        """As `Checkpoints.restore`; every process gets the checkpoint that process 0 reads."""
        restored = None
        if self.checkpoints:
            restored = self.checkpoints.restore(jax.tree.map(_placeholder, shapes), step)
        message = json.dumps([bool(restored), restored and restored[1]])
        exists, meta = json.loads(job.all_gather(message)[0])
        return (job.broadcast(restored and restored[0], shapes), meta) if exists else None

    def close(self):
        """Finish the save under way and release the directory."""
        if self.checkpoints:
            self.checkpoints.close()


def _placeholder(shape: jax.ShapeDtypeStruct) -> np.ndarray:
    """An array that tells Orbax the shape and dtype to read; it takes no memory."""
    return np.broadcast_to(np.zeros((), shape.dtype), shape.shape)
