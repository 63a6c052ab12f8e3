"""`firth represent`: turn texts into vectors.

firth represent --model DIR --input sentences.txt --output vectors.npz --pool=mean
"""

from firth.commands.arguments import (
    Parser,
    add_dtype,
    add_errors,
    add_model,
    check_output,
    integers,
    numbers,
    positive,
    say_dtype,
)
from firth.inference.inputs import count_lines, read_lines
from firth.inference.represent import represent
from firth.inference.vector_files import FORMATS, find_format
from firth.inference.vectors import SORTED_BATCHES
from firth.inference.word_vectors.model import load_any
from firth.progress import Progress


def main(argv: list[str]) -> int:
    """`firth represent`."""
    parser = Parser(
        prog="firth represent", description="Turn texts into vectors, one text or pair a line."
    )
    add = parser.add_argument
    add_model(parser)
    add("--input", required=True, help="a text a line, a tab before a second text; - for stdin")
    add("--output", required=True, help=f"the file to write: {', '.join(FORMATS)}")
    add("--layers", type=integers, help="the layers, e.g. --layers=-4,-3,-2,-1 (-1)")
    add("--pool", choices=sorted(SORTED_BATCHES), default="mean", help="(mean)")
    add(
        "--mix",
        nargs="?",
        const=(),
        type=numbers,
        help="mix the layers (all by default) by the softmax of weights: --mix=0,1.5,0; alone: "
        "equal shares",
    )
    add("--gamma", type=float, default=1.0, help="the factor of the mix (1)")
    add("--normalize", action="store_true", help="divide each vector by its Euclidean norm")
    add("--batch-size", type=positive, default=32, help="rows of 32 tokens at a time (32)")
    add("--max-length", type=positive, help="truncate longer texts; without it, they fail")
    add_dtype(parser)
    add_errors(parser)
    args = parser.parse_args(argv)

    output = check_output(args.output, args.input)
    find_format(output)
    total = count_lines(args.input)
    encoder = load_any(args.model, dtype=args.dtype, heads=False)
    say_dtype(encoder)
    every = range(encoder.saved.spec["num_layers"] + 1)
    layers = args.layers or ([-1] if args.mix is None else [*every])
    mix = () if args.mix is None else args.mix or (0.0,) * len(layers)
    bar = Progress(total, 0, "represent", quiet=total is None)
    try:
        count = represent(
            encoder,
            read_lines(args.input, args.errors),
            output,
            layers=layers,
            mix=mix,
            gamma=args.gamma,
            pool=args.pool,
            normalize=args.normalize,
            batch_size=args.batch_size,
            max_length=args.max_length,
            progress=bar,
        )
    finally:
        bar.close()
    what = f"{args.pool} pooling of {'a mix of ' if mix else ''}layers {layers}"
    print(f"{args.output}: {count:,} texts, {what}")
    return 0
