"""What kernels written by hand take, of which the compiler's cost model says nothing.

A TPU issues one bundle of instructions a cycle, in an order that the compiler has fixed; a kernel
without loops is one list of them for each call. `experiments/pods/kernels.py` has the compiler
write these lists and counts them; here is the number a score, at 512 keys, heads of 64 and dropout.
Rows of 1,024 keys take about as many, heads of 128 up to a third more. The copies between main
memory and the core are taken to hide behind the work, of which they are less than half.
"""

import dataclasses
import re

from firth.layers.fused import BACKWARD, FORWARD
from firth.planning.compiler import hlo
from firth.planning.hardware import Chip

CYCLES = {
    FORWARD: {"v4": 0.01089, "v5e": 0.00572, "v5p": 0.00577, "v6e": 0.00505},
    BACKWARD: {"v4": 0.01550, "v5e": 0.01091, "v5p": 0.01065, "v6e": 0.00794},
}
COST = re.compile(r'"flops":"(\d+)","transcendentals":"(\d+)","bytes_accessed":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One call of a kernel: FLOPs of its products, bytes of what it takes and gives, cycles."""

    flops: int
    hbm_bytes: int
    cycles: int


def kernel(one: hlo.Instruction, chip: Chip | None) -> Kernel | None:
    """What a call of a kernel that says its cost takes; None for all other instructions.

    Without a chip, and for a kernel that is not known, the cycles are 0. The cores of a chip share
    the work.
    """
    if one.opcode != "custom-call" or not (said := COST.search(one.attributes)):
        return None
    flops, scores, moved = (int(number) for number in said.groups())
    known = next((CYCLES[name] for name in CYCLES if name in hlo.source(one)), {})
    cycles = known.get(chip.name, 0.0) / chip.cores if chip else 0.0
    return Kernel(flops, moved, round(scores * cycles))
