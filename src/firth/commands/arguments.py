"""Options that several verbs share, their parser, and types of argparse values."""

import argparse
import os
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from firth.errors import FirthError

STREAM = "-"  # the name of standard input and output


class Parser(argparse.ArgumentParser):
    """argparse with Firth's errors: one line, and the nearest name for an option that is unknown.

    Options are written in full. Raises FirthError where argparse would print its usage and exit.
    """

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str):
        """Raise FirthError with argparse's words."""
        raise FirthError(f"{message}; see {self.prog} --help")

    def parse_args(self, args=None, namespace=None):
        """As argparse's, but a misspelt option comes before what is missing because of it."""
        check_options(args, self._option_string_actions)
        return self._whole(*self.parse_known_args(args, namespace))

    def parse_intermixed_args(self, args=None, namespace=None):
        """The same, for a verb whose options may stand between its texts."""
        check_options(args, self._option_string_actions)
        return self._whole(*self.parse_known_intermixed_args(args, namespace))

    def parse_with_fields(self, args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """(options, overrides `--config.FIELD=VALUE`); FirthError for anything else."""
        fields = [item for item in args if item.startswith("--config.")]
        for item in fields:
            if "=" not in item:
                raise FirthError(f"{item} lacks a value; write {item}=VALUE")
        return self.parse_args([item for item in args if item not in fields]), fields

    def _whole(self, args, rest):
        if rest:
            self.error(f"unexpected argument {rest[0]!r}")
        return args


def check_options(args: Sequence[str], known: Collection[str]) -> None:
    """Raise FirthError, with the nearest one, for an option before `--` that is not known."""
    for item in args:
        if item == "--":
            return
        name = item.partition("=")[0]
        if re.match(r"--?[A-Za-z]", name) and " " not in name and name not in known:
            long = [option for option in known if option.startswith("--")]
            long = [option for option in long if option.startswith(name)] or long
            from firth.recipe import suggest  # late: its libraries are slow to import

            raise FirthError(f"there is no option {name}{suggest(name, long)}")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add `--model`."""
    parser.add_argument(
        "--model", required=True, help="published or Firth directory, workdir, or hf:org/name"
    )


def add_errors(parser: argparse.ArgumentParser) -> None:
    """Add `--errors`, for bytes that are not UTF-8."""
    parser.add_argument(
        "--errors", choices=("strict", "replace"), default="strict", help="bytes not UTF-8 (strict)"
    )


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add `--dtype`, for the computation."""
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="of the computation (float32)"
    )


def check_output(path: str, *inputs: str | None, option: str = "--output") -> Path:
    """The path of a file to write, with symbolic links resolved, so that their target is written.

    Raises FirthError for a folder, for a folder that is missing or read-only, for a device or a
    pipe (a file would replace it), and for one of the `inputs`, which would be lost.
    """
    named, output = Path(path), Path(os.path.realpath(path))
    stream = re.match(r"/dev/(std|fd/)|/proc/", str(path)) or (
        named.exists() and not named.is_file() and not named.is_dir()
    )
    if path == STREAM or stream:
        raise FirthError(f"{option} {path} is a stream or a device; expected the name of a file")
    if not str(path) or output.is_dir() or not output.parent.is_dir():
        raise FirthError(f"{option} {path}: expected a file in a directory that exists")
    for name in inputs:
        if name and name != STREAM and os.path.realpath(name) == str(output):
            raise FirthError(
                f"{option} {path} is also the input, which it would replace; name another file"
            )
    for place in (output.parent, output):
        if place.exists() and not os.access(place, os.W_OK):
            raise FirthError(f"{option} {path} cannot be written: {place} is read-only")
    return output


def ascii_only() -> bool:
    """Whether standard output cannot show every character, so that JSON needs escapes."""
    return not (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def whole(text: str) -> int:
    """An argparse type: an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """An argparse type: a finite number."""
    try:
        value = float(text)
        if value - value == 0:  # neither infinite nor NaN
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a number")


def integers(text: str) -> list[int]:
    """An argparse type: integers separated by commas."""
    try:
        return [int(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like -4,-3,-2,-1") from None
