"""The cost of kernels written by hand, which the compiler's cost model leaves out.

A TPU issues one bundle of instructions a cycle, in an order fixed by the compiler; a kernel without
loops is one list of bundles for each call. `experiments/pods/kernels.py` lets the compiler write
these lists and counts them. Here is the number for each score that a kernel computes, with heads of
64: at 512 keys and dropout, for causal attention at 1,024 keys and dropout, for local attention (64
tokens on either side) at 1,024 keys without dropout, for relative attention over 896 keys with it
(85 queries of the query stream as 96). Rows of 1,024 keys take about as many, heads
of 128 up to a third more. Copies between main memory and the core are assumed to hide behind the
work: they take less than half as long, where no scores are left out.
"""

import dataclasses
import re

from firth.layers.fused import BACKWARD, FORWARD
from firth.layers.kernels import fused_relative
from firth.planning.compiler import hlo
from firth.planning.hardware import Chip

CYCLES = {
    FORWARD + "_causal": {"v4": 0.01164, "v5e": 0.00663, "v5p": 0.00678, "v6e": 0.00572},
    BACKWARD + "_causal": {"v4": 0.01759, "v5e": 0.01159, "v5p": 0.01131, "v6e": 0.00879},
    FORWARD + "_local": {"v4": 0.00998, "v5e": 0.00817, "v5p": 0.00817, "v6e": 0.00660},
    BACKWARD + "_local": {"v4": 0.01196, "v5e": 0.01238, "v5p": 0.01187, "v6e": 0.01032},
    FORWARD: {"v4": 0.01089, "v5e": 0.00572, "v5p": 0.00577, "v6e": 0.00505},
    BACKWARD: {"v4": 0.01550, "v5e": 0.01091, "v5p": 0.01065, "v6e": 0.00794},
}
CYCLES |= {
    fused_relative.FORWARD: {"v5e": 0.01052, "v5p": 0.01072, "v6e": 0.00886},
    fused_relative.BACKWARD: {"v5e": 0.01920, "v5p": 0.01911, "v6e": 0.01674},
    fused_relative.FORWARD + "_query": {"v5e": 0.01443, "v5p": 0.01596, "v6e": 0.01332},
    fused_relative.BACKWARD + "_query": {"v5e": 0.03122, "v5p": 0.03180, "v6e": 0.02579},
}
COST = re.compile(r'"flops":"(\d+)","transcendentals":"(\d+)","bytes_accessed":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One call of a kernel: FLOPs of its products, bytes of its inputs and outputs, cycles."""

    flops: int
    hbm_bytes: int
    cycles: int


def kernel(one: hlo.Instruction, chip: Chip | None) -> Kernel | None:
    """The work of a kernel call that states its cost; None for all other instructions.

    Without a chip, and for an unknown kernel, the cycles are 0. The cores of a chip share the work.
    """
    if one.opcode != "custom-call" or not (stated := COST.search(one.attributes)):
        return None
    flops, scores, moved = (int(number) for number in stated.groups())
    name = next((name for name in hlo.source(one).split("/") if name in CYCLES), "")
    known = CYCLES.get(name, {})
    cycles = known.get(chip.name, 0.0) / chip.cores if chip else 0.0
    return Kernel(flops, moved, round(scores * cycles))
