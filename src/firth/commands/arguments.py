"""Options that several verbs share, and types of argparse values."""

import argparse
from pathlib import Path

from firth.errors import FirthError


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


def add_texts(parser: argparse.ArgumentParser) -> None:
    """Add what says how a classifier reads a file of texts."""
    from firth.data.tasks.rows import FORMATS  # late: they need numpy, which other verbs may not
    from firth.inference.predictions.reading import LONG

    add = parser.add_argument
    add("--text", type=names, default=[], help="column of the text, or of two with a comma between")
    add("--format", choices=FORMATS, help="of the input (by its extension; txt for stdin)")
    add("--batch-size", type=positive, default=32, help="(32)")
    add("--max-length", type=positive, help="tokens of a text (as in training, or all positions)")
    add(
        "--long", choices=LONG, default="truncate", help="cut longer texts, or read them in windows"
    )
    add("--stride", type=positive, help="tokens from window to window of --long=average (half)")
    add_dtype(parser)
    add_errors(parser)


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add `--dtype`, for the computation."""
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="of the computation (float32)"
    )


def check_output(path: str) -> Path:
    """The path of a file to write; FirthError if it is a folder or its folder does not exist."""
    output = Path(path)
    if not output.parent.is_dir() or output.is_dir():
        raise FirthError(f"--output {path}: expected a file in a directory that exists")
    return output


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def integers(text: str) -> list[int]:
    """An argparse type: integers separated by commas."""
    try:
        return [int(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like -4,-3,-2,-1") from None


def names(text: str) -> list[str]:
    """An argparse type: names separated by commas."""
    return [name.strip() for name in text.split(",")]
