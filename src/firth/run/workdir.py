"""What a run writes into its workdir before it steps, and the lock that keeps others out."""

import json
import os
import shutil
from pathlib import Path

from firth.models.heads import find_head
from firth.storage.local import held, write_text
from firth.training.journal import describe_environment


def describe_run(run, workdir: Path):
    """Write env.txt, and what reads the checkpoints later: model.json and the tokenizer."""
    write_text(workdir / "env.txt", describe_environment())
    described = {
        "firth": 1,
        "model": run.spec,
        "heads": [head for head in run.model.heads if find_head(head).saved],
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
    """Hold the workdir for this process."""
    return held(workdir / ".lock", f"another run is using {workdir}; wait for it or choose another")
