"""Damage to files, chosen or random, and what reading them says to it."""

import logging
import shutil
from pathlib import Path

import jax
import numpy as np

from firth.data.corpus.store import open_store
from firth.errors import FirthError
from firth.training.checkpoint import Checkpoints


def harm(path: Path, rng: np.random.Generator) -> str:
    """Flip one bit of a file, cut it or delete it; returns what was done."""
    data = bytearray(path.read_bytes())
    kind = str(rng.choice(["flip", "cut", "delete"])) if data else "delete"
    if kind == "delete":
        path.unlink()
        return "deleted"
    place = int(rng.integers(len(data)))
    if kind == "cut":
        path.write_bytes(data[:place])
        return f"cut to {place} bytes of {len(data)}"
    bit = int(rng.integers(8))
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {place} flipped"


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """Cut the last byte off a file."""
    path.write_bytes(path.read_bytes()[:-1])


def files_of(workdir: Path, step: int) -> list[Path]:
    """The files of a checkpoint."""
    folder = workdir / "checkpoints" / str(step)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def state_of(step: int) -> dict:
    """A small state on one device, which the step decides."""
    rng = np.random.default_rng(step)
    kernel = jax.device_put(rng.normal(size=(64, 16)).astype(np.float32), jax.devices()[0])
    return {"step": jax.device_put(np.int32(step), jax.devices()[0]), "params": {"kernel": kernel}}


def make_checkpoints(workdir: Path, steps=(1, 2, 3)) -> Path:
    """A workdir with such checkpoints and their checksums."""
    saves = Checkpoints(workdir, keep=len(steps))
    for step in steps:
        saves.save(step, state_of(step), {"window": {"loss": [0.5, step]}, "rollbacks": []})
    saves.close()
    return workdir


class Said(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def harm_a_checkpoint(saved: Path, copy: Path, rng: np.random.Generator) -> tuple[str, str]:
    """Harm a random file of the newest checkpoint in a copy, then restore as a run does.

    Returns what was done, and "fell back", "refused" or "sound", or what went wrong.
    """
    newest = int(rng.choice([2, 3]))
    shutil.copytree(saved, copy)
    for step in range(newest + 1, 4):
        shutil.rmtree(copy / "checkpoints" / str(step))
        (copy / "seals" / f"{step}.json").unlink()
    files = files_of(copy, newest)
    victim = files[rng.integers(len(files))] if rng.random() < 0.9 else None
    victim = victim or copy / "seals" / f"{newest}.json"
    done = f"{victim.relative_to(copy)} {harm(victim, rng)}"
    said = Said()
    logging.getLogger("firth").addHandler(said)
    try:
        saves = Checkpoints(copy, keep=3)
        state, meta = saves.restore(jax.tree.map(shape_of, state_of(0)))
        saves.close()
    except FirthError as error:
        return done, "refused" if victim.name in str(error) else f"refused without a name: {error}"
    except Exception as error:
        return done, f"{type(error).__name__}: {error}"
    finally:
        logging.getLogger("firth").removeHandler(said)
    step = int(state["step"])
    same = jax.tree.map(lambda a, b: bool((a == b).all()), state, state_of(step))
    if not all(jax.tree.leaves(same)) or meta["window"]["loss"] != [0.5, step]:
        return done, "restored what was not saved"
    if not any(victim.name in line for line in said.lines):
        return done, f"not named: {said.lines}"
    if step == newest:
        verified = victim.parent.name != "seals"
        return done, "restored the damaged one" if verified else "sound"
    return done, "fell back" if step == newest - 1 else f"fell back to {step}"


def shape_of(leaf):
    """As restoring wants it."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def harm_a_store(store: Path, rng: np.random.Generator) -> tuple[str, str]:
    """Harm a random file of a store, open it, and mend it again: "refused", or what went wrong."""
    files = sorted(p for p in store.rglob("*") if p.is_file())
    victim = files[rng.integers(len(files))]
    before = victim.read_bytes()
    done = f"{victim.relative_to(store)} {harm(victim, rng)}"
    try:
        open_store(store).tokenizer()
    except FirthError as error:
        return done, "refused" if victim.name in str(error) else f"refused without a name: {error}"
    except Exception as error:
        return done, f"{type(error).__name__}: {error}"
    finally:
        victim.write_bytes(before)
    return done, "not noticed"
