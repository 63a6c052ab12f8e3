"""The train step of a recipe, compiled by the TPU compiler for chips that are not here.

    firth plan --config bert.py:base --compile v5e:16x16

What runs is the function that `train` runs (program.lay_out), with the batch that the recipe's
view yields, on the devices of a described topology: nothing is estimated but the time. Where the
command leaves them open, the step is compiled as it would run on a TPU: `model.dtype` bfloat16,
`model.fused_attention`, and `model.scan`, which compiles one layer instead of N. Of the layers of
a loop the compiler keeps all that it is not told to compute again, so they are compiled with
`model.remat` all_dots.
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

# Set unless the command does, the last two together; what a recipe has no field for is left out.
OPEN = {"model.dtype": "bfloat16", "model.fused_attention": True}
SCANNED = {"model.scan": True, "model.remat": "all_dots"}
# JAX cannot print programs whose lookups run on the SparseCores (of v5p, v6e).
OPTIONS = {"xla_tpu_offload_gather_to_sparsecore": "false"}
# What is tried, in this order, when a step does not fit.
REMEDIES = (
    {"model.remat": "all_dots"},
    {"model.remat": "dots"},
    {"model.remat": "full"},
    {"model.remat": "full", "accumulate": 4},
    {"model.remat": "full", "mesh.fsdp": -1, "mesh.data": 1},
)
KEPT = ("rows_a_chip", "memory", "mfu", "seconds")  # of the step with the most rows
MEMORY = ("arguments", "temporaries", "outputs", "program")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
GIB = 2**30


class TooLargeError(FirthError):
    """A program that needs more memory than a chip has; `needed` and `available` are bytes."""

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
    """What the step of a recipe takes on each of some slices, `{slice: plain numbers}`.

    Args:
      config: a pretraining recipe.
      topologies: slices, "v5e:16x16" or "2*v5e:16x16".
      mesh: "auto" compiles for several splits of the devices and reports the fastest that fits.
      given: names of fields that the user has set, which stay ("model.scan"); the arguments of the
        command line will do ("--config.model.scan=False").
      largest: also search the most rows a chip that fit.

    A step that does not fit is reported with `fits` False, by how much, and what would help. Raises
    FirthError for a slice that does not exist, without libtpu, and as training does.
    """
    jax.config.update("jax_threefry_partitionable", True)  # as in training
    slices = [topology.parse(text) for text in topologies]  # all of them, before any is compiled
    given = {re.sub(r"^--config\.|=.*", "", name) for name in given}
    return {one.name: cell(config, one, mesh, given, largest) for one in slices}


def cell(config, where: Topology, mesh: str | None, given: set[str], largest: bool) -> dict:
    """The report of one slice."""
    open_ = OPEN if "model.scan" in given else OPEN | SCANNED
    fields = flatten(config)
    changed = {name: v for name, v in open_.items() if name in fields and name not in given}
    if where.slices > 1:
        changed["mesh.slices"] = where.slices
    config = with_fields(config, changed)
    found = fastest(config, where) if mesh == "auto" else tried(config, where)
    if not found["fits"]:
        found["helps"] = helping(config, where, given)
    elif largest:
        found["largest"] = largest_batch(config, where, found)
    found["set"] = {name: str(value) for name, value in changed.items()}
    return found


def tried(config, where: Topology) -> dict:
    """The report of one compilation, or of its failure to fit."""
    outlined, started, used = outline(config), time.perf_counter(), time.process_time()
    try:
        compiled, mesh = compile_step(outlined, where)
        found = {"fits": True} | measured(outlined, compiled, mesh, where)
    except TooLargeError as error:
        found = {
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
        **found,
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
    """What a compiled step says of memory, work and communication, and the time they take."""
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
    """Bytes on each chip; what the step takes in and gives back in place counts once."""
    stats = compiled.memory_analysis()
    found = {
        "arguments": stats.argument_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "outputs": stats.output_size_in_bytes - stats.alias_size_in_bytes,
        "program": stats.generated_code_size_in_bytes,
    }
    return found | {
        "total": sum(found.values()),
        "in_place": stats.alias_size_in_bytes,
        "hbm": where.chip.hbm,
    }


# ------------------------------------------------------------------------------- searches


def helping(config, where: Topology, given: set[str]) -> dict | None:
    """The first remedy with which a step fits, and its report; None if no one does."""
    for changes in REMEDIES:
        changed = with_fields(config, changes)
        if given & set(changes) or changed == config:
            continue
        try:
            found = tried(changed, where)
        except FirthError:  # accumulating or dividing that the batch or the parameters forbid
            continue
        if found["fits"]:
            return {"changes": changes, **found}
    return None


def fastest(config, where: Topology) -> dict:
    """The report of the fastest split of the devices that fits; `splits` has them all."""
    heads = outline(config).model.encoder.config.num_heads
    best, splits = None, []
    for fsdp, tensor in candidates(where.chips // where.slices, heads):
        data = where.chips // (fsdp * tensor)
        sizes = {"mesh.data": data, "mesh.fsdp": fsdp, "mesh.tensor": tensor}
        try:
            found = tried(with_fields(config, sizes), where)
        except FirthError:
            continue  # this split divides the batch no further
        splits.append(
            {**found["mesh"], "fits": found["fits"]}
            | ({"step": found["seconds"]["step"]} if found["fits"] else {"over": found["over"]})
        )
        if best is None or speed(found) > speed(best):
            best = found
    if best is None:
        raise FirthError(
            f"--mesh=auto: no split of {where.chips} chips divides batch_size="
            f"{config.batch_size} by accumulate={config.accumulate}"
        )
    return best | {"splits": splits}


def speed(found: dict) -> float:
    """What reports are compared by: updates a second, and below all those how little is lacking."""
    return 1 / found["seconds"]["step"] if found["fits"] else -found["over"]


def candidates(chips: int, heads: int) -> list[tuple[int, int]]:
    """Splits (fsdp, tensor) of a slice worth compiling; `data` takes the rest."""
    parts = sorted({1, math.gcd(chips, 8), chips})
    splits = [(fsdp, 1) for fsdp in parts]
    splits += [(1, tensor) for tensor in (2, 4) if chips % tensor == 0 and heads % tensor == 0]
    return splits


def largest_batch(config, where: Topology, found: dict) -> dict:
    """The most rows a chip, at this accumulation, that fit: `rows_a_chip`, and the step with them.

    Memory is nearly affine in the rows: two compilations give the line, a third the proof. Each one
    that does not fit takes an eighth off.
    """
    rows = found["rows_a_chip"]

    def at(number: int) -> dict:
        size = number * where.chips
        return tried(with_fields(config, {"batch_size": size}), where)

    unit = config.accumulate
    half = int(rows / 2) // unit * unit
    other = at(half or 2 * int(rows))
    if not other["fits"]:
        return {key: found[key] for key in KEPT}
    slope = (found["memory"]["total"] - other["memory"]["total"]) / (rows - other["rows_a_chip"])
    room = where.chip.hbm * 0.98 - found["memory"]["total"]
    number = int(rows + room / slope) // unit * unit
    while number > rows:
        proof = at(number)
        if proof["fits"]:
            return {key: proof[key] for key in KEPT}
        number = min(number - unit, number * 7 // 8 // unit * unit)
    return {key: found[key] for key in KEPT}


# ----------------------------------------------------------------------------------- in words


def lines(name: str, found: dict[str, dict]) -> list[str]:
    """The reports of a recipe as text."""
    return [line for where, one in found.items() for line in ["", *describe(name, where, one)]]


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
        said = [
            f"  DOES NOT FIT   needs {gib(one['needed'])}, there are {gib(one['available'])}: "
            f"{gib(one['over'])} too much"
        ]
        if helps := one.get("helps"):
            changes = " ".join(f"--config.{field}={v}" for field, v in helps["changes"].items())
            said += [f"  it fits with   {changes}", *body(helps)]
        elif "helps" in one:
            said += ["  no remat, accumulation or fsdp that was tried makes it fit: fewer rows"]
        return head + said
    return head + body(one)


def body(one: dict) -> list[str]:
    """Memory, work, communication and time of a step that fits, as text."""
    kept, seconds = one["memory"], one["seconds"]
    said = [
        f"  memory a chip  {gib(kept['total'])} of {gib(kept['hbm'])}: "
        + ", ".join(f"{part} {gib(kept[part])}" for part in MEMORY),
        f"  a step         {one['flops'] / 1e12:.2f} TFLOP a chip "
        f"({one['model_flops'] / 1e12:.2f} by formula), {one['hbm_bytes'] / 1e9:.1f} GB of HBM, "
        f"{one['sent_bytes'] / 1e9:.2f} GB sent",
    ]
    said += [
        f"  collective     {c['kind']} over {' and '.join(c['axes'])}: {c['count']} of "
        f"{c['bytes'] / 1e6:.1f} MB together"
        for c in one["collectives"]
    ]
    times = ("compute", "memory", "expected", "exposed")
    said += [
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
        said += [f"  at most        {most['rows_a_chip']:g} rows a chip, MFU {most['mfu']:.1%}"]
    for split in one.get("splits", ()):
        sizes = " x ".join(f"{axis} {split[axis]}" for axis in partition.AXES)
        verdict = f"{1e3 * split['step']:.1f} ms" if split["fits"] else "does not fit"
        said += [f"  split          {sizes}: {verdict}"]
    said += [
        f"  not known      how often {loop} turns; counted once" for loop in one["unknown_loops"]
    ]
    return said + [f"  assumed        {item}" for item in one["assumed"]]


def gib(size: float) -> str:
    """Bytes in GiB."""
    return f"{size / GIB:.2f} GiB"
