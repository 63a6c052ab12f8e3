"""`firth recipes`: the recipes that Firth ships, or every field of one with its comment."""

import json

from firth.commands.arguments import Parser


def main(argv: list[str]) -> int:
    """`firth recipes`."""
    parser = Parser(
        prog="firth recipes",
        description="List the recipes that Firth ships; or, for one of them or a file of your own, "
        "every field with its value and the comment behind it.",
    )
    parser.add_argument("recipe", nargs="?", metavar="FILE[:ARGUMENTS]", help="e.g. bert.py:mini")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    from firth.planning import recipes

    if args.recipe:
        found, lines = recipes.describe(args.recipe), recipes.page
    else:
        found, lines = recipes.describe_all(), recipes.table
    print(json.dumps(found, indent=2) if args.json else "\n".join(lines(found)))
    return 0
