"""Options that several verbs have, and values as argparse reads them."""

import argparse
from pathlib import Path

from firth.errors import FirthError


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model that a verb uses."""
    parser.add_argument(
        "--model", required=True, help="published or Firth directory, workdir, or hf:org/name"
    )


def add_errors(parser: argparse.ArgumentParser) -> None:
    """What is done with bytes that are not UTF-8."""
    parser.add_argument(
        "--errors", choices=("strict", "replace"), default="strict", help="bytes not UTF-8 (strict)"
    )


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """The dtype of the computation."""
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="of the computation (float32)"
    )


def check_output(path: str) -> Path:
    """The path of a file to write; FirthError where it cannot be one."""
    output = Path(path)
    if not output.parent.is_dir() or output.is_dir():
        raise FirthError(f"--output {path}: expected a file in a directory that exists")
    return output


def positive(text: str) -> int:
    """A number from 1 on, as argparse reads it."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def integers(text: str) -> list[int]:
    """Integers with commas between them, as argparse reads them."""
    try:
        return [int(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like -4,-3,-2,-1") from None
