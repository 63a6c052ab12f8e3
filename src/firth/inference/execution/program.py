"""Functions of an encoder, compiled once for each shape, in this process and those after it."""

import hashlib
import json
import os
import platform
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import jax
import jaxlib
from jax.experimental.compilation_cache import compilation_cache

from firth.inference.execution import kept
from firth.inference.execution.rounded import Rounding, rounded, split

COMPILERS = "XLA_FLAGS", "LIBTPU_INIT_ARGS"  # variables that change what is compiled


class Program:
    """A function (params, *arrays), compiled ahead of time for each set of array shapes.

    A compiled program is read from disk where an earlier process kept it. Nothing is traced then.
    """

    def __init__(self, function: Callable, identity: str | None, narrow: dict | None = None):
        """
        identity: names all that the function depends on; None keeps its programs off disk.
        narrow: of a function that multiplies in bfloat16, where its rounded parameters are kept
          for the calls that follow; programs with the same parameters may share it.
        """
        self._function, self._identity, self._narrow = function, identity, narrow
        self._compiled, self._lock = {}, threading.Lock()
        self.read = self.made = 0  # programs from disk, and those that were compiled

    def __call__(self, params, *arrays):
        """The function's value; the parameters must have the same shapes in every call.

        Several threads may call it.
        """
        shapes = tuple((x.shape, x.dtype) for x in arrays)
        compiled, roundings = self._compiled.get(shapes) or self._once(params, arrays, shapes)
        return compiled(params, self._rounded(params, roundings), *arrays)

    def _once(self, params, arrays, shapes) -> tuple:
        """What `_compile` returns, by one thread for all; shapes that are there need not wait."""
        with self._lock:
            if shapes not in self._compiled:
                self._compiled[shapes] = self._compile(params, arrays, shapes)
            return self._compiled[shapes]

    def _rounded(self, params, roundings: Sequence[Rounding]) -> list:
        """The values of the roundings, each computed once for an array."""
        leaves, values = jax.tree.leaves(params) if roundings else [], []
        for rounding in roundings:
            leaf = leaves[rounding.leaf]
            of, value = self._narrow.get(rounding, (None, None))
            if of is not leaf:
                value = rounded(leaf, rounding.axes)
                self._narrow[rounding] = leaf, value
            values.append(value)
        return values

    def _compile(self, params, arrays, shapes) -> tuple:
        """(compiled program, what it expects to be rounded)."""
        key = None
        # JAX's own cache, where the user has set one, serves instead.
        if self._identity and not jax.config.jax_compilation_cache_dir:
            key = hashlib.sha256(f"{self._identity} {shapes}".encode()).hexdigest()
            if found := kept.read(key, _devices(params)):
                self.read += 1
                return found
            # A program out of JAX's cache lacks its functions when it is written once more, and JAX
            # goes on using a folder that is no longer set.
            compilation_cache.reset_cache()
        roundings, function = (), lambda params, _, *arrays: self._function(params, *arrays)
        if self._narrow is not None:
            roundings, function = split(self._function, params, arrays)
        values = self._rounded(params, roundings)
        compiled = jax.jit(function).lower(params, values, *arrays).compile()
        self.made += 1
        if key:
            kept.write(key, compiled, roundings)
        return compiled, roundings


def _devices(params) -> list:
    """The devices of the parameters; the first one for arrays that are on none yet."""
    arrays = [x for x in jax.tree.leaves(params) if isinstance(x, jax.Array)]
    found = {device for x in arrays for device in x.devices()}
    return sorted(found, key=lambda device: device.id) or jax.devices()[:1]


def identity(model, params, key) -> str | None:
    """All that decides what a function of a model compiles to, but the shapes of its arrays.

    Args:
      model: a `firth.models.model.Model`, whose text names its sizes, heads and dtype.
      params: its parameters.
      key: what else the function depends on, with a text of its own.

    Returns None for a family from outside of the package, whose code may change.
    """
    if type(model.encoder).__module__.split(".")[0] != "firth":
        return None
    shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), params)
    config = {name: str(value) for name, value in jax.config.values.items()}
    config |= {name: os.environ.get(name) for name in COMPILERS}
    return f"{_code()} {_machine()} {json.dumps(config, sort_keys=True)} {model!r} {shapes} {key!r}"


@cache
def _code() -> str:
    """A digest of Firth's sources, and the versions of what compiles them."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    versions = jax.__version__, jaxlib.__version__, metadata.version("flax")
    return f"{digest.hexdigest()} {versions}"


@cache
def _machine() -> str:
    """The devices, and for a CPU its instructions and cores."""
    devices = [(d.platform, d.device_kind) for d in jax.devices()]
    instructions = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(errors="replace").splitlines()
        instructions = sorted({x for x in lines if x.startswith(("flags", "Features", "model"))})
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{devices} {platform.machine()} {instructions} {cores}"
