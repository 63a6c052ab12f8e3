"""What a run takes before it runs: parameters, FLOPs, memory, days, money, energy, emissions.

    firth plan --config bert.py:base --chips v5e:16
    firth plan --config bert.py:base --config electra.py:base --chips v5e:16 --chart costs.png

Nothing is trained and no data is read. Counts follow from the recipe exactly; what they cost
follows from assumptions, which are printed beside it.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import jax

from firth import recipe
from firth.errors import FirthError
from firth.outline import outline
from firth.planning import cost, electra_rule, flops, memory, report
from firth.planning.hardware import CHIPS, Chip, parse_chips
from firth.training.partition import AXES, mesh_sizes

FREEZES = ("FLOPs as if nothing were frozen (optimizer.freeze)",)


def plan(config, hardware: list[tuple[Chip, int]], assumed: cost.Assumptions) -> dict:
    """The plan of a pretraining recipe on each of some sets of chips; plain numbers and strings.

    Raises FirthError for a recipe of fine-tuning, and for a mesh that does not cover the chips or
    that they and the batch do not fit.
    """
    return planned(outline(config), hardware, assumed)


def planned(outlined, hardware: list[tuple[Chip, int]], assumed: cost.Assumptions) -> dict:
    """The same of an outline."""
    config = outlined.config
    update = flops.update_flops(outlined)
    run = outlined.steps * sum(update.values())
    rows, length = outlined.batch["tokens"].shape
    programs = [memory.laid_out(outlined, count) for _, count in hardware]
    return {
        "steps": outlined.steps,
        "rows": rows,
        "length": length,
        "tokens": outlined.steps * rows * length,
        "assumed": [*outlined.assumed, *(FREEZES if config.optimizer.freeze else ())],
        "parameters": memory.parameters(outlined, programs[0].state.params),
        "flops": {
            "update": update,
            "run": run,
            "recomputed": outlined.steps * flops.recomputed(outlined),
        },
        "electra_rule": _by_electra(outlined),
        "hardware": [
            {
                "chip": chip.name,
                "chips": count,
                "accelerator_type": chip.accelerator_type(count),
                "mesh": dict(zip(AXES, mesh_sizes(config.mesh, count), strict=True)),
                "device_bytes": memory.device_bytes(outlined, program),
                "hbm": chip.hbm,
                **dataclasses.asdict(found := cost.estimate(run, chip, count, assumed)),
                "compared": cost.comparison(found.kg),
                "assumed": cost.stated(chip, assumed),
            }
            for (chip, count), program in zip(hardware, programs, strict=True)
        ],
    }


def _by_electra(outlined) -> dict | None:
    """FLOPs by the ELECTRA paper's rule, and what it prints of a model with these settings."""
    settings = electra_rule.of_outline(outlined)
    if settings is None:
        return None
    model, figure = electra_rule.printed(settings) or (None, None)
    return {
        "flops": electra_rule.train_flops(settings),
        "model": model,
        "printed": figure,
        "note": electra_rule.NOTES.get(model),
    }


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options, and the overrides of fields; raises FirthError for an argument that is neither."""
    parser = argparse.ArgumentParser(
        prog="firth plan",
        description="Count what a run takes before it runs, without any data.",
        epilog="--config.FIELD=VALUE overrides a field of every recipe, as in `firth train`.",
        allow_abbrev=False,
    )
    add, default = parser.add_argument, cost.Assumptions()
    add("--config", action="append", help="a pretraining recipe, e.g. bert.py:base; repeatable")
    add(
        "--chips",
        default="v5e",
        help="what it runs on: v5e:256, v5p:4x4x8, h100:8, or several (v5e)",
    )
    add("--list", action="store_true", help="list the chips that are known")
    add("--json", action="store_true", help="print JSON")
    add("--chart", type=Path, help="draw FLOPs, price and emissions of the recipes to this file")
    add("--compile", help="also compile the step for these slices: v5e:16x16,v5p:4x4x4")
    add("--mesh", choices=("auto",), help="with --compile: search the best split of the devices")
    add(
        "--largest-batch",
        action="store_true",
        help="with --compile: search the most rows a chip that fit",
    )
    add("--mfu", type=float, default=default.mfu, help=f"share of the peak reached ({default.mfu})")
    add("--pue", type=float, default=default.pue, help=f"of the data centre ({default.pue})")
    add("--kg-per-kwh", type=float, default=default.kg_per_kwh, help=f"CO2e ({default.kg_per_kwh})")
    add("--watts", type=float, help="drawn by a chip (what --list says)")
    add("--usd", type=float, help="price of a chip-hour (what --list says)")
    args, rest = parser.parse_known_args(argv)
    for item in rest:
        if not item.startswith("--config."):
            raise FirthError(f"unexpected argument {item!r}; see firth plan --help")
    return args, rest


def check(args: argparse.Namespace) -> cost.Assumptions:
    """The assumptions among the options; raises FirthError for a number that cannot be one."""
    if not 0 < args.mfu <= 1:
        raise FirthError(f"--mfu={args.mfu:g}: expected a share of the peak, above 0 and at most 1")
    if args.pue < 1:
        raise FirthError(f"--pue={args.pue:g}: expected 1 or more, all energy over the machines'")
    for name in ("kg_per_kwh", "watts", "usd"):
        if (value := getattr(args, name)) is not None and value < 0:
            raise FirthError(f"--{name.replace('_', '-')}={value:g}: expected 0 or more")
    if args.mesh and not args.compile:
        raise FirthError("--mesh=auto searches among compiled programs: give --compile as well")
    if args.largest_batch and not args.compile:
        raise FirthError("--largest-batch compiles several sizes: give --compile as well")
    if args.chart and not args.chart.parent.is_dir():
        raise FirthError(f"--chart {args.chart}: no such folder {args.chart.parent}")
    return cost.Assumptions(args.mfu, args.pue, args.kg_per_kwh, args.watts, args.usd)


def main(argv: list[str]) -> int:
    """`firth plan`."""
    args, overrides = parse(argv)
    if args.list:
        print("\n".join(report.chips_table(CHIPS.values())))
        return 0
    if not args.config:
        raise FirthError("--config is required: a pretraining recipe, e.g. --config bert.py:base")
    assumed = check(args)
    jax.config.update("jax_platforms", "cpu")  # a plan must not take the accelerator of its host
    hardware = [parse_chips(item) for item in args.chips.split(",")]
    plans, compiled = {}, []
    for name in args.config:
        try:
            outlined = outline(recipe.read_recipe(name, overrides))
            plans[name] = planned(outlined, hardware, assumed)
        except FirthError as error:
            raise FirthError(f"{name}: {error}" if len(args.config) > 1 else str(error)) from None
        if args.compile:
            from firth.planning import compiled as compiler  # it loads the compiler of TPUs

            slices = args.compile.split(",")
            found = compiler.report(
                outlined.config, slices, args.mesh, overrides, args.largest_batch
            )
            plans[name]["compiled"] = found
            compiled += ["", *compiler.lines(name, found)]
    if args.chart:
        from firth.planning.chart import draw

        draw(plans, args.chart)
    if args.json:
        print(json.dumps(plans, indent=2))
        return 0
    text = report.table(plans) if len(plans) > 1 else report.page(*next(iter(plans.items())))
    print("\n".join([*text, *compiled]))
    return 0
