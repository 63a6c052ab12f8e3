"""`firth submit`: the archive of predictions that GLUE's server takes.

firth submit runs/cola runs/mnli ... --output submission.zip
firth submit --check submission.zip
"""

from firth.commands.arguments import Parser, add_dtype, add_reading, new_output
from firth.errors import FirthError


def main(argv: list[str]) -> int:
    """`firth submit`."""
    parser = Parser(
        prog="firth submit",
        description="Label the test sets of GLUE by fine-tuned models and write the zip that its "
        "server takes, or check one. MNLI's model also labels the diagnostic set (AX).",
    )
    add = parser.add_argument
    add(
        "models",
        nargs="*",
        metavar="MODEL",
        help="workdir of a run on tasks of GLUE, or TASK=MODEL; TASK=A,B for the mean of two",
    )
    add("--data", default="", help="the folder of GLUE's files (default: that of each run)")
    add("--output", help="the .zip to write")
    add("--fill", action="store_true", help="write a constant answer where a task has no model")
    add("--overwrite", action="store_true", help="replace the output")
    add("--check", metavar="ZIP", help="check a zip: names, rows, their order, labels")
    add_reading(parser)
    add_dtype(parser)
    args = parser.parse_intermixed_args(argv)

    from firth.data.submissions import glue

    if args.check:
        others = [n for n, v in vars(args).items() if v != parser.get_default(n) and n != "check"]
        if [name for name in others if name != "models"] or args.models:
            parser.error("--check goes alone")
        _print([(counted, "") for counted in glue.check(args.check)])
        print(f"{args.check} has what GLUE's server takes")
        return 0
    if not (args.models and args.output):
        raise FirthError("give models and --output FILE.zip, or --check FILE.zip")
    if not args.output.endswith(".zip"):
        raise FirthError(f"--output {args.output}: expected a .zip file")
    output = new_output(args)

    from firth.inference.predictions.reading import Reading
    from firth.inference.predictions.submit import CONSTANT, find_sources, submit

    sources = find_sources(args.models, args.data)
    reading = Reading(args.batch_size, args.max_length, args.long, args.stride, args.packed)
    written = submit(sources, output, fill=args.fill, reading=reading, dtype=args.dtype)
    _print(written)
    filled = sum(source == CONSTANT for _, source in written)
    more = f", {filled} of them constant answers" if filled else ""
    print(f"{output}: {len(written)} files{more}")
    return 0


def _print(rows) -> None:
    """A line a file: its rows, what they say, and the model that said it."""
    width = max(len(str(counted)) for counted, _ in rows)
    for counted, source in rows:
        print(f"{counted.name:<11} {counted.rows:>7,}  {counted!s:<{width}}  {source}".rstrip())
