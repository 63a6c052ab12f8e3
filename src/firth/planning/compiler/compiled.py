"""The train step of a recipe, compiled by the TPU compiler for described chips.

    firth plan --config bert.py:base --compile v5e:16x16

It compiles the function that `train` runs (`run.program.lay_out`), with the batch of the recipe's
view, on the devices of a described topology. Only the time is an estimate. Unless the command sets
them, some fields have the values of a good TPU run: `model.dtype` bfloat16,
`model.fused_attention`, and `model.scan`, which compiles one layer instead of N. A loop over layers
keeps all intermediate values that remat does not drop, so `model.remat` is all_dots.
"""

import dataclasses
import math
import re
import time

import jax
from jax.sharding import NamedSharding

from firth.errors import FirthError
from firth.planning import flops
from firth.planning.compiler import hlo, roofline, topology
from firth.planning.compiler.topology import Topology
from firth.planning.compiler.work import work
from firth.recipe import flatten, with_fields
from firth.run.outline import Outline, outline
from firth.run.program import check_rows, lay_out
from firth.training import partition

# Set unless the command does, SCANNED as a whole; fields that a recipe lacks are left out.
OPEN = {"model.dtype": "bfloat16", "model.fused_attention": True}
SCANNED = {"model.scan": True, "model.remat": "all_dots"}
# JAX cannot print programs with lookups on the SparseCores (of v5p, v6e).
OPTIONS = {"xla_tpu_offload_gather_to_sparsecore": "false"}
# Changes to try, in this order, when a step does not fit.
REMEDIES = (
    {"model.remat": "all_dots"},
    {"model.remat": "dots"},
    {"model.remat": "full"},
    {"model.remat": "full", "accumulate": 4},
    {"model.remat": "full", "mesh.fsdp": -1, "mesh.data": 1},
)
LARGEST = ("rows_a_chip", "memory", "mfu", "seconds")  # reported of the step with the most rows
MEMORY = ("arguments", "temporaries", "outputs", "program")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
GIB = 2**30


class TooLargeError(FirthError):
    """A program needs more memory than a chip has; `needed` and `available` are bytes."""

    def __init__(self, needed: int, available: int):
        """Say by how much."""
        self.needed, self.available = needed, available
        super().__init__(
            f"needs {needed / GIB:.1f} GiB of {available / GIB:.1f} GiB, "
            f"{(needed - available) / GIB:.1f} GiB too much"
        )


# ---------------------------------------------------------------------------------- a report


def report(
    config, topologies: list[str], mesh: str | None = None, given=(), largest: bool = False
) -> dict[str, dict]:
    """Memory, work and time of a recipe's step on each of some slices: {slice: plain numbers}.

    Args:
      config: a pretraining recipe.
      topologies: slices, "v5e:16x16" or "2*v5e:16x16".
      mesh: "auto" compiles for several splits of the devices and reports the fastest that fits.
      given: fields that the user has set and that stay ("model.scan"), or the arguments of the
        command line ("--config.model.scan=False").
      largest: also search the most rows a chip that fit.

    The report of a step that does not fit has `fits` False, the bytes over, and a change that would
    help. Raises FirthError for an unknown slice, without libtpu, and as training does.
    """
    jax.config.update("jax_threefry_partitionable", True)  # as in training
    slices = [topology.parse(text) for text in topologies]  # errors before any compilation
    given = {re.sub(r"^--config\.|=.*", "", name) for name in given}
    return {one.name: slice_report(config, one, mesh, given, largest) for one in slices}


def slice_report(config, where: Topology, mesh: str | None, given: set[str], largest: bool) -> dict:
    """The report of one slice."""
    fields = flatten(config).keys() - given
    changed = {name: value for name, value in OPEN.items() if name in fields}
    if "model.scan" not in given and scans(with_fields(config, changed)):
        changed |= {name: value for name, value in SCANNED.items() if name in fields}
    if where.slices > 1:
        changed["mesh.slices"] = where.slices
    config = with_fields(config, changed)
    one = fastest(config, where) if mesh == "auto" else compile_report(config, where)
    if not one["fits"]:
        one["helps"] = first_remedy(config, where, given)
    elif largest:
        one["largest"] = largest_batch(config, where, one)
    one["set"] = {name: str(value) for name, value in changed.items()}
    return one


def scans(config) -> bool:
    """Whether the layers of a recipe can be a loop.

    Recurrent and other networks refuse it, and so do ModernBERT's attention kernels.
    """
    known = {name: value for name, value in SCANNED.items() if name in flatten(config)}
    try:
        outline(with_fields(config, known))
    except FirthError:
        return False
    return True


def compile_report(config, where: Topology) -> dict:
    """The report of one compilation, or of its failure to fit."""
    outlined, started, used = outline(config), time.perf_counter(), time.process_time()
    try:
        compiled, mesh = compile_step(outlined, where)
        result = {"fits": True} | measured(outlined, compiled, mesh, where)
    except TooLargeError as error:
        result = {
            "fits": False,
            "needed": error.needed,
            "available": error.available,
            "over": error.needed - error.available,
        }
    rows, length = outlined.batch["tokens"].shape
    sizes = partition.mesh_sizes(config.mesh, where.chips)
    return {
        "chips": where.chips,
        "mesh": dict(zip(partition.AXES, sizes, strict=True)),
        "rows_a_chip": rows / where.chips,
        "length": length,
        "accumulate": config.accumulate,
        "remat": outlined.spec.get("remat"),
        "rng": config.rng,
        **result,
        "compile_seconds": round(time.perf_counter() - started, 1),
        "compile_cpu_seconds": round(time.process_time() - used, 1),
    }


def compile_step(outlined: Outline, where: Topology):
    """The compiled step and its mesh; raises TooLargeError, and FirthError as training does."""
    config = outlined.config
    mesh = partition.create_mesh(config.mesh, topology.devices(where))
    check_rows(config, mesh)
    program = lay_out(outlined.model, outlined.objective, config, outlined.steps, mesh)
    rows = NamedSharding(mesh, partition.BATCH)
    batch = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=rows)
        for name, array in outlined.batch.items()
    }
    try:
        with jax.set_mesh(mesh):
            return program.step.lower(program.state, batch).compile(OPTIONS), mesh
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise out_of_memory(str(error), where) from None


def out_of_memory(message: str, where: Topology) -> FirthError:
    """The error of a compiler that says "... (40.25G) exceeds available HBM (15.75G)"."""
    sizes = [float(n) * UNITS[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)([KMG])\b", message)]
    if len(sizes) < 2:
        return FirthError(f"{where.name}: {message.splitlines()[0]}")
    return TooLargeError(int(sizes[0]), int(sizes[1]))


def measured(outlined: Outline, compiled, mesh, where: Topology) -> dict:
    """Memory, work and communication of a compiled step, and the time they take."""
    module = hlo.parse(compiled.as_text())
    sent, done = hlo.collectives(module, mesh.shape), work(module, where.chip)
    times = roofline.step_time(done, sent, mesh, where)
    model = sum(flops.update_flops(outlined).values())
    rows, length = outlined.batch["tokens"].shape
    hours = outlined.steps * times.step / 3600
    clock = roofline.CLOCK[where.chip.name]
    return {
        "memory": memory(compiled, where),
        "flops": done.flops,
        "model_flops": model / where.chips,
        "hbm_bytes": done.hbm_bytes,
        "collectives": [
            {"kind": kind, "axes": list(axes), "count": count, "bytes": size}
            for (kind, axes), (count, size) in sorted(hlo.totals(sent).items())
        ],
        "sent_bytes": roofline.ring_bytes(sent),
        "seconds": {
            **{name: value for name, value in dataclasses.asdict(times).items()},
            "least": times.least,
            "step": times.step,
        },
        "bound": times.bound,
        "mfu": roofline.utilisation(model, times.step, where),
        "mfu_at_most": roofline.utilisation(model, times.least, where),
        "tokens_per_second": rows * length / times.step,
        "hours": hours,
        "chip_hours": hours * where.chips,
        "usd": hours * where.chips * where.chip.usd,
        "costliest": {name: n / clock for name, n in list(done.parts.items())[:8]},
        "unknown_loops": hlo.unknown_loops(module),
        "assumed": [*outlined.assumed, *roofline.assumptions(where)],
    }


def memory(compiled, where: Topology) -> dict[str, int]:
    """Bytes on each chip; arrays that the step updates in place count once."""
    stats = compiled.memory_analysis()
    sizes = {
        "arguments": stats.argument_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "outputs": stats.output_size_in_bytes - stats.alias_size_in_bytes,
        "program": stats.generated_code_size_in_bytes,
    }
    return sizes | {
        "total": sum(sizes.values()),
        "in_place": stats.alias_size_in_bytes,
        "hbm": where.chip.hbm,
    }


# ------------------------------------------------------------------------------- searches


def first_remedy(config, where: Topology, given: set[str]) -> dict | None:
    """The first remedy with which a step fits, and its report; None if none helps."""
    for changes in REMEDIES:
        changed = with_fields(config, changes)
        if given & set(changes) or changed == config:
            continue
        try:
            one = compile_report(changed, where)
        except FirthError:  # the batch or the parameters do not divide so
            continue
        if one["fits"]:
            return {"changes": changes, **one}
    return None


def fastest(config, where: Topology) -> dict:
    """The report of the fastest split of the devices that fits; `splits` lists all of them."""
    body = outline(config).model.encoder.config
    heads = getattr(body, "num_heads", 1)  # a body without attention is not divided by heads
    best, splits = None, []
    for fsdp, tensor in candidates(where.chips // where.slices, heads):
        data = where.chips // (fsdp * tensor)
        sizes = {"mesh.data": data, "mesh.fsdp": fsdp, "mesh.tensor": tensor}
        try:
            one = compile_report(with_fields(config, sizes), where)
        except FirthError:
            continue  # this split does not divide the batch
        splits.append(
            {**one["mesh"], "fits": one["fits"]}
            | ({"step": one["seconds"]["step"]} if one["fits"] else {"over": one["over"]})
        )
        if best is None or speed(one) > speed(best):
            best = one
    if best is None:
        raise FirthError(
            f"--mesh=auto: no split of {where.chips} chips divides batch_size="
            f"{config.batch_size} by accumulate={config.accumulate}"
        )
    return best | {"splits": splits}


def speed(one: dict) -> float:
    """Key to compare reports: updates a second if the step fits, otherwise minus the bytes over."""
    return 1 / one["seconds"]["step"] if one["fits"] else -one["over"]


def candidates(chips: int, heads: int) -> list[tuple[int, int]]:
    """Splits (fsdp, tensor) of a slice worth compiling; `data` takes the rest."""
    parts = sorted({1, math.gcd(chips, 8), chips})
    splits = [(fsdp, 1) for fsdp in parts]
    splits += [(1, tensor) for tensor in (2, 4) if chips % tensor == 0 and heads % tensor == 0]
    return splits


def largest_batch(config, where: Topology, one: dict) -> dict:
    """The most rows a chip, at this accumulation, that fit: `rows_a_chip`, and the step with them.

    Memory is nearly affine in the rows: two compilations give the line, a third the proof. After a
    step that does not fit, the next has an eighth fewer rows.
    """
    rows = one["rows_a_chip"]

    def at(number: int) -> dict:
        size = number * where.chips
        return compile_report(with_fields(config, {"batch_size": size}), where)

    unit = config.accumulate
    half = int(rows / 2) // unit * unit
    other = at(half or 2 * int(rows))
    if not other["fits"]:
        return {key: one[key] for key in LARGEST}
    slope = (one["memory"]["total"] - other["memory"]["total"]) / (rows - other["rows_a_chip"])
    room = where.chip.hbm * 0.98 - one["memory"]["total"]
    number = int(rows + room / slope) // unit * unit
    while number > rows:
        proof = at(number)
        if proof["fits"]:
            return {key: proof[key] for key in LARGEST}
        number = min(number - unit, number * 7 // 8 // unit * unit)
    return {key: one[key] for key in LARGEST}


# ----------------------------------------------------------------------------------- in words


def lines(name: str, reports: dict[str, dict]) -> list[str]:
    """The reports of a recipe as text."""
    return [line for where, one in reports.items() for line in ["", *describe(name, where, one)]]


def describe(name: str, where: str, one: dict) -> list[str]:
    """The report of one slice as text."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in one["mesh"].items() if size > 1)
    set_ = ", ".join(f"{field}={value}" for field, value in one.get("set", {}).items())
    head = [
        f"{name} compiled for {where}: {one['chips']} chips, {mesh or 'one device'}, "
        f"{one['rows_a_chip']:g} x {one['length']} a chip, remat {one['remat']}, "
        f"accumulate {one['accumulate']}, rng {one['rng']}",
        f"  set            {set_ or 'nothing'} (unless the command says otherwise)",
        f"  compiled in    {one['compile_seconds']} s ({one['compile_cpu_seconds']} s of CPU)",
    ]
    if not one["fits"]:
        text = [
            f"  DOES NOT FIT   needs {gib(one['needed'])}, there are {gib(one['available'])}: "
            f"{gib(one['over'])} too much"
        ]
        if helps := one.get("helps"):
            changes = " ".join(f"--config.{field}={v}" for field, v in helps["changes"].items())
            text += [f"  it fits with   {changes}", *body(helps)]
        elif "helps" in one:
            text += ["  no remat, accumulation or fsdp that was tried makes it fit: fewer rows"]
        return head + text
    return head + body(one)


def body(one: dict) -> list[str]:
    """Memory, work, communication and time of a step that fits, as text."""
    used, seconds = one["memory"], one["seconds"]
    text = [
        f"  memory a chip  {gib(used['total'])} of {gib(used['hbm'])}: "
        + ", ".join(f"{part} {gib(used[part])}" for part in MEMORY),
        f"  a step         {one['flops'] / 1e12:.2f} TFLOP a chip "
        f"({one['model_flops'] / 1e12:.2f} by formula), {one['hbm_bytes'] / 1e9:.1f} GB of HBM, "
        f"{one['sent_bytes'] / 1e9:.2f} GB sent",
    ]
    text += [
        f"  collective     {c['kind']} over {' and '.join(c['axes'])}: {c['count']} of "
        f"{c['bytes'] / 1e6:.1f} MB together"
        for c in one["collectives"]
    ]
    times = ("compute", "memory", "expected", "exposed")
    text += [
        f"  time           {1e3 * seconds['step']:.1f} ms a step, bound by {one['bound']}: "
        + ", ".join(f"{part} {1e3 * seconds[part]:.1f}" for part in times)
        + f"; at least {1e3 * seconds['least']:.1f}",
        "  costliest      "
        + ", ".join(f"{part} {1e3 * t:.1f} ms" for part, t in list(one["costliest"].items())[:4]),
        f"  predicted      MFU {one['mfu']:.1%} (roofline {one['mfu_at_most']:.1%}), "
        f"{one['tokens_per_second']:,.0f} tokens/s",
        f"  whole run      {one['hours']:,.1f} h, {one['chip_hours']:,.0f} chip-hours, "
        f"{one['usd']:,.0f} USD",
    ]
    if "largest" in one:
        most = one["largest"]
        text += [f"  at most        {most['rows_a_chip']:g} rows a chip, MFU {most['mfu']:.1%}"]
    for split in one.get("splits", ()):
        sizes = " x ".join(f"{axis} {split[axis]}" for axis in partition.AXES)
        verdict = f"{1e3 * split['step']:.1f} ms" if split["fits"] else "does not fit"
        text += [f"  split          {sizes}: {verdict}"]
    text += [
        f"  not known      how often {loop} turns; counted once" for loop in one["unknown_loops"]
    ]
    return text + [f"  assumed        {item}" for item in one["assumed"]]


def gib(size: float) -> str:
    """Bytes in GiB."""
    return f"{size / GIB:.2f} GiB"
