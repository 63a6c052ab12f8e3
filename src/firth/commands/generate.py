"""`firth generate`: continue a prompt with a causal language model.

firth generate --model DIR --prompt "The vase" --tokens=64 --top-p=0.9
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from firth.commands.arguments import (
    STREAM,
    Parser,
    add_dtype,
    add_errors,
    add_model,
    check_output,
    number,
    whole,
)
from firth.errors import FirthError
from firth.inference.generate import Generated, generate
from firth.inference.inputs import read_plain_lines
from firth.inference.language.models import load_model
from firth.storage.local import write_text


def main(argv: list[str]) -> int:
    """`firth generate`."""
    parser = Parser(
        prog="firth generate", description="Continue a prompt with a causal language model."
    )
    add = parser.add_argument
    add_model(parser)
    add("--prompt", help="the text to continue; without it, a new text begins")
    add("--input", help="instead of --prompt: a prompt a line; - for stdin")
    add("--output", help="write JSON lines to this file, - for stdout")
    add("--tokens", type=whole, default=64, help="generate at most so many tokens (64)")
    add("--temperature", type=number, default=1.0, help="below 1 favours likely tokens (1.0)")
    add("--top-k", type=whole, default=0, help="sample from the K likeliest tokens; 0: all (0)")
    add("--top-p", type=number, default=1.0, help="sample from the nucleus; 1.0: all (1.0)")
    add("--greedy", action="store_true", help="take the likeliest token instead of sampling")
    add("--stop", nargs="+", default=[], metavar="STRING", help="stop before any of these")
    add("--seed", type=whole, default=0, help="the same seed samples the same tokens (0)")
    add("--samples", type=whole, default=1, help="number of continuations of each prompt (1)")
    add_dtype(parser)
    add_errors(parser)
    args = parser.parse_args(argv)

    names, prompts = _named_prompts(args)
    output = args.output
    if output and output != STREAM:
        output = check_output(output, args.input)
    encoder = load_model(args.model, dtype=args.dtype)
    alone = len(prompts) * args.samples == 1 and not output
    if alone:
        stream = _Terminal(prompts[0])
    results = generate(
        encoder,
        prompts,
        max_tokens=args.tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        greedy=args.greedy,
        stop=args.stop,
        seed=args.seed,
        samples=args.samples,
        stream=stream if alone else None,
        names=names,
    )
    if output:
        _write_lines(output, prompts, results)
    elif alone:
        stream.end()
    else:
        for one in results:
            print(f"== {names[one.row]}, sample {one.sample}\n{prompts[one.row]}{one.text}")
    return 0


def _named_prompts(args) -> tuple[list[str], list[str]]:
    """(names in error messages, prompts)."""
    if args.prompt is not None and args.input is not None:
        raise FirthError("give either --prompt or --input")
    if args.input is None:
        try:
            (args.prompt or "").encode()
        except UnicodeEncodeError:
            raise FirthError("--prompt is not UTF-8") from None
        return ["the prompt"], [args.prompt or ""]
    lines = list(read_plain_lines(args.input, args.errors))
    if not lines:
        name = "standard input" if args.input == "-" else args.input
        raise FirthError(f"{name} is empty; expected one prompt a line")
    names, prompts = zip(*lines, strict=True)
    return list(names), list(prompts)


class _Terminal:
    """Prints the prompt with the first piece of text, so that a refused prompt is not printed."""

    def __init__(self, prompt: str):
        self._prompt = prompt

    def __call__(self, row: int, sample: int, piece: str):
        print(self._prompt + piece, end="", flush=True)
        self._prompt = ""

    def end(self):
        print(self._prompt)


def _write_lines(path: Path | str, prompts: list[str], results: list[Generated]):
    lines = [json.dumps({"prompt": prompts[one.row]} | asdict(one)) for one in results]
    if path == STREAM:
        print("\n".join(lines))
        return
    write_text(path, "\n".join(lines) + "\n")
    print(f"{path}: {len(lines)} continuations", file=sys.stderr)
