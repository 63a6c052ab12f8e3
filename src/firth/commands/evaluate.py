"""`firth evaluate`: measure a run's newest or best checkpoint."""

from pathlib import Path

from firth.commands.arguments import Parser, whole
from firth.errors import FirthError
from firth.run.evaluator import evaluate
from firth.storage.remote import is_url


def main(argv: list[str]) -> int:
    """`firth evaluate`."""
    parser = Parser(
        prog="firth evaluate",
        description=__doc__.split("\n")[0],
        epilog="--config.eval.FIELD=VALUE and --config.data.heldout_store=STORE override fields "
        "for the evaluation: another test set, more of its text, a longer memory, rows of another "
        "length.",
    )
    parser.add_argument("--workdir", required=True, help="the folder of a run of `firth train`")
    parser.add_argument(
        "--step", type=whole, help="checkpoint (default: the best, else the newest)"
    )
    args, changes = parser.parse_with_fields(argv)
    if not is_url(args.workdir) and not Path(args.workdir).is_dir():
        raise FirthError(f"--workdir {args.workdir}: no such folder")
    for name, value in evaluate(args.workdir, args.step, changes).items():
        print(f"{name:<32} {value:.6g}" if isinstance(value, float) else f"{name:<32} {value}")
    return 0
