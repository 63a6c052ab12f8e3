"""`firth plan`: count the cost of a run before it runs.

firth plan --config bert.py:base --chips v5e:16
firth plan --config bert.py:base --config electra.py:base --chips v5e:16 --chart costs.png
"""

import argparse
import json

import jax

from firth import recipe
from firth.commands.arguments import Parser, check_output, number
from firth.errors import FirthError
from firth.planning import cost, here, report
from firth.planning.hardware import CHIPS, parse_chips
from firth.planning.plan import planned
from firth.run.outline import outline


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
    chips = args.chips.split(",")
    is_here = any(item.partition(":")[0] == "here" for item in chips)
    known = CHIPS | ({"here": here.measured()} if is_here else {})
    hardware = [parse_chips(item, known) for item in chips]
    plans, compiled = {}, []
    for name in args.config:
        try:
            outlined = outline(recipe.read_recipe(name, overrides))
            plans[name] = planned(outlined, hardware, assumed)
        except FirthError as error:
            raise FirthError(f"{name}: {error}" if len(args.config) > 1 else str(error)) from None
        if args.compile:
            from firth.planning.compiler import compiled as compiler

            slices = args.compile.split(",")
            measured = compiler.report(
                outlined.config, slices, args.mesh, overrides, args.largest_batch
            )
            plans[name]["compiled"] = measured
            compiled += ["", *compiler.lines(name, measured)]
    if args.chart:
        from firth.planning.chart import draw

        draw(plans, args.chart)
    if args.json:
        print(json.dumps(plans, indent=2))
        return 0
    text = report.table(plans) if len(plans) > 1 else report.page(*next(iter(plans.items())))
    print("\n".join([*text, *compiled]))
    return 0


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """(options, overrides of fields); raises FirthError for any other argument."""
    parser = Parser(
        prog="firth plan",
        description="Count the cost of a run before it runs, without any data.",
        epilog="--config.FIELD=VALUE overrides a field of every recipe, as in `firth train`.",
    )
    add, default = parser.add_argument, cost.Assumptions()
    add("--config", action="append", help="a pretraining recipe, e.g. bert.py:base; repeatable")
    add(
        "--chips",
        default="v5e",
        help="the chips of the run: v5e:256, v5p:4x4x8, h100:8, laptop, or here, which measures "
        "this machine for a second; several with commas (v5e)",
    )
    add("--list", action="store_true", help="list the known chips")
    add("--json", action="store_true", help="print JSON")
    add(
        "--chart",
        metavar="FILE",
        help="draw FLOPs, price and emissions of the recipes to this file",
    )
    add("--compile", help="also compile the step for these slices: v5e:16x16,v5p:4x4x4")
    add("--mesh", choices=("auto",), help="with --compile: search the best split of the devices")
    add(
        "--largest-batch",
        action="store_true",
        help="with --compile: search for the most rows per chip that fit",
    )
    add("--mfu", type=number, default=default.mfu, help=f"share of the peak FLOP/s ({default.mfu})")
    add("--pue", type=number, default=default.pue, help=f"of the data centre ({default.pue})")
    add(
        "--kg-per-kwh", type=number, default=default.kg_per_kwh, help=f"CO2e ({default.kg_per_kwh})"
    )
    add("--watts", type=number, help="power of a chip (default: as in --list)")
    add("--usd", type=number, help="price of a chip-hour (default: as in --list)")
    return parser.parse_with_fields(argv)


def check(args: argparse.Namespace) -> cost.Assumptions:
    """The assumptions among the options; raises FirthError for a value out of range."""
    if not 0 < args.mfu <= 1:
        raise FirthError(f"--mfu={args.mfu:g}: expected a share of the peak, above 0 and at most 1")
    if args.pue < 1:
        raise FirthError(f"--pue={args.pue:g}: expected 1 or more, total energy over the machines'")
    for name in ("kg_per_kwh", "watts", "usd"):
        if (value := getattr(args, name)) is not None and value < 0:
            raise FirthError(f"--{name.replace('_', '-')}={value:g}: expected 0 or more")
    if args.mesh and not args.compile:
        raise FirthError("--mesh=auto searches among compiled programs: give --compile as well")
    if args.largest_batch and not args.compile:
        raise FirthError("--largest-batch compiles several sizes: give --compile as well")
    if args.chart:
        args.chart = check_output(args.chart, option="--chart")
    return cost.Assumptions(args.mfu, args.pue, args.kg_per_kwh, args.watts, args.usd)
