"""Slices of TPU pods as descriptions: which exist, and their names for the compiler."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re

from firth.errors import FirthError
from firth.planning.hardware import CHIPS, Chip, find_chip

# Shapes of slices on Cloud TPU. FLAT: chips whose interconnect has two dimensions. Chips with
# three come in SMALL_BOXES and in any box whose sides are multiples of four.
FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
SMALL_BOXES = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
SHOWN_BOXES = (*SMALL_BOXES, "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")
OPTIONS = {  # v2 and v3 are left out: JAX sees their two cores as two devices
    "v4": {"chip_config_name": "megacore"},  # the two cores are one device
    "v5e": {},
    "v5p": {},
    "v6e": {},
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Some equal slices of a pod.

    `shape` are the chips along each dimension of the interconnect of one slice. The network of the
    data centre joins slices.
    """

    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return self.slices * math.prod(self.shape)

    @property
    def name(self) -> str:
        """As on the command line: 'v5e:16x16', '2*v5e:16x16'."""
        sides = "x".join(map(str, self.shape))
        return f"{self.slices}*" * (self.slices > 1) + f"{self.chip.name}:{sides}"

    def ring(self, dimension: int) -> bool:
        """Whether the last chip along a dimension has a link back to the first."""
        side = self.shape[dimension]
        if len(self.shape) == 3:
            return side % 4 == 0
        return side == self.chip.torus[dimension]


def parse(text: str) -> Topology:
    """'v5e:16x16', '2*v5e:16x16', 'v4:2x2x1'; FirthError, with the known shapes, for others."""
    match = re.fullmatch(r"(?:(\d+)\*)?(\w[\w\-]*?):(\d+(?:x\d+)*)", text)
    if not match:
        raise FirthError(
            f"--compile {text!r}: write a chip and the shape of its slice, v5e:16x16, or several "
            f"slices, 2*v5e:16x16; {known()}"
        )
    slices, name, sides = match.groups()
    chip, shape = find_chip(name), tuple(int(side) for side in sides.split("x"))
    if chip.name not in OPTIONS:
        raise FirthError(
            f"--compile {text!r}: programs are compiled for TPU v4 and later; {known()}"
        )
    if int(slices or 1) < 1 or not exists(chip, shape):
        raise FirthError(f"--compile {text!r}: no such slice; {known(chip.name)}")
    return Topology(chip, shape, int(slices or 1))


def exists(chip: Chip, shape: tuple[int, ...]) -> bool:
    """Whether there is a slice of that shape."""
    sides = "x".join(map(str, shape))
    fits = len(shape) == len(chip.torus) and all(
        side <= most for side, most in zip(sorted(shape), sorted(chip.torus), strict=True)
    )
    if len(chip.torus) == 2:
        return fits and (sides in FLAT or all(s > 16 and s % 16 == 0 for s in shape))
    return fits and (sides in SMALL_BOXES or all(side % 4 == 0 and side > 0 for side in shape))


def known(name: str | None = None) -> str:
    """The slices of a chip, or of all, in words."""
    chips = [CHIPS[one] for one in OPTIONS if name in (None, one)]
    return "; ".join(
        f"{chip.name}: "
        + (
            ", ".join(s for s in FLAT if exists(chip, tuple(map(int, s.split("x")))))
            if len(chip.torus) == 2
            else f"{', '.join(SHOWN_BOXES)} and other boxes of multiples of 4 up to "
            f"{'x'.join(map(str, chip.torus))}"
        )
        for chip in chips
    )


def devices(topology: Topology) -> list:
    """The devices of a topology, described by libtpu; no TPU is needed.

    Raises FirthError if libtpu is not installed or does not know the topology.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise FirthError(
            "compiling for TPUs needs libtpu (no TPU): pip install 'firth[tpu]', or leave "
            "--compile out"
        )
    from jax.experimental import topologies

    shape = (*topology.shape, 1)[:3]
    options = dict(OPTIONS[topology.chip.name])
    if math.prod(shape) == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    sides = "x".join(map(str, topology.shape))
    try:
        with _told(topology):
            description = topologies.get_topology_desc(
                platform="tpu", topology_name=f"{topology.chip.topology}:{sides}", **options
            )
    except Exception as error:  # whatever the plugin raises, in its own words
        reason = str(error).splitlines()[0]
        raise FirthError(
            f"--compile {topology.name}: libtpu does not describe it ({reason}); "
            f"{known(topology.chip.name)}"
        ) from None
    return list(description.devices)


@contextlib.contextmanager
def _told(topology: Topology):
    """Tell libtpu where it is; otherwise it asks the cloud which TPU this machine has, and warns.

    What names a TPU is taken back: this process's children would believe to be on it.
    """
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")  # a description holds no TPU
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
    place = {
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": topology.chip.accelerator_type(topology.chips),
    }
    place = {name: value for name, value in place.items() if name not in os.environ}
    os.environ.update(place)
    try:
        yield
    finally:
        for name in place:
            os.environ.pop(name, None)
