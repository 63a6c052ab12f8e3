"""Optimised HLO as text: its instructions, how often each runs, and what it sends between devices.

`collectives(compiled.as_text(), mesh.shape)` lists all that a compiled step sends. It counts the
bodies of loops as often as they run; the compiler's own cost analysis counts them once. XLA writes
the text for CPU, GPU and TPU; https://openxla.org/xla/operation_semantics defines the operations.
"""

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
ARRAY = re.compile(r"\b(pred|[sufc]\d+|bf16|f8\w+|token)\[([\d,]*)\](?:\{([^}]*)\})?")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line: its result's type, operation, the names of its operands, and its attributes."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    inside: str  # the text between the parentheses
    attributes: str
    root: bool

    def attribute(self, key: str) -> str | None:
        """The name after `key=`, for instance of a called computation."""
        match = re.search(rf"\b{key}=%?([\w.\-]+)", self.attributes)
        return match[1] if match else None


@dataclasses.dataclass(frozen=True)
class Module:
    """A parsed program: its computations, instructions by name, and its entry computation.

    `loops` maps the body and the condition of every loop to (computation, instruction) of the loop.
    """

    computations: dict[str, dict[str, Instruction]]
    entry: str
    loops: dict[str, tuple[str, Instruction]]

    def root(self, computation: str) -> Instruction:
        """The instruction whose value a computation returns."""
        return next(i for i in self.computations[computation].values() if i.root)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One communicating instruction of a step.

    `bytes` is the size of the whole array on one device of the group, each time: input and output
    of an all-reduce, all-to-all or permutation, the output of an all-gather, the input of a
    reduce-scatter. `axes` are the axes of the mesh along which its devices differ, `group` how many
    take part, `times` how often it runs a step, `asynchronous` whether other work runs meanwhile,
    and `source` the line of the model behind it.
    """

    kind: str
    bytes: int
    axes: tuple[str, ...]
    group: int
    times: int
    dtype: str
    asynchronous: bool
    source: str

    @property
    def sent(self) -> float:
        """Bytes that each device sends over a step when the group forms a ring."""
        ways = {"all-reduce": 2 * (self.group - 1) / self.group, "collective-permute": 1.0}
        return self.times * self.bytes * ways.get(self.kind, (self.group - 1) / self.group)


def parse(text: str) -> Module:
    """Parse `compiled.as_text()`; raises ValueError for a text without an entry."""
    computations, current, entry = {}, None, None
    for line in text.splitlines():
        if head := HEAD.match(line):
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif current is not None and (match := LINE.match(line)):
            instruction = read_instruction(bool(match[1]), match[2], match[3])
            current[instruction.name] = instruction
    if entry is None:
        raise ValueError("this text holds no ENTRY computation; expected optimised HLO")
    loops = {
        instruction.attribute(part): (name, instruction)
        for name, lines in computations.items()
        for instruction in lines.values()
        if instruction.opcode == "while"
        for part in ("body", "condition")
    }
    return Module(computations, entry, loops)


def read_instruction(root: bool, name: str, rest: str) -> Instruction:
    """The instruction of one line, after its name and equals sign."""
    end = closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    kind, rest = rest[:end], rest[end:].lstrip()
    start = rest.index("(")
    end = closing(rest, start)
    inside = rest[start + 1 : end - 1]
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    return Instruction(name, kind, rest[:start], operands, inside, rest[end:], root)


def closing(text: str, start: int) -> int:
    """The position after the parenthesis that closes the one at `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at + 1
    raise ValueError(f"a parenthesis is not closed in {text[start : start + 80]!r}")


def item_bytes(dtype: str) -> float:
    """Bytes of an element of an HLO type; sub-byte types count their bits."""
    if dtype in ("pred", "token"):
        return 1 if dtype == "pred" else 0
    return int(re.search(r"\d+", dtype)[0]) / 8


def arrays(kind: str) -> list[tuple[str, tuple[int, ...], str]]:
    """(element type, dimensions, layout) of every array of a type, tuples flattened."""
    return [
        (dtype, tuple(int(n) for n in dims.split(",") if n), layout)
        for dtype, dims, layout in ARRAY.findall(kind)
    ]


def size(kind: str) -> int:
    """Bytes of a type, of tuples the sum."""
    return int(sum(item_bytes(dtype) * math.prod(dims) for dtype, dims, _ in arrays(kind)))


# ------------------------------------------------------------------ how often everything runs


def executions(module: Module) -> dict[str, int]:
    """How often a step runs each computation; loops with an unknown trip count run once.

    It leaves out computations on scalars (of a reduction or a sort), and counts every branch of a
    conditional as taken.
    """
    times: Counter[str] = Counter()

    def visit(computation: str, factor: int):
        times[computation] += factor
        for instruction in module.computations[computation].values():
            for called, often in calls(module, computation, instruction):
                visit(called, factor * often)

    visit(module.entry, 1)
    return dict(times)


def calls(module: Module, computation: str, instruction: Instruction) -> Iterator[tuple[str, int]]:
    """(computation, how often) that one run of an instruction runs."""
    opcode = instruction.opcode
    if opcode == "while":
        often = trip_count(module, computation, instruction) or 1
        yield instruction.attribute("body"), often
        yield instruction.attribute("condition"), often
    elif opcode in ("fusion", "call", "async-start"):
        yield instruction.attribute("calls") or instruction.attribute("to_apply"), 1
    elif opcode == "conditional":
        branches = BRANCHES.search(instruction.attributes)
        names = re.findall(r"[\w.\-]+", branches[1]) if branches else []
        keys = ("true_computation", "false_computation")
        for name in names or [instruction.attribute(key) for key in keys]:
            yield name, 1


def unknown_loops(module: Module) -> list[str]:
    """The loops whose trip count is not in the text."""
    return [
        f"{computation}/{instruction.name}"
        for computation, lines in module.computations.items()
        for instruction in lines.values()
        if instruction.opcode == "while" and trip_count(module, computation, instruction) is None
    ]


def trip_count(module: Module, computation: str, loop: Instruction) -> int | None:
    """How often a loop runs: by XLA's own count or by its counter; None if both are missing.

    The TPU compiler writes no count. Its loops compare a counter with a constant. The counter is an
    element of their tuple that starts at a constant and grows by a constant.
    """
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(known[1])
    condition, body = loop.attribute("condition"), loop.attribute("body")
    test = module.root(condition)
    if test.opcode != "compare" or "direction=LT" not in test.attributes:
        return None
    index = element(module, condition, test.operands[0])
    start = module.computations[computation][loop.operands[0]]
    if index is None or start.opcode != "tuple":
        return None
    first = constant(module, computation, start.operands[index])
    limit = constant(module, condition, test.operands[1])
    step = increment(module, body, index)
    if first is None or limit is None or not step:
        return None
    return max(0, math.ceil((limit - first) / step))


def increment(module: Module, body: str, index: int) -> int | None:
    """The constant that each turn of a loop adds to an element of its tuple, or None."""
    result = module.root(body)
    change = follow(module.computations[body], result.operands[index])
    if change.opcode != "add":
        return None
    a, b = change.operands
    for counter, amount in ((a, b), (b, a)):
        if element(module, body, counter) == index:
            return constant(module, body, amount)
    return None


def follow(lines: dict[str, Instruction], name: str) -> Instruction:
    """The instruction behind a value, through copies."""
    instruction = lines[name]
    while instruction.opcode in ("copy", "bitcast") and instruction.operands:
        instruction = lines[instruction.operands[0]]
    return instruction


def element(module: Module, computation: str, name: str) -> int | None:
    """The index of a value in the tuple of its computation's parameter, or None."""
    lines = module.computations[computation]
    instruction = follow(lines, name)
    if instruction.opcode != "get-tuple-element":
        return None
    if follow(lines, instruction.operands[0]).opcode != "parameter":
        return None
    return int(re.search(r"index=(\d+)", instruction.attributes)[1])


def constant(module: Module, computation: str, name: str) -> int | None:
    """A constant integer, also one that comes through loops unchanged; otherwise None."""
    instruction = follow(module.computations[computation], name)
    if instruction.opcode == "constant":
        return int(instruction.inside) if re.fullmatch(r"-?\d+", instruction.inside) else None
    index = element(module, computation, name)
    if index is None or computation not in module.loops:
        return None
    outer, loop = module.loops[computation]
    body, start = loop.attribute("body"), module.computations[outer][loop.operands[0]]
    if start.opcode != "tuple" or element(module, body, module.root(body).operands[index]) != index:
        return None
    return constant(module, outer, start.operands[index])


# --------------------------------------------------------------------------- what is sent


def collectives(text: str | Module, axes: Mapping[str, int]) -> list[Collective]:
    """Everything a compiled program sends between devices.

    `axes` are names and sizes of the mesh in its order, as in `mesh.shape`. Collectives of one
    device are left out. The TPU compiler turns a reduce-scatter into an all-reduce inside a fusion
    that keeps a slice; this counts as a reduce-scatter.
    """
    module = parse(text) if isinstance(text, str) else text
    sent = []
    for computation, times in executions(module).items():
        lines = module.computations[computation]
        opens = any('"AsyncCollectiveStart"' in i.attributes for i in lines.values())
        for instruction in lines.values():
            kind = instruction.opcode.removesuffix("-start")
            spread = "async_collective_fusion_config" in instruction.attributes
            if kind not in KINDS or (spread and not opens):  # a later part of one counted already
                continue
            groups = read_groups(instruction.attributes, math.prod(axes.values()))
            if groups.shape[1] < 2:
                continue
            if kind == "all-reduce" and "all-reduce-scatter" in computation:
                kind = "reduce-scatter"
            members = groups.shape[1] if kind != "collective-permute" else 2
            input_bytes = sum(size(lines[name].type) for name in instruction.operands)
            sent.append(
                Collective(
                    kind=kind,
                    bytes=input_bytes * members if kind == "all-gather" else input_bytes,
                    axes=crossed(groups, axes),
                    group=members,
                    times=times,
                    dtype=arrays(lines[instruction.operands[0]].type)[0][0],
                    asynchronous=spread or instruction.opcode.endswith("-start"),
                    source=source(instruction),
                )
            )
    return sent


def totals(sent: list[Collective]) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
    """(how many, bytes) a step for every (kind, axes)."""
    sums = defaultdict(lambda: (0, 0))
    for one in sent:
        count, moved = sums[one.kind, one.axes]
        sums[one.kind, one.axes] = count + one.times, moved + one.times * one.bytes
    return dict(sums)


def source(instruction: Instruction) -> str:
    """The place of an instruction in the traced program."""
    named = re.search(r'op_name="([^"]*)"', instruction.attributes)
    return named[1] if named else instruction.name


def read_groups(attributes: str, devices: int) -> np.ndarray:
    """The communicating groups, [groups, members] of positions in the mesh; for pairs, [pairs, 2].

    XLA writes them out, `{{0,1},{2,3}}`, as an iota, `[2,2]<=[4]` or `[2,2]<=[2,2]T(1,0)`, or by
    the axes of a mesh of its own, `mesh['a'=2,'b'=2] {'b'}`.
    """
    if pairs := re.search(r"source_target_pairs=\{(\{.*?\})\}", attributes):
        sent = [[int(n) for n in pair.split(",")] for pair in re.findall(r"{([\d,]+)}", pairs[1])]
        return np.array([pair for pair in sent if pair[0] != pair[1]] or [[0]])
    if lists := re.search(r"replica_groups=\{(\{.*?\})\}", attributes):
        return np.array(
            [[int(n) for n in g.split(",")] for g in re.findall(r"{([\d,]+)}", lists[1])]
        )
    if iota := re.search(r"replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)", attributes):
        return read_iota(iota[1])
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\]([^{]*)\{([^}]*)\}", attributes):
        return read_axes(*mesh.groups())
    return np.arange(devices)[None]


def read_iota(text: str) -> np.ndarray:
    """`[2,4]<=[4,2]T(1,0)`: the numbers from 0, shaped, transposed and shaped again."""
    shape, dims, order = re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text).groups()
    shape, dims = ([int(n) for n in part.split(",")] for part in (shape, dims))
    ids = np.arange(math.prod(dims)).reshape(dims)
    if order:
        ids = ids.transpose([int(n) for n in order.split(",")])
    return ids.reshape(shape)


def read_axes(mesh: str, ids: str, grouped: str) -> np.ndarray:
    """`mesh['a'=4,'b'=2] {'a':(2)2}`: groups along axes, or along a part of one.

    `'a':(2)2` is the part of size 2 that repeats every 4 / (2 * 2): the axis is cut into the size
    before (2), the part (2) and the rest.
    """
    sizes = {name: int(n) for name, n in re.findall(r"(\w+)'?\"?=(\d+)", mesh)}
    order = np.arange(math.prod(sizes.values()))
    if iota := re.search(r"\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?", ids):
        order = read_iota(iota[0]).reshape(-1)
    parts = {}  # axis -> (before, size)
    for name, before, part in re.findall(r"(\w+)'?\"?(?::\((\d+)\)(\d+))?", grouped):
        parts[name] = (int(before or 1), int(part or sizes[name]))
    dims, moved = [], []
    for name, full in sizes.items():
        before, part = parts.get(name, (full, 1))
        moved += [len(dims) + 1] if name in parts else []
        dims += [before, part, full // (before * part)]
    fixed = [axis for axis in range(len(dims)) if axis not in moved]
    members = math.prod(dims[axis] for axis in moved)
    return order.reshape(dims).transpose(fixed + moved).reshape(-1, members)


def crossed(groups: np.ndarray, axes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of the mesh along which the members of a group differ."""
    places = np.unravel_index(groups, tuple(axes.values()))
    return tuple(name for name, at in zip(axes, places, strict=True) if (at != at[:, :1]).any())
