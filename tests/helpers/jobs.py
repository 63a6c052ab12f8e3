"""Jobs of several processes on this machine, which meet over gloo on the CPU."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from helpers.runs import COMMAND, arguments

SMALL = dict(
    **dict(steps=16, log_every=4, eval__every=8, checkpoint__every=4, checkpoint__keep=5),
    **dict(model__num_layers=1, model__hidden_size=16, model__intermediate_size=32),
)
PATIENCE = 20  # seconds; a connection that closes is noticed at once, this is for silence


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def start_job(count: int, command, cache=None, **environment) -> list[subprocess.Popen]:
    """Processes that run `command(p)`, a list of arguments for python, as one job.

    With a folder `cache`, each is a machine of its own: what it downloads lies in `cache`/p.
    """
    port, flags = free_port(), []
    for process in range(count):
        place = dict(COORDINATOR=f"localhost:{port}", PROCESSES=count, PROCESS=process)
        place = {f"FIRTH_{name}": str(value) for name, value in place.items()}
        flags.append({"FIRTH_PATIENCE": str(PATIENCE)} | place | COMMAND)
        flags[-1] |= {"FIRTH_CACHE": f"{cache}/{process}"} if cache else {}
        flags[-1] |= environment
        if count > 1:  # on the CPU, only process 0 finds what is kept, and gloo waits 30 s at most
            flags[-1]["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    return [
        subprocess.Popen(
            [sys.executable, *map(str, command(process))],
            env=os.environ | flags[process],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(count)
    ]


def start_training(count: int, store, workdir, cache=None, **changes) -> list[subprocess.Popen]:
    """`firth train` of a small run in several processes."""
    argv = arguments(store, workdir, **SMALL | changes)
    return start_job(count, lambda process: ["-m", "firth", "train", *argv], cache)


def end(job: list[subprocess.Popen], timeout: float = 500) -> list[tuple[int, str]]:
    """(exit status, standard error) of every process, when all have ended."""
    try:
        errors = [process.communicate(timeout=timeout)[1] for process in job]
        return [(process.returncode, text) for process, text in zip(job, errors, strict=True)]
    finally:
        for process in job:
            process.kill()


def read_state(workdir, step: int) -> dict[str, np.ndarray]:
    """Every leaf of a checkpoint by its path, however many processes wrote it."""
    folder = Path(workdir).absolute() / "checkpoints" / str(step) / "state"
    reader = ocp.PyTreeCheckpointer()
    tree = reader.metadata(folder).item_metadata.tree
    whole = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    found = reader.restore(folder, args=ocp.args.PyTreeRestore(restore_args=whole))
    leaves = jax.tree.leaves_with_path(found)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def error_of(text: str) -> str:
    """The line in which the command says why it ended."""
    lines = [line for line in text.splitlines() if line.startswith("firth train: error: ")]
    assert len(lines) == 1, text
    return lines[0].removeprefix("firth train: error: ")
