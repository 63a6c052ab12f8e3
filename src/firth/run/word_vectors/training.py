"""Train word vectors.

    firth train --config word2vec.py:skipgram --workdir runs/sg --config.data.store=train/

A step trains on one piece of the corpus, a second or so of work. While it computes, the next piece
is made ready. A run that was killed goes on after its newest save, to the same bytes.
"""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy

from firth import recipe
from firth.data.corpus.store import open_store
from firth.errors import FirthError
from firth.models.word_vectors import files
from firth.progress import Progress
from firth.run.recorded import record
from firth.run.stopping import Stop, catch_interrupts, catch_sigterm
from firth.run.word_vectors.corpus import read_corpus
from firth.run.word_vectors.methods import METHODS, fields_of
from firth.run.workdir import check_folder, discard_unbegun, lock_workdir
from firth.storage.local import write_bytes, write_text
from firth.training.journal import Journal, describe_environment

log = logging.getLogger("firth")
DIVERGED = "are not finite, so the run diverged; give a smaller rate (--config.lr=...)"
SAVE = "progress.checkpoint"  # the sha256 of what follows, then safetensors: the tables and more


def trains_words(config) -> bool:
    """Whether a config is that of word vectors."""
    return config.get("model", {}).get("family") in METHODS


def train(config, workdir: Path) -> dict[str, float]:
    """Train word vectors to the end of the last epoch; returns {"loss": that of the last step}.

    Raises FirthError for bad input, and SystemExit on SIGTERM (143) and Ctrl-C (130), after a save.
    """
    config = recipe.located(config)
    check_folder(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stop = stack.enter_context(catch_interrupts())
        catch_sigterm(stop, stack)
        stack.enter_context(lock_workdir(workdir))
        stack.callback(discard_unbegun, workdir)
        return _train(config, workdir, stop)


def _train(config, workdir: Path, stop: Stop) -> dict[str, float]:
    spec = dict(config.model)
    fields = fields_of(spec)
    if config.epochs < 1 or not config.lr > 0:
        raise FirthError(
            f"epochs={config.epochs}, lr={config.lr:g}: expected at least one epoch and a rate "
            "above 0"
        )
    if not config.data.store:
        raise FirthError(
            "data.store is not set; prepare a corpus with `firth prepare --train-tokenizer word` "
            "and give --config.data.store=DIR"
        )
    if files.is_word_vectors(workdir):
        return _finished(config, workdir)
    store = open_store(config.data.store)
    tokenizer = store.tokenizer()
    corpus = read_corpus(store, tokenizer, config.data.within, fields.min_count, fields.max_words)
    method = METHODS[spec["family"]](corpus, fields, config.epochs, config.lr, config.seed)
    record(config, workdir)  # raises if it is another run's
    start, tables = _restore(workdir, method, store.digest)
    write_text(workdir / "env.txt", f"{describe_environment()}steps: {method.steps}\n")
    log.info(
        "%s words, %s tokens, %d epochs of %d steps%s",
        *(f"{len(corpus.words):,}", f"{len(corpus):,}", config.epochs),
        *(method.steps // config.epochs, f", from step {start}" if start else ""),
    )
    stop.savable, between = True, 60 * config.checkpoint.minutes
    due = time.monotonic() + between
    for done, trained, loss in _steps(method, tables, start, workdir):  # noqa: B007 (the last)
        if done < method.steps and (stop.is_set() or time.monotonic() > due):
            _save(workdir, done, trained, store.digest)
            due = time.monotonic() + between
            if stop.is_set():
                log.info("%s: saved after step %d of %d", stop, done, method.steps)
                raise SystemExit(stop.status)
    vectors = method.vectors(trained)
    if not np.isfinite(vectors).all():
        raise FirthError(f"the vectors {DIVERGED}")
    store.check_unchanged()
    shutil.rmtree(workdir / "tokenizer", ignore_errors=True)
    tokenizer.save(workdir / "tokenizer")
    ids, counts = corpus.words
    files.save(files.WordVectors(ids, vectors, counts), workdir, **spec, epochs=config.epochs)
    (workdir / SAVE).unlink(missing_ok=True)
    return {"loss": loss}


def _finished(config, workdir: Path) -> dict[str, float]:
    if (epochs := files.load(workdir)[1].get("epochs")) != config.epochs:
        raise FirthError(
            f"{workdir} holds a run that has finished with epochs={epochs}, and its rate has "
            f"fallen to nothing; choose another --workdir for epochs={config.epochs}"
        )
    record(config, workdir)
    log.info("%s holds these word vectors; choose another --workdir to train again", workdir)
    return {}


def _steps(method, tables, start: int, workdir: Path) -> Iterator[tuple]:
    """(steps done, tables, loss) after each step; writes the journal and shows the progress.

    The program of a step runs while the next piece is made; the loss is read one step late.
    """
    journal = Journal(workdir, start, tensorboard=False)
    bar = Progress(method.steps, start, "train")
    before = time.perf_counter()
    try:
        chunk = method.prepare(start) if start < method.steps else None
        for step in range(start, method.steps):
            tables, loss, weight = method.train(tables, chunk)
            if step + 1 < method.steps:
                chunk = method.prepare(step + 1)
            loss = float(loss) / max(float(weight), 1.0)  # waits for the step
            if not np.isfinite(loss):
                raise FirthError(f"the losses up to step {step + 1} {DIVERGED}")
            now = time.perf_counter()
            seconds, before = now - before, now
            speed = method.tokens / seconds
            journal.write(
                step + 1,
                {
                    "train/loss": loss,
                    "train/learning_rate": method.rate(step),
                    "perf/tokens_per_sec": round(speed, 1),
                    "perf/step_ms": round(1e3 * seconds, 3),
                },
            )
            left = (method.steps - step - 1) * seconds
            bar.update(step + 1, f"loss {loss:.4f}, {speed:,.0f} words/s, {left:,.0f} s left")
            yield step + 1, tables, loss
    finally:
        bar.close()
        journal.close()


def _save(workdir: Path, step: int, tables, store: str) -> None:
    """Save the tables after a step, whole or not at all."""
    tensors = {name: np.asarray(array) for name, array in tables._asdict().items()}
    said = json.dumps({"step": step, "store": store}).encode()
    data = safetensors.numpy.save(tensors | {"said": np.frombuffer(said, np.uint8)})
    write_bytes(workdir / SAVE, hashlib.sha256(data).digest() + data)


def _restore(workdir: Path, method, store: str):
    """(steps done, tables) of the newest save, or of a run that begins.

    Raises FirthError for a save that is damaged, of another store or of other sizes.
    """
    path = workdir / SAVE
    if not path.exists():
        return 0, method.initial()
    data = path.read_bytes()
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise FirthError(
            f"{path} is damaged: its sha256 is not the one in it; remove it to begin again"
        )
    tensors = safetensors.numpy.load(data[32:])
    said = json.loads(tensors.pop("said").tobytes())
    if said["store"] != store:
        raise FirthError(
            f"the store has changed since {workdir} was saved; give the store that the run began "
            "with, or choose another --workdir"
        )
    return said["step"], method.Tables(**jax.device_put(tensors))
