"""The folder of a run: may it be one, the lock on it, and the files written before training."""

import contextlib
import json
import os
import shutil
from pathlib import Path

from firth.errors import FirthError
from firth.models.heads import find_head
from firth.storage.local import file_lock, write_text
from firth.storage.places import WHOLE, has_checkpoint, instead, kind_of, seed_runs
from firth.storage.remote import is_url
from firth.training.journal import describe_environment
from firth.weights.description import NAME, Description, to_json

# What a run writes, and what users keep beside it: what it printed, pictures and notes.
OWN = (
    *("config.json", "env.txt", "model.json", "tokenizer", "compiled", "checkpoints", "seals"),
    *("checkpoints-damaged", "metrics.jsonl", "goodput.json", "epochs.json", "evaluation.json"),
    *(
        "baselines.json",
        "predictions",
        "features",
        *WHOLE,
        "owner.json",
        "events.*",
        "summary.json",
        "seed-*",
    ),
    *("*.log", "*.out", "*.err", "*.txt", "*.png", "*.md", "*.html"),
)
BEFORE = (".lock", "epochs.json", "goodput.json")  # what a run writes before its config


def check_folder(workdir: Path, seeds: bool = False):
    """Raise FirthError if a folder cannot be the workdir of a run, or of `seeds`: several runs.

    It may be missing, empty or the folder of an earlier run.
    """
    named = f"--workdir {workdir}"
    if workdir.exists() and not workdir.is_dir():
        raise FirthError(f"{named} is a file; expected the name of a folder")
    if workdir.is_symlink() and not workdir.exists():
        raise FirthError(f"{named} is a link to {os.readlink(workdir)}, which does not exist")
    if not workdir.is_dir():
        return
    if (runs := seed_runs(workdir)) and not seeds:
        raise FirthError(
            f"{named} holds the runs of several seeds: give one of {', '.join(runs)}, or "
            "--config.seeds, or another folder"
        )
    is_run = kind_of(workdir).endswith("of a run")
    if is_run and seeds:
        raise FirthError(f"{named} is {kind_of(workdir)}; choose another folder for several seeds")
    visible = sorted(path for path in workdir.iterdir() if not path.name.startswith("."))
    own = OWN if is_run else OWN[1:]  # another program's config.json
    foreign = [path.name for path in visible if not any(path.match(name) for name in own)]
    if foreign and not is_run:
        files = ", ".join(foreign[:3]) + (" and more" if len(foreign) > 3 else "")
        raise FirthError(
            f"{named} is not the folder of a run: it holds {files}{instead(workdir)}; choose a new "
            "folder"
        )


def check_resume(resume: str, workdir: Path):
    """Raise FirthError if a run that begins has no checkpoint to resume from in `resume`."""
    if not resume or is_url(resume) or has_checkpoint(workdir):
        return
    if not has_checkpoint(Path(resume)):
        raise FirthError(
            f"resume={resume}: no checkpoint there{instead(resume)}; expected the workdir of a run "
            "that has saved one"
        )


def discard_unbegun(workdir: Path):
    """Remove what a run has left that ended before it recorded its config."""
    if (workdir / "config.json").exists():
        return
    for name in BEFORE:
        (workdir / name).unlink(missing_ok=True)
    for folder in (workdir / "compiled", workdir):
        with contextlib.suppress(OSError):  # missing, or not empty
            folder.rmdir()


def describe_run(run, workdir: Path):
    """Write env.txt, and model.json and the tokenizer, which readers of the checkpoints need."""
    write_text(workdir / "env.txt", f"{describe_environment()}steps: {run.steps}\n")
    description = Description(
        spec=run.spec,
        heads=tuple(head for head in run.model.heads if find_head(head).saved),
        num_labels=run.model.num_labels,
        labels=run.task.labels if run.task else None,
        regression=bool(run.task and run.task.kind == "regression"),
        tasks={t.name: (t.labels, t.kind) for t in getattr(run.task, "tasks", ())},
        multilabel=bool(run.task and run.task.kind == "multilabel"),
    )
    whole = to_json(description, best=run.best, generator=run.generator)
    write_text(workdir / NAME, json.dumps(whole, indent=2) + "\n")
    if not ((workdir / "tokenizer").exists() and has_checkpoint(workdir)):
        temporary = workdir / f".tokenizer.{os.getpid()}"
        try:
            run.tokenizer.save(temporary)
            shutil.rmtree(workdir / "tokenizer", ignore_errors=True)  # of a run that never saved
            shutil.move(temporary, workdir / "tokenizer")
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def lock_workdir(workdir: Path):
    """Hold the lock on the workdir; raises FirthError if another run holds it."""
    return file_lock(
        workdir / ".lock", f"another run is using {workdir}; wait for it or choose another"
    )
