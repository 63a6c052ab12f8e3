"""A plan as text: a page for one recipe, a table for several."""

from collections.abc import Iterable

from firth.planning.hardware import GIB, PRICES_AS_OF, Chip

UNITS = ((1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def page(name: str, plan: dict) -> list[str]:
    """Everything about one recipe."""
    lines = [
        name,
        f"  {plan['steps']:,} updates of {plan['rows']:,} rows of {plan['length']:,} tokens: "
        f"{words(plan['tokens'])} tokens",
        *(f"  assumed: {sentence}" for sentence in plan["assumed"]),
        "",
        *_parameters(plan["parameters"]),
        "",
        *_flops(plan),
    ]
    for where in plan["hardware"]:
        lines += ["", *_hardware(where)]
    return lines


def _parameters(parts: dict) -> list[str]:
    total, trained = sums(parts)
    lines = [f"  parameters{total:>34,}" + ("" if total == trained else f", {trained:,} trained")]
    for part, counts in parts.items():
        still = "" if counts["trained"] else "  frozen"
        lines.append(f"    {part:<24}{counts['total']:>16,}{still}")
    return lines


def _flops(plan: dict) -> list[str]:
    flops = plan["flops"]
    total = sum(flops["update"].values())
    lines = [f"  FLOPs of an update{total:>26.3e}   matrix products, forward and backward"]
    for part, count in flops["update"].items():
        lines.append(f"    {part:<30}{count:>10.2e}   {count / total:6.1%}")
    lines.append(f"  FLOPs of the run{flops['run']:>28.3e}")
    if flops["recomputed"]:
        lines.append(f"    and computed again{flops['recomputed']:>24.2e}   model.remat")
    if rule := plan["electra_rule"]:
        text = f"  by ELECTRA's counting rule{rule['flops']:>18.2e}"
        if rule["model"]:
            note = f", {rule['note']}" if rule["note"] else ""
            text += f"   the paper prints {rule['printed']} for {rule['model']}{note}"
        lines.append(text)
    return lines


def _hardware(where: dict) -> list[str]:
    mesh = ", ".join(f"{axis} {size}" for axis, size in where["mesh"].items())
    kind = f" ({where['accelerator_type']})" if where["accelerator_type"] else ""
    used = sum(where["device_bytes"].values())
    lines = [f"  on {where['chips']:,} x {where['chip']}{kind}: {mesh}"]
    for what, size in where["device_bytes"].items():
        lines.append(f"    {what:<24}{size / GIB:>12.3f} GiB a device")
    room = f"{used / GIB:>12.3f} of {where['hbm'] / GIB:.1f} GiB, without activations"
    lines.append(f"    {'in all':<24}{room} (--compile counts them)")
    if used > where["hbm"]:
        over = (used - where["hbm"]) / GIB
        lines.append(f"    does not fit: {over:.3f} GiB too much; divide it, --config.mesh.fsdp=2")
    lines += [
        f"    {'time':<24}{_time(where['hours'])}, {number(where['chip_hours'])} chip-hours",
        f"    {'price':<24}{number(where['usd']):>12} USD",
        f"    {'energy':<24}{number(where['kwh']):>12} kWh",
        f"    {'emissions':<24}{number(where['kg']):>12} kg CO2e: {where['compared']}",
        *(f"    assumed: {sentence}" for sentence in where["assumed"]),
    ]
    return lines


def _time(hours: float) -> str:
    """Days; of a short run hours or minutes."""
    for size, unit in ((24, "days"), (1, "hours")):
        if hours >= 2 * size:
            return f"{number(hours / size):>12} {unit}"
    return f"{number(60 * hours):>12} minutes"


def table(plans: dict[str, dict]) -> list[str]:
    """A row for each recipe and its hardware, then the assumptions."""
    head = (
        "recipe",
        "parameters",
        "tokens",
        "FLOPs",
        "on",
        "GiB of HBM",
        "days",
        "USD",
        "kWh",
        "kg CO2e",
    )
    rows, assumed = [], {}
    for name, plan in plans.items():
        for where in plan["hardware"]:
            used = sum(where["device_bytes"].values()) / GIB
            rows.append(
                (
                    name,
                    f"{sums(plan['parameters'])[1]:,}",
                    f"{plan['tokens']:.2e}",
                    f"{plan['flops']['run']:.2e}",
                    f"{where['chips']} x {where['chip']}",
                    f"{used:.2f} of {where['hbm'] / GIB:.0f}",
                    *map(number, (where["hours"] / 24, where["usd"], where["kwh"], where["kg"])),
                )
            )
            assumed |= {f"{where['chip']}: {'; '.join(where['assumed'])}": None}
        assumed |= {f"{name}: {sentence}": None for sentence in plan["assumed"]}
    notes = ["parameters: those trained; GiB: what a device keeps, without activations"]
    return [*aligned([head, *rows]), "", *notes, *(f"assumed: {text}" for text in assumed)]


def chips_table(chips: Iterable[Chip]) -> list[str]:
    """The figures of each chip."""
    head = (
        "chip",
        "TFLOP/s",
        "HBM GiB",
        "GB/s",
        "link GB/s",
        "largest",
        "watts",
        "USD/h",
        "watts are",
    )
    rows = [
        (
            chip.name,
            f"{chip.flops / 1e12:g}",
            f"{chip.hbm / GIB:.3g}",
            f"{chip.hbm_bandwidth / 1e9:g}",
            f"{chip.link / 1e9:g}",
            "x".join(map(str, chip.torus)),
            f"{chip.watts:g}",
            f"{chip.usd:g}",
            chip.watts_are,
        )
        for chip in chips
    ]
    notes = ["TFLOP/s: peak of bfloat16 (p100, v100: float16); link: one axis, one direction"]
    notes.append(f"watts and prices are assumptions; prices on demand, {PRICES_AS_OF}")
    return [*aligned([head, *rows]), "", *notes]


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of columns: the first and the last aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join(cells))
    return lines


def sums(parts: dict) -> tuple[int, int]:
    """(all parameters, trained ones) of the parts of a plan."""
    return tuple(sum(counts[key] for counts in parts.values()) for key in ("total", "trained"))


def number(value: float) -> str:
    """Three digits of a small number, all before the point of a large one: '0.0123', '12,346'."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def words(count: float) -> str:
    """'32.8 billion'."""
    for unit, name in UNITS:
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:,}"
