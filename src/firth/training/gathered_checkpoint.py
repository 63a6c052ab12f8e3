"""Checkpoints of several processes in a workdir that is process 0's alone: a copy of one at a URL.

At a save, the state comes to every process as whole arrays, and process 0 writes them as a run by
itself would; at a restore, it reads them and sends them to the others. So a bucket has one writer,
and the number of processes shows nowhere in it. The state must fit the memory of a host, and its
largest array that of a device: that is so for the models here, of at most a few GB with their
optimiser. A workdir on a file system of all hosts has no such bounds: there each writes its part.
"""

import json

import jax
import numpy as np

from firth.distributed import job
from firth.storage.remote import is_url
from firth.training.checkpoint import Checkpoints
from firth.training.remote_workdir import is_mirror


def open_checkpoints(workdir, **options) -> "Checkpoints | Gathered":
    """The checkpoints of a workdir, at a URL for reading alone, for all processes of the job."""
    one_has_it = is_url(workdir) or is_mirror(workdir)
    return (Gathered if job.count() > 1 and one_has_it else Checkpoints)(workdir, **options)


class Gathered:
    """What the loop asks of `Checkpoints`, with the same options, by way of process 0.

    All processes must call `save` and `restore`. Errors of process 0 are its own: it ends the job.
    """

    def __init__(self, workdir, *, every=0, **options):
        self.every = every
        self.first = None  # that of process 0; the others have none
        if job.leads():
            self.first = Checkpoints(workdir, every=every, alone=True, **options)

    due = Checkpoints.due

    def overdue(self) -> bool:
        """Whether enough time has passed since the last save, by process 0's clock."""
        return self.first is not None and self.first.overdue()

    def save(self, step: int, state, meta: dict, metrics: dict | None = None):
        """Start saving; returns once the arrays are whole in the memory of the hosts."""
        self.wait()
        job.gather()  # a collective may not wait for as long as the save before this one takes
        whole = job.fetch(state)
        if self.first:
            self.first.save(step, whole, meta, metrics)

    def wait(self):
        """On process 0, block until the save under way is complete."""
        if self.first:
            self.first.wait()

    def steps(self) -> list[int]:
        """Complete checkpoints, oldest first; on process 0."""
        return self.first.steps() if self.first else []

    def discard_after(self, step: int):
        """Delete the checkpoints after this step."""
        if self.first:
            self.first.discard_after(step)

    def restore(self, shapes, step: int | None = None):
        """As `Checkpoints.restore`, on all what process 0 finds."""
        found = None
        if self.first:
            found = self.first.restore(jax.tree.map(_stand_in, shapes), step)
        there, meta = json.loads(job.gather(json.dumps([bool(found), found and found[1]]))[0])
        return (job.spread(found and found[0], shapes), meta) if there else None

    def close(self):
        """Finish the save under way and release the directory."""
        if self.first:
            self.first.close()


def _stand_in(shape: jax.ShapeDtypeStruct) -> np.ndarray:
    """An array of this shape and dtype, for Orbax to read one; it takes no room."""
    return np.broadcast_to(np.zeros((), shape.dtype), shape.shape)
