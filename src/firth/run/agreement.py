"""What must be equal on all processes of a job before it steps: recipe, code, data, clocks."""

import hashlib
import json
import socket
import sys
import time
from importlib import metadata
from pathlib import Path

import jax
import numpy as np

from firth.distributed import job
from firth.errors import FirthError
from firth.recipe import flatten
from firth.training.journal import commit

SKEW_NOTED, SKEW_REFUSED = 5.0, 900.0  # seconds; credentials and certificates fail beyond the last


def check_equal(facts: dict[str, str]) -> None:
    """Raise FirthError, on every process, where `facts` are not those of process 0.

    Also notes clocks that differ, and refuses those beyond use.
    """
    job.gather()  # so that the clocks are read at one moment
    mine = {"host": socket.gethostname(), "clock": time.time(), "facts": facts}
    records = [json.loads(text) for text in job.gather(json.dumps(mine))]
    if found := differences(records):
        raise FirthError(f"the processes are not of one job: {'; '.join(found)}")
    first = records[0]["clock"]
    skews = {p: record["clock"] - first for p, record in enumerate(records)}
    worst = max(skews, key=lambda p: abs(skews[p]))
    text = f"the clock of process {worst} ({records[worst]['host']}) is {skews[worst]:+.0f} s off"
    if abs(skews[worst]) > SKEW_REFUSED:
        raise FirthError(f"{text} that of process 0; set it (NTP) before files are dated by it")
    if abs(skews[worst]) > SKEW_NOTED and job.leads():
        print(f"firth: {text} that of process 0", file=sys.stderr)


def differences(records: list[dict]) -> list[str]:
    """'process 1 (host): config.seed is 1, not 0' for every fact that is not process 0's."""
    first, found = records[0]["facts"], []
    for process, record in enumerate(records):
        for name in sorted(first.keys() | record["facts"].keys()):
            own, expected = record["facts"].get(name), first.get(name)
            if own != expected:
                where = f"process {process} ({record['host']})"
                found.append(f"{where}: {name} is {own}, on process 0 {expected}")
    return found


def facts(config, run) -> dict[str, str]:
    """What must be equal on all processes: recipe, code, data, tokenizer, first weights.

    Where the store lies may differ from host to host: its digest says what it is. Nothing for a
    process by itself: there is nobody to be equal to.
    """
    if job.count() == 1:
        return {}
    elsewhere = ("data.store", "data.heldout_store")
    found = {f"config.{k}": repr(v) for k, v in flatten(config).items() if k not in elsewhere}
    found |= {f"store {i}": store.digest for i, store in enumerate(run.stores)}
    found["tokenizer"] = run.tokenizer.digest
    found["code"] = f"{_source()[:12]} (commit {commit()})"
    found |= {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")}
    if run.initial:
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(run.initial):
            digest.update(np.asarray(leaf).tobytes())
        found["first weights"] = digest.hexdigest()
    return found


def _source() -> str:
    """SHA-256 of Firth's own source: a commit says nothing of files that were edited since."""
    digest = hashlib.sha256()
    folder = Path(__file__).resolve().parents[1]
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()
