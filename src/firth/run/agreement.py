"""Checks that all processes of a job have the same recipe, code, data and clock."""

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

SKEW_NOTED, SKEW_REFUSED = 5.0, 900.0  # seconds; credentials fail beyond the larger


def check_equal(facts: dict[str, str]) -> None:
    """Raise FirthError, on every process, if `facts` differ from those of process 0.

    Also prints a note about clocks that differ, and raises FirthError if they differ too much.
    """
    job.all_gather()  # so that all read their clocks at the same moment
    mine = {"host": socket.gethostname(), "clock": time.time(), "facts": facts}
    records = [json.loads(text) for text in job.all_gather(json.dumps(mine))]
    if differing := differences(records):
        raise FirthError(f"the processes are not of one job: {'; '.join(differing)}")
    first = records[0]["clock"]
    skews = {p: record["clock"] - first for p, record in enumerate(records)}
    worst = max(skews, key=lambda p: abs(skews[p]))
    text = f"the clock of process {worst} ({records[worst]['host']}) is {skews[worst]:+.0f} s off"
    if abs(skews[worst]) > SKEW_REFUSED:
        raise FirthError(
            f"{text} that of process 0; set it (NTP), since files get their dates from it"
        )
    if abs(skews[worst]) > SKEW_NOTED and job.leads():
        print(f"firth: {text} that of process 0", file=sys.stderr)


def differences(records: list[dict]) -> list[str]:
    """'process 1 (host): config.seed is 1, on process 0 0' for each fact unlike process 0's."""
    first, differing = records[0]["facts"], []
    for process, record in enumerate(records):
        for name in sorted(first.keys() | record["facts"].keys()):
            own, expected = record["facts"].get(name), first.get(name)
            if own != expected:
                where = f"process {process} ({record['host']})"
                differing.append(f"{where}: {name} is {own}, on process 0 {expected}")
    return differing


def facts(config, run) -> dict[str, str]:
    """{name: value} that must be equal on all processes: recipe, code, data, tokenizer, weights.

    The path of the store may differ between hosts, so its digest stands for it. A single process
    has nothing to compare and gets {}.
    """
    if job.count() == 1:
        return {}
    paths = ("data.store", "data.heldout_store")
    equal = {f"config.{k}": repr(v) for k, v in flatten(config).items() if k not in paths}
    equal |= {f"store {i}": store.digest for i, store in enumerate(run.stores)}
    equal["tokenizer"] = run.tokenizer.digest
    equal["code"] = f"{_source()[:12]} (commit {commit()})"
    equal |= {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")}
    if run.initial:
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(run.initial):
            digest.update(np.asarray(leaf).tobytes())
        equal["first weights"] = digest.hexdigest()
    return equal


def _source() -> str:
    """SHA-256 of Firth's own source; unlike the commit, it changes with uncommitted edits."""
    digest = hashlib.sha256()
    folder = Path(__file__).resolve().parents[1]
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()
