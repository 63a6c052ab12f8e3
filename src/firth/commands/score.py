"""`firth score`: compute the log-probability of every token of a text.

firth score --model DIR --input sentences.txt --output scores.jsonl
"""

import itertools
import json
import math
import sys
from collections.abc import Iterator

from firth.commands.arguments import (
    STREAM,
    Parser,
    add_dtype,
    add_errors,
    add_model,
    ascii_only,
    check_output,
    positive,
    say_dtype,
)
from firth.errors import FirthError
from firth.inference.inputs import count_lines, read_plain_lines
from firth.inference.language.models import load_model
from firth.inference.score import BATCH_SIZE, kind_of, score
from firth.progress import Progress
from firth.storage.local import write_text

WINDOW = 16  # batches of texts to sort by length at once


def main(argv: list[str]) -> int:
    """`firth score`."""
    parser = Parser(
        prog="firth score", description="Compute the log-probability of every token, in nats."
    )
    add = parser.add_argument
    add_model(parser)
    add("--input", required=True, help="a text a line; - for stdin")
    add("--output", required=True, help="the .jsonl file to write, - for stdout: one object a text")
    add("--end", action="store_true", help="score the end-of-text token as well (causal models)")
    add(
        "--within-word",
        action="store_true",
        help="with a token also mask the later pieces of its word (masked models)",
    )
    add("--pseudo", action="store_true", help="XLNet: predict each token from all others")
    add(
        "--batch-size",
        type=positive,
        default=BATCH_SIZE,
        help=f"rows of 32 tokens at a time ({BATCH_SIZE})",
    )
    add_dtype(parser)
    add_errors(parser)
    args = parser.parse_args(argv)
    output = args.output
    if output != STREAM:
        output = check_output(output, args.input)
    rows = count_lines(args.input)
    encoder = load_model(args.model, dtype=args.dtype)
    kind = kind_of(encoder, args.pseudo)
    say_dtype(encoder)
    lines, total, count = [], 0.0, 0
    escape = output == STREAM and ascii_only()
    bar = Progress(rows, 0, "score", quiet=rows is None)
    for window in _windows(read_plain_lines(args.input, args.errors), WINDOW * args.batch_size):
        names, texts = zip(*window, strict=True)
        scored = score(
            encoder,
            texts,
            end=args.end,
            within_word=args.within_word,
            pseudo=args.pseudo,
            batch_size=args.batch_size,
            names=names,
        )
        for text, one in zip(texts, scored, strict=True):
            values = [round(float(value), 6) for value in one.log_probs]
            record = dict(text=text, kind=one.kind, total=round(one.total, 6))
            record |= dict(tokens=one.tokens, log_probs=values)
            lines.append(json.dumps(record, ensure_ascii=escape) + "\n")
            total, count = total + one.total, count + len(one.ids)
        bar.update(len(lines))
    bar.close()
    if not count:
        name = "standard input" if args.input == STREAM else args.input
        raise FirthError(f"{name} has no tokens; expected one text a line")
    if output == STREAM:
        sys.stdout.write("".join(lines))
    else:
        write_text(output, "".join(lines))
    mean = -total / count
    print(
        f"{args.output}: {len(lines):,} texts, {count:,} tokens, {mean:.4f} nats a token, "
        + (kind if kind == "discriminator" else f"{kind} perplexity {math.exp(mean):,.2f}"),
        file=sys.stderr if output == STREAM else sys.stdout,
    )
    return 0


def _windows(lines: Iterator, size: int) -> Iterator[list]:
    return iter(lambda: list(itertools.islice(lines, size)), [])
