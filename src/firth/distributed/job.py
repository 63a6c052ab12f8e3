"""Several processes as one job: how they join, exchange data and share a workdir.

Every function here is a no-op or the identity for a single process, so the loop is the same code on
a laptop and on a pod. watch.py handles processes that die.
"""

import argparse
import itertools
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
from jax._src import distributed  # its key-value store has no public name; Orbax imports it too
from jax.experimental import multihost_utils

from firth.distributed.libtpu import accelerator
from firth.errors import FirthError

DIED = 75  # exit status (EX_TEMPFAIL): a process died or hangs; start all of them again
OPTIONS = ("coordinator", "processes", "process", "patience", "stall", "gather")
DAY_MS = 24 * 3600 * 1000  # the watch, not a timeout, ends a wait for the others


def from_command_line(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """(place of this process in the job, other arguments); flags override FIRTH_ variables.

    Raises FirthError for an incomplete or impossible place.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    kinds = dict(coordinator=str, processes=int, process=int)
    kinds |= dict(patience=float, stall=float, gather=float)
    defaults = dict(patience=30.0, stall=3600.0, gather=300.0)
    for name, kind in kinds.items():
        default = os.environ.get(f"FIRTH_{name.upper()}") or defaults.get(name)
        parser.add_argument(f"--{name}", type=kind, default=default)
    try:
        place, rest = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise FirthError(str(error)) from None
    if min(place.patience, place.stall, place.gather) <= 0:
        raise FirthError("--patience, --stall and --gather are seconds: expected more than 0")
    fields = (place.coordinator, place.processes, place.process)
    if place.processes == 1 or fields == (None, None, None):
        return place, rest
    if None in fields:
        raise FirthError(
            f"--coordinator={place.coordinator} --processes={place.processes} --process="
            f"{place.process}: give all three, or none where the cluster tells them"
        )
    if not 0 <= place.process < place.processes or ":" not in place.coordinator:
        raise FirthError(
            f"--process={place.process} of --processes={place.processes} at --coordinator="
            f"{place.coordinator}: expected 0 <= process < processes and HOST:PORT"
        )
    return place, rest


def join(place: argparse.Namespace) -> None:
    """Join the other processes, if there are any; call it before any use of a device.

    Ends the process with status 75 if not all join in time, where JAX itself would abort. Raises
    FirthError if the processes cannot connect.
    """
    explicit = place.coordinator is not None and place.processes > 1
    if not explicit and (place.processes == 1 or not in_cluster()):
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX's own handler of SIGTERM would hide the signal from the loop's; turn it off beforehand.
    jax.config.update("jax_enable_preemption_service", False)
    late = threading.Timer(place.gather, _give_up, [place])
    late.daemon = True
    late.start()
    options = {}
    if explicit:
        _check_port(place)
        options = dict(
            coordinator_address=place.coordinator,
            num_processes=place.processes,
            process_id=place.process,
            cluster_detection_method="deactivate",
        )
    try:
        jax.distributed.initialize(
            **options,
            initialization_timeout=round(place.gather) + 60,
            # JAX's own heartbeat comes second: it aborts without naming the process that died.
            heartbeat_timeout_seconds=round(2 * place.patience) + 10,
            shutdown_timeout_seconds=round(place.patience) + 10,
        )
    except (RuntimeError, ValueError, OSError) as error:
        hint = "see that HOST is this host's name and PORT is free on it"
        if not explicit:
            hint = "pip install 'firth[tpu]' on a TPU, give --coordinator, or --processes=1"
        raise FirthError(f"the processes of this job cannot connect: {error}; {hint}") from None
    finally:
        late.cancel()


def in_cluster(environment=os.environ, root: Path = Path("/")) -> bool:
    """Whether JAX can find the other processes itself: in a SLURM step or on a TPU host."""
    if int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return True
    return accelerator(root, environment).startswith("TPU")


def _check_port(place):
    """Raise FirthError if process 0 cannot listen on its port; JAX would crash."""
    _, _, port = place.coordinator.rpartition(":")
    try:
        if place.process == 0:
            socket.create_server(("", int(port))).close()
    except (OSError, ValueError, OverflowError) as error:
        where = f"--coordinator={place.coordinator}"
        raise FirthError(f"{where}: process 0 cannot listen on port {port!r} ({error})") from None


def _give_up(place):
    where = place.coordinator or "the coordinator of the cluster"
    print(
        f"firth train: error: not all processes came to {where} within {place.gather:g} s; start "
        f"all {place.processes or ''} of them, with one --coordinator that every host can reach",
        file=sys.stderr,
        flush=True,
    )
    os._exit(DIED)


# ---------------------------------------------------------------------------- the accelerator


def check_accelerator() -> None:
    """Raise FirthError if JAX has fallen back to the CPU on a host with a TPU or GPU."""
    device = accelerator()
    if device and jax.default_backend() == "cpu":
        extra = device[:3].lower()
        raise FirthError(
            f"this host has a {device}, but JAX runs on its CPU; pip install 'firth[{extra}]', see "
            "that no other process holds the device, or set JAX_PLATFORMS=cpu to mean the CPU"
        )


# ---------------------------------------------------------------------------- the processes


def leads() -> bool:
    """Whether this is process 0, which writes logs and whose clock counts."""
    return number() == 0


def number() -> int:
    """The number of this process; unlike `jax.process_index`, it initialises no device."""
    return distributed.global_state.process_id


def count() -> int:
    """The number of processes of the job."""
    return distributed.global_state.num_processes


def client():
    """The key-value store of JAX's coordination service."""
    return distributed.global_state.client


def coordinator() -> str:
    """Host name or address of process 0, as seen from this process."""
    return distributed.global_state.coordinator_address.rpartition(":")[0].strip("[]")


_rounds = itertools.count()


def all_gather(text: str = "") -> list[str]:
    """The texts that all processes pass, by process number. All must call it, in the same order.

    It is also a barrier. The texts do not pass over the devices.
    """
    if count() == 1:
        return [text]
    name = f"firth/gather/{next(_rounds)}"
    client().key_value_set(f"{name}/{number()}", text)
    if leads():
        texts = [client().blocking_key_value_get(f"{name}/{p}", DAY_MS) for p in range(count())]
        client().key_value_set(f"{name}/all", json.dumps(texts))
    return json.loads(client().blocking_key_value_get(f"{name}/all", DAY_MS))


def to_host(tree):
    """The tree as whole numpy arrays, even if its leaves are sharded over several hosts.

    All processes must call it, and all get the whole tree, so it must fit in the memory of a host.
    It goes leaf by leaf, so a device needs free memory for the largest leaf alone.
    """
    if count() == 1:
        return jax.device_get(tree)
    with jax.transfer_guard("allow"):
        return multihost_utils.process_allgather(tree, tiled=True)


def broadcast(tree, shapes):
    """The numpy arrays of process 0, bit for bit, as arrays sharded over the devices of all hosts.

    `shapes` is the tree of ShapeDtypeStruct with shardings; other processes may pass any `tree`.
    """
    leaves = jax.tree.leaves(tree) if leads() else itertools.repeat(None)
    targets, structure = jax.tree.flatten(shapes)
    return structure.unflatten(map(_broadcast, leaves, targets))


def _broadcast(leaf: np.ndarray | None, shape: jax.ShapeDtypeStruct) -> jax.Array:
    size = shape.size * shape.dtype.itemsize
    data = bytes(size) if leaf is None else leaf.tobytes()
    # As integers: the broadcast adds zeros, which would change -0.0 and NaN.
    words = np.frombuffer(data + bytes(-size % 4), np.uint32)
    sent = multihost_utils.broadcast_one_to_all(words).tobytes()[:size]
    whole = np.frombuffer(sent, shape.dtype).reshape(shape.shape)
    return jax.make_array_from_callback(shape.shape, shape.sharding, whole.__getitem__)


def check_workdir(workdir: Path, shared: bool = True) -> None:
    """Create the folder of a run; raise FirthError unless all processes can write to it.

    If it is `shared`, also raise FirthError unless all see the same files: on separate disks a
    checkpoint would lack the parts that the others wrote.
    """
    probe = workdir / f".probe.{number()}"
    word = f"{socket.gethostname()} {time.time_ns()}"
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe.write_text(word)
    except OSError as error:
        reason = error.strerror or error
        raise FirthError(f"--workdir {workdir} cannot be written: {reason}") from None
    if not shared:
        probe.unlink()
        return
    try:
        word, *_ = all_gather(word)
        last = time.monotonic() + 10  # a network file system may show files late
        while not (seen := _read(workdir / ".probe.0") == word) and time.monotonic() < last:
            time.sleep(0.2)
        apart = [str(p) for p, answer in enumerate(all_gather(str(seen))) if answer != "True"]
    finally:
        probe.unlink(missing_ok=True)
    if apart:
        raise FirthError(
            f"--workdir {workdir} is not one folder for all: what process 0 writes there, process "
            f"{', '.join(apart)} does not see; give a bucket or a network file system"
        )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
