"""This machine as a chip: what it multiplies a second, measured, and its memory."""

import dataclasses
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from firth.planning.hardware import CHIPS, Chip

SIZE = 1024  # of the matrices; the products of small models are of this order
CGROUPS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


def measured(seconds: float = 1.0) -> Chip:
    """The CPU of this machine, measured for so many seconds; watts are the laptop's guess."""
    rate = product_rate(seconds)
    return dataclasses.replace(
        CHIPS["laptop"],
        name="here",
        flops=rate,
        fp32_flops=rate,
        hbm=memory(),
        flops_are=f"float32 products on {os.cpu_count()} cores, measured just now",
    )


def product_rate(seconds: float = 1.0) -> float:
    """FLOP/s of float32 matrix products on JAX's first device, the mean over so many seconds."""
    multiply = jax.jit(jnp.matmul)
    x = jnp.ones((SIZE, SIZE), jnp.float32)
    multiply(x, x).block_until_ready()  # compiled, and threads started
    count, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        multiply(x, x).block_until_ready()
        count += 1
    return 2 * SIZE**3 * count / spent


def memory(root: Path = Path("/")) -> int:
    """Bytes of memory of this machine, or of its container if that may use less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_number(root / name) for name in CGROUPS]
    return min([total, *(limit for limit in limits if limit)])


def available(root: Path = Path("/")) -> int:
    """Bytes of memory that a new process may take; all of it where the kernel does not tell."""
    try:
        text = (root / "proc/meminfo").read_text()
        free = int(text.split("MemAvailable:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return memory(root)
    return min(free, memory(root))


def _number(path: Path) -> int | None:
    """The number in a file; None without the file, or where it says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
