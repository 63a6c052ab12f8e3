"""The time of a step, from the work, memory traffic and communication of its program.

Three bounds (Williams et al. 2009): arithmetic at the peak of the chip, main memory at its
bandwidth, and the links between chips; the largest bounds the step from below. The TPU compiler
also states the cycles that it expects of every instruction. The vector unit and small products take
many more cycles than the bounds say. The prediction is the largest of arithmetic, memory and those
cycles, plus the communication that nothing hides.

Every report states these assumptions. An asynchronous collective hides behind all other work, a
synchronous one behind nothing. Rings use every dimension of the interconnect that their group
spans, in both directions where it closes. A hop takes HOP seconds.
"""

import dataclasses
import math

import numpy as np

from firth.planning.compiler.hlo import Collective
from firth.planning.compiler.topology import Topology
from firth.planning.compiler.work import Work

HOP = 1e-6  # seconds, jax-ml/scaling-book
# Cycles a second of the cores: peak FLOP/s over what the matrix units do in a cycle (2 FLOPs for
# each of their cells: 8 units of 128 x 128 on v4 and v5p, 4 on v5e, 4 of 256 x 256 on v6e).
CLOCK = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9}
# Bytes a second that each chip sends over the network of the data centre, jax-ml/scaling-book.
NETWORK = {"v5e": 3.1e9, "v6e": 12.5e9}
NETWORK_OF_OTHERS = 6.25e9


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of a step on every chip.

    compute, memory: the bounds. expected: by the compiler's cycles. sent: all communication.
    exposed: the communication that nothing hides. bound: the one that decides, in words.
    """

    compute: float
    memory: float
    expected: float
    sent: float
    exposed: float

    @property
    def busy(self) -> float:
        """Without communication."""
        return max(self.compute, self.memory, self.expected)

    @property
    def step(self) -> float:
        """The prediction."""
        return self.busy + self.exposed

    @property
    def least(self) -> float:
        """The roofline: a lower bound of the step."""
        return max(self.compute, self.memory, self.sent)

    @property
    def bound(self) -> str:
        """The resource that the step waits for most."""
        if self.exposed > self.busy:
            return "interconnect"
        names = {"compute": self.compute, "HBM": self.memory, "core cycles": self.expected}
        return max(names, key=names.get)


def step_time(work: Work, sent: list[Collective], mesh, topology: Topology) -> StepTime:
    """The time of a step with this work and these collectives, on a mesh of a topology."""
    chip = topology.chip
    busy = StepTime(
        work.flops / chip.flops,
        work.hbm_bytes / chip.hbm_bandwidth,
        work.cycles / CLOCK[chip.name],
        0.0,
        0.0,
    )
    hidden = sum(seconds(one, mesh, topology) for one in sent if one.asynchronous)
    open_ = sum(seconds(one, mesh, topology) for one in sent if not one.asynchronous)
    exposed = open_ + max(0.0, hidden - busy.busy)
    return dataclasses.replace(busy, sent=hidden + open_, exposed=exposed)


def seconds(one: Collective, mesh, topology: Topology) -> float:
    """Seconds of a collective over a whole step.

    Rings within the slices reduce first. Then each chip sends its part of the result between
    slices, and rings within the slices share it.
    """
    spans, slices = spanned(one.axes, mesh)
    inner = one.group // slices if one.kind != "collective-permute" else 2
    passes = 2 if one.kind == "all-reduce" else 1
    time = 0.0
    if inner > 1 and spans:
        share = 1.0 if one.kind == "collective-permute" else passes * (inner - 1) / inner
        closed = [
            topology.ring(dimension) and size == topology.shape[dimension]
            for dimension, size in spans.items()
        ]
        lanes = sum(2 if ring else 1 for ring in closed)
        hops = sum(
            size / 2 if ring else size - 1
            for size, ring in zip(spans.values(), closed, strict=True)
        )
        hops = 1 if one.kind == "collective-permute" else passes * hops
        time += one.bytes * share / (lanes * topology.chip.link) + hops * HOP
    if slices > 1:
        rate = NETWORK.get(topology.chip.name, NETWORK_OF_OTHERS)
        time += one.bytes / inner * passes * (slices - 1) / slices / rate
    return one.times * time


def spanned(axes: tuple[str, ...], mesh) -> tuple[dict[int, int], int]:
    """{dimension of the interconnect: chips along it} and slices of the groups along some axes."""
    index = tuple(slice(None) if name in axes else 0 for name in mesh.axis_names)
    members = np.ravel(mesh.devices[index])
    places = np.array([device.coords for device in members])
    sizes = {
        dimension: len(set(places[:, dimension]))
        for dimension in range(places.shape[1])
        if len(set(places[:, dimension])) > 1
    }
    slices = {getattr(device, "slice_index", None) or 0 for device in members}
    return sizes, len(slices)


def utilisation(model_flops: float, step: float, topology: Topology) -> float:
    """MFU: the model's own FLOPs of an update over those at the peak (PaLM, appendix B)."""
    return model_flops / (step * topology.chips * topology.chip.flops)


def assumptions(topology: Topology) -> list[str]:
    """The assumptions of a prediction, in words."""
    chip = topology.chip
    sentences = [
        f"peak {chip.flops / 1e12:g} TFLOP/s in bfloat16, HBM {chip.hbm_bandwidth / 1e9:g} GB/s, "
        f"links {chip.link / 1e9:g} GB/s an axis and direction, {CLOCK[chip.name] / 1e9:g} GHz",
        "asynchronous collectives hide behind other work, the others do not",
        f"{HOP * 1e6:g} us a hop; the input is never waited for",
        "instructions take the cycles that the TPU compiler's own cost model expects",
        "embeddings are looked up by the core itself, not by a SparseCore",
    ]
    if topology.slices > 1:
        rate = NETWORK.get(chip.name, NETWORK_OF_OTHERS)
        sentences.append(f"{rate / 1e9:g} GB/s a chip between slices")
    return sentences


def ring_bytes(sent: list[Collective]) -> float:
    """Bytes that each chip sends in a step."""
    return math.fsum(one.sent for one in sent)
