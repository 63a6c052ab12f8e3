"""Small runs: a corpus, its store, the arguments of a tiny run, and what is in its workdir."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from firth.cli import main

WORDS_TEXT = """
the a one that bank river word company meaning context shall know by it keeps you vase
broke film was good bad very not and or if then sat on mat cat dog saw with old new time
year day
"""
WORDS = WORDS_TEXT.split()


def make_corpus(path: Path, documents: int = 40, seed: int = 0) -> Path:
    """A text file of random documents: a sentence a line, a blank line between documents."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(documents):
        for _ in range(rng.integers(4, 12)):
            lines.append(" ".join(rng.choice(WORDS, rng.integers(4, 12))) + " .")
        lines.append("")
    path.write_text("\n".join(lines))
    return path


def make_store(folder: Path) -> Path:
    """A store of that corpus with its own small WordPiece vocabulary, by the command."""
    from firth.cli import main

    corpus = make_corpus(folder / "corpus.txt")
    arguments = f"prepare --input {corpus} --tokenizer {folder}/tok --train-tokenizer wordpiece "
    arguments += f"--vocab-size 120 --sentences line --output {folder}/store"
    assert main(arguments.split()) == 0
    return folder / "store"


TINY = {  # a run of a few seconds with everything on: dropout, shuffling, evaluation, two epochs
    "steps": 60,
    "batch_size": 8,
    "log_every": 5,
    "model.num_layers": 2,
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "model.intermediate_size": 64,
    "model.max_length": 32,
    "model.dropout": 0.1,
    "model.attention_dropout": 0.1,
    "optimizer.b2": 0.999,
    "optimizer.bias_correction": False,
    "schedule.lr": 1e-4,
    "schedule.warmup": 0.01,
    "data.heldout": 0.2,
    "data.loader": "thread",  # which is there at once; TensorFlow takes seconds, and half a GB
    "eval.every": 20,
    "eval.batch_size": 8,
    "eval.batches": 2,
    "checkpoint.every": 7,
    "progress": False,
    "curves": False,  # matplotlib takes a second
}


def arguments(store, workdir, recipe="bert.py:tiny,length=32", **changes) -> list[str]:
    """Command-line arguments of `firth train` for a tiny run; None leaves a field alone."""
    fields = TINY | {"data.store": store} | {k.replace("__", "."): v for k, v in changes.items()}
    return [f"--config={recipe}", f"--workdir={workdir}"] + [
        f"--config.{name}={value}" for name, value in fields.items() if value is not None
    ]


COMMAND = {  # the environment of a command, which finds all that one before it has compiled
    "JAX_PLATFORMS": "cpu",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}


def trained(argv, status=0) -> str:
    """What `firth train` says in this process, which must end with `status`."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main(["train", *argv]) == status, said.getvalue()
    return said.getvalue()


def start(argv: list[str], program=("-m", "firth", "train"), **environment) -> subprocess.Popen:
    """`firth train` in a new process, on one CPU device unless JAX_NUM_CPU_DEVICES says otherwise.

    Compiled as tests are; with `XLA_FLAGS=""` as users do.
    """
    return subprocess.Popen(
        [sys.executable, *program, *map(str, argv)],
        env=os.environ | COMMAND | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def struck(argv: list[str], workdir: Path, steps: int, kind=signal.SIGKILL) -> tuple[int, str]:
    """(status, stderr) of a run of so many steps that gets a signal at its first sealed checkpoint.

    Not one that was over by then.
    """
    process, deadline = start(argv), time.monotonic() + 300
    while not list((workdir / "seals").glob("*.json")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.005)
    process.send_signal(kind)
    _, errors = process.communicate(timeout=60)
    assert not (workdir / "checkpoints" / str(steps)).exists(), "it was over too soon"
    return process.returncode, errors


def finish(argv: list[str], **environment) -> str:
    """What `firth train` says in a new process (see `start`), which must end well."""
    process = start(argv, **environment)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return errors


# `python -c BY_TF_DATA FILE ARGUMENTS`: `firth train` in a process that has TensorFlow already and
# waits for the loader's own import of it, however busy the machine is. So tf.data gives every batch
# but the first; the number of batches that it gave is written into FILE.
BY_TF_DATA = """
import sys
from firth.data import prefetch, tensorflow
from firth.cli import main

given, take, take_any = [], prefetch._TfData.take, prefetch._Handover.take

def counted(source):
    batch = take(source)
    given.append(batch)
    with open(sys.argv[1], "w") as file:
        file.write(str(len(given)))
    return batch

def imported(source):
    if source._dtypes and not source._decided:
        source._begin_import()
        source._wanted.set()
        source._import.result()
    return take_any(source)

prefetch._TfData.take = counted
prefetch._Handover.take = imported
tensorflow.import_tensorflow()
sys.exit(main(["train", *sys.argv[2:]]))
"""


def logged(workdir) -> list[dict]:
    """The journal without its timings."""
    lines = (Path(workdir) / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith("perf/")} for line in lines
    ]


def final_state(workdir, step=TINY["steps"]):
    """The raw state of a checkpoint, every leaf as numpy."""
    folder = Path(workdir) / "checkpoints" / str(step) / "state"
    leaves = jax.tree.leaves_with_path(ocp.PyTreeCheckpointer().restore(folder))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def assert_same_bytes(one, other, step=TINY["steps"]):
    one, other = final_state(one, step), final_state(other, step)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), name
