"""`firth runs`: a table of the runs below a folder."""

import sys

from firth.commands.arguments import Parser


def main(argv: list[str]) -> int:
    """`firth runs`."""
    parser = Parser(
        prog="firth runs",
        description="List the runs in and below folders: recipe, what differs between them, steps, "
        "last and best held-out metric, speed and state.",
    )
    add = parser.add_argument
    add("folders", nargs="*", default=["runs"], metavar="DIR", help="where to look (runs)")
    add(
        "--sort", metavar="FIELD", help="by a column or field of the recipe; -FIELD: greatest first"
    )
    add("--json", action="store_true", help="print JSON, with every field in full")
    add("--csv", action="store_true", help="print CSV")
    args = parser.parse_args(argv)
    from firth.display import table
    from firth.display.runs import find_runs
    from firth.errors import FirthError

    if args.json and args.csv:
        raise FirthError("give either --json or --csv")
    runs = find_runs(args.folders)
    if args.sort:
        runs = table.ordered(runs, args.sort)
    if args.json:
        print(table.as_json(runs))
    elif args.csv:
        print(table.as_csv(runs), end="")
    elif runs:
        table.show(runs)
    else:
        print(f"no run in {', '.join(args.folders)}", file=sys.stderr)
    return 0
