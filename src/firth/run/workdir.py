"""The files that a run writes into its workdir before training, and the lock on the workdir."""

import json
import os
import shutil
from pathlib import Path

from firth.models.heads import find_head
from firth.storage.local import file_lock, write_text
from firth.training.journal import describe_environment
from firth.weights.description import NAME, Description, to_json


def describe_run(run, workdir: Path):
    """Write env.txt, and model.json and the tokenizer, which readers of the checkpoints need."""
    write_text(workdir / "env.txt", f"{describe_environment()}steps: {run.steps}\n")
    description = Description(
        spec=run.spec,
        heads=tuple(head for head in run.model.heads if find_head(head).saved),
        num_labels=run.model.num_labels,
        labels=run.task.labels if run.task else None,
        regression=bool(run.task and run.task.kind == "regression"),
    )
    whole = to_json(description, best=run.best, generator=run.generator)
    write_text(workdir / NAME, json.dumps(whole, indent=2) + "\n")
    if not (workdir / "tokenizer").exists():
        temporary = workdir / f".tokenizer.{os.getpid()}"
        run.tokenizer.save(temporary)
        shutil.move(temporary, workdir / "tokenizer")


def lock_workdir(workdir: Path):
    """Hold the lock on the workdir; raises FirthError if another run holds it."""
    return file_lock(
        workdir / ".lock", f"another run is using {workdir}; wait for it or choose another"
    )
