"""`firth plot`: the curves of one or several runs as a picture."""

import sys

from firth.commands.arguments import Parser, check_output, positive
from firth.display.curves import AXES, FORMATS, draw
from firth.display.runs import find_runs
from firth.errors import FirthError


def main(argv: list[str]) -> int:
    """`firth plot`."""
    parser = Parser(
        prog="firth plot",
        description="Draw the curves of runs, training and held out, to a PNG, SVG or PDF file.",
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="a workdir, or a folder of them")
    add(
        "--metric",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="a panel each: mlm_loss, accuracy, grad_norm ... (the loss and the task's metric)",
    )
    add("--output", default="curves.png", metavar="FILE", help="(curves.png)")
    add("--x", choices=AXES, default="step", help="the horizontal axis (step)")
    add("--smooth", type=positive, default=1, metavar="N", help="training curves as means of N (1)")
    args = parser.parse_args(argv)
    output = check_output(args.output)
    if output.suffix.lower() not in FORMATS:
        raise FirthError(f"--output {output}: expected a file that ends in {', '.join(FORMATS)}")
    runs = find_runs(args.runs)
    for run in runs:
        if run.state == "damaged":
            raise FirthError(f"{run.path}: {run.reason}")
    runs = [run for run in runs if not run.seeds]  # each of the seeds has its own curves
    silent = [run.name for run in runs if not run.logged]
    if 0 < len(silent) < len(runs):
        print(f"left out, nothing logged yet: {', '.join(silent)}", file=sys.stderr)
        runs = [run for run in runs if run.logged]
    if not runs:
        raise FirthError(f"no run in {', '.join(args.runs)}; name a workdir of `firth train`")
    draw(runs, output, args.metric, args.x, args.smooth)
    print(f"{output}: {len(runs)} run{'' if len(runs) == 1 else 's'}")
    return 0
