"""Arithmetic and memory traffic of one device in a step, from its compiled program.

The compiler's own cost analysis counts the body of a loop once. Here every instruction counts as
often as it runs.
"""

import dataclasses
import math
import re
from collections import defaultdict

from firth.planning.compiler import hlo
from firth.planning.compiler.kernels import kernel
from firth.planning.hardware import Chip

# Operations that move no data: names, and reserved memory.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "domain"),
    *("while", "conditional", "call", "custom-call", "optimization-barrier"),
    *("partition-id", "replica-id"),
}
SLICES = ("dynamic-slice", "slice", "gather")
WRAPPERS = re.compile(  # parts of an operation's name that do not name a part of the model
    r"shard_map|stack|layers?(_\d+)?|while|body|cond|branch_\d+_fun|closed_call|checkpoint.*"
)
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Work:
    """Of one device, one step.

    flops: of matrix products, 2 m n k each. hbm_bytes: read from and written to its main memory;
    arrays in the memory of the cores do not count. cycles: as the TPU compiler expects them of each
    instruction (0 from other compilers), and those of kernels written by hand
    (`planning.compiler.kernels`).
    parts: {where in the model: cycles}, the costliest first.
    """

    flops: int
    hbm_bytes: int
    cycles: int
    parts: dict[str, int]


def work(module: hlo.Module, chip: Chip | None = None) -> Work:
    """The work of a parsed program; only the cycles of kernels depend on the chip."""
    flops = moved = 0
    cycles, fused = defaultdict(int), inside_fusions(module)
    for computation, times in hlo.executions(module).items():
        lines = module.computations[computation]
        for one in lines.values():
            flops += times * product_flops(one, lines)
            if computation in fused:
                continue
            moved += times * traffic(module, one, lines)
            if call := kernel(one, chip):
                flops += times * call.flops
                moved += times * call.hbm_bytes
                cycles[part(hlo.source(one), one.opcode)] += times * call.cycles
            elif estimate := CYCLES.search(one.attributes):
                cycles[part(hlo.source(one), one.opcode)] += times * int(estimate[1])
    parts = dict(sorted(cycles.items(), key=lambda item: -item[1]))
    return Work(flops, moved, sum(parts.values()), parts)


def inside_fusions(module: hlo.Module) -> set[str]:
    """The computations inside fusions; nothing stores their intermediate values."""
    fused, waiting = set(), list(module.computations)
    for name in waiting:
        for one in module.computations[name].values():
            if one.opcode == "fusion" or (name in fused and one.opcode == "call"):
                called = one.attribute("calls") or one.attribute("to_apply")
                if called not in fused:
                    fused.add(called)
                    waiting.append(called)
    return fused


def part(source: str, opcode: str) -> str:
    """The part of the model in an `op_name`, with all layers as one.

    'jit(step)/transpose(jvp(encoder))/encoder.encode/stack/layer_7/attention/Dropout_0/xor' is
    'backward attention/Dropout'.
    """
    if "(" not in source:
        return f"unnamed {opcode}"
    path = [name for name in source.split("/") if re.match(r"[A-Za-z]", name)]
    names = [
        re.sub(r"_\d+$", "", name)
        for name in path[:-1]
        if "(" not in name
        and not WRAPPERS.fullmatch(name)
        and not name.startswith(("encoder.", "rematted"))
    ]
    way = "backward" if "transpose(" in source else "forward" if "jvp(" in source else "update"
    return f"{way} {'/'.join(names)}".strip() if names else way


# ------------------------------------------------------------------------------------ FLOPs


def product_flops(one: hlo.Instruction, lines: dict[str, hlo.Instruction]) -> int:
    """FLOPs of a matrix product or convolution, 0 for other instructions."""
    if one.opcode == "dot":
        (_, left, _), *_ = hlo.arrays(lines[one.operands[0]].type)
        summed = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.attributes)[1]
        depth = math.prod(left[int(n)] for n in summed.split(",") if n)
        return 2 * depth * math.prod(hlo.arrays(one.type)[0][1])
    if one.opcode == "convolution":
        return convolution_flops(one, lines)
    return 0


def convolution_flops(one: hlo.Instruction, lines: dict[str, hlo.Instruction]) -> int:
    """FLOPs of a convolution: the TPU compiler writes every matrix product as one.

    Along each spatial dimension, a pair of an output and a kernel position counts only if it meets
    an element of the input, not padding or a hole. A batched product is a convolution whose holes
    leave each batch its own kernel position.
    """
    left, kernel = (hlo.arrays(lines[name].type)[0][1] for name in one.operands[:2])
    output = hlo.arrays(one.type)[0][1]
    inputs, kernels, outputs = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.attributes).groups()
    flops = 2 * output[outputs.index("b")] * output[outputs.index("f")] * kernel[kernels.index("i")]
    window = re.search(r"window=\{([^}]*)\}", one.attributes)
    fields = dict(item.split("=") for item in window[1].split()) if window else {}
    for number, label in enumerate(sorted(set(inputs) - set("bf"))):
        flops *= meetings(
            sizes=(left[inputs.index(label)], output[outputs.index(label)]),
            kernel=kernel[kernels.index(label)],
            stride=entry(fields.get("stride"), number, 1),
            pad=entry(fields.get("pad"), number, 0),
            holes=entry(fields.get("lhs_dilate"), number, 1),
            spread=entry(fields.get("rhs_dilate"), number, 1),
        )
    return flops


def entry(field: str | None, number: int, otherwise: int) -> int:
    """The entry of one dimension in a window's field; of a padding, the front."""
    return int(field.split("x")[number].split("_")[0]) if field else otherwise


def meetings(sizes, kernel: int, stride: int, pad: int, holes: int, spread: int) -> int:
    """Pairs of an output and a kernel position along one dimension that meet an input element."""
    inputs, outputs = sizes
    return sum(
        0 <= (at := y * stride + k * spread - pad) <= (inputs - 1) * holes and at % holes == 0
        for y in range(outputs)
        for k in range(kernel)
    )


# ---------------------------------------------------------------------------------- traffic


def traffic(module: hlo.Module, one: hlo.Instruction, lines: dict[str, hlo.Instruction]) -> int:
    """Bytes that an instruction outside fusions reads from and writes to main memory."""
    kind = one.opcode
    if kind in FREE or kind.endswith("-done"):
        return 0
    if kind.endswith("-start"):  # of a copy or collective: (source, destination, flags)
        pair = hlo.arrays(one.type)[:2]
        smaller = min(math.prod(dims) * hlo.item_bytes(dtype) for dtype, dims, _ in pair)
        return int(smaller * sum("S(" not in layout for _, _, layout in pair))
    if kind == "fusion":
        sizes = enumerate(in_memory(lines[name].type) for name in one.operands)
        taken_in = sum(read(module, one, number, whole) for number, whole in sizes if whole)
        return taken_in + written(module.computations[one.attribute("calls")])
    if kind in SLICES:
        return 2 * in_memory(one.type)
    if kind == "dynamic-update-slice":
        return 2 * in_memory(lines[one.operands[1]].type)
    return in_memory(one.type) + sum(in_memory(lines[name].type) for name in one.operands)


def in_memory(kind: str) -> int:
    """Bytes of a type's arrays in main memory: `S(1)` and above are memory of the cores."""
    return int(
        sum(
            hlo.item_bytes(dtype) * math.prod(dims)
            for dtype, dims, layout in hlo.arrays(kind)
            if "S(" not in layout
        )
    )


def read(module: hlo.Module, fusion: hlo.Instruction, number: int, whole: int) -> int:
    """Bytes that a fusion reads of an operand of size `whole`: only slices if it needs no more."""
    inner = module.computations[fusion.attribute("calls")]
    parameter = next(
        i.name for i in inner.values() if i.opcode == "parameter" and i.inside == str(number)
    )
    return min(whole, taken(module, inner, parameter, whole))


def taken(module: hlo.Module, inner: dict[str, hlo.Instruction], name: str, whole: int) -> int:
    """Bytes that the instructions of a fusion read of a value of size `whole`."""
    total = 0
    for user in (i for i in inner.values() if name in i.operands):
        if user.opcode == "bitcast":
            total += taken(module, inner, user.name, whole)
        elif user.opcode == "fusion":
            total += read(module, user, user.operands.index(name), whole)
        elif user.opcode in SLICES and user.operands[0] == name:
            total += hlo.size(user.type)
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
            continue  # written in place
        else:
            return whole
    return total


def written(inner: dict[str, hlo.Instruction]) -> int:
    """Bytes that a fusion writes: only the updates, where it writes into an array in place."""
    root = next(i for i in inner.values() if i.root)
    roots = [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]
    total = 0
    for result in roots:
        result = hlo.follow(inner, result.name)
        placed = in_memory(result.type)
        if result.opcode == "dynamic-update-slice":
            placed = min(placed, hlo.size(inner[result.operands[1]].type))
        total += placed
    return total
