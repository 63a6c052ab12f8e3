"""`firth fill`: the likeliest words for each [MASK] of a text.

firth fill --model DIR "The [MASK] broke." --top=5
"""

import itertools
import json
from collections.abc import Iterator

from firth.commands.arguments import Parser, add_errors, add_model, ascii_only, positive
from firth.errors import FirthError
from firth.inference.encoder import load
from firth.inference.fill import BATCH_SIZE, Filled, fill
from firth.inference.inputs import Text, parse_line, read_lines


def main(argv: list[str]) -> int:
    """`firth fill`."""
    parser = Parser(
        prog="firth fill",
        description="List the likeliest words for each [MASK], every one filled on its own.",
    )
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="with [MASK] in it; a tab before a second text")
    add_model(parser)
    add("--input", help="instead of TEXT: a text a line; - for stdin")
    add("--top", type=positive, default=5, help="how many words for a mask (5)")
    add("--targets", help="choose among these words alone, e.g. --targets=vase,silence")
    add("--json", action="store_true", help="print one JSON object a mask, each on its line")
    add_errors(parser)
    args = parser.parse_intermixed_args(argv)

    if bool(args.texts) == (args.input is not None):
        raise FirthError("give either texts or --input")
    lines = _named_texts(args.texts) if args.texts else read_lines(args.input, args.errors)
    windows = iter(lambda: list(itertools.islice(lines, BATCH_SIZE)), [])
    if (first := next(windows, None)) is None:
        name = "standard input" if args.input == "-" else args.input
        raise FirthError(f"{name} is empty; expected one text a line")
    targets = args.targets and [target.strip() for target in args.targets.split(",")]
    encoder = load(args.model, heads=("mlm",))
    count = printed = 0
    for window in itertools.chain([first], windows):
        names, texts = zip(*window, strict=True)
        for filled in fill(encoder, list(texts), args.top, targets, names=names):
            _print(texts[filled.row], count + filled.row, filled, args.json, not printed)
            printed += 1
        count += len(window)
    return 0


def _named_texts(texts: list[str]) -> Iterator[tuple[str, Text]]:
    """(name in error messages, text or pair) of each text on the command line."""
    for text in texts:
        name = repr(text if len(text) <= 40 else f"{text[:37]}...")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise FirthError(f"{name} is not UTF-8") from None
        yield name, parse_line(name, text)


def _print(text: Text, row: int, filled: Filled, as_json: bool, first: bool):
    if as_json:
        choices = [choice._asdict() for choice in filled.choices]
        entry = {"row": row, "text": text, "position": filled.position, "choices": choices}
        print(json.dumps(entry, ensure_ascii=ascii_only()))
        return
    if not first:
        print()
    width = max(len(choice.token) for choice in filled.choices)
    for token, _, probability, whole in filled.choices:
        whole = whole if isinstance(whole, str) else "\t".join(whole)
        print(f"{probability:.3f}  {token:<{width}}  {whole}")
