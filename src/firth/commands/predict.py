"""`firth predict`: label texts by a fine-tuned model.

firth predict --model runs/snippets --input new.csv --output labelled.csv
"""

import os
import sys

from firth.commands.arguments import (
    Parser,
    add_model,
    add_texts,
    check_output,
    refuse_candidates,
    say_dtype,
)
from firth.errors import FirthError
from firth.inference.predictions.classifier import checked_threshold, warn_of_cut
from firth.inference.predictions.kinds import own_command
from firth.inference.predictions.layout import Layout, output_format
from firth.inference.predictions.load import load_classifier, open_rows
from firth.inference.predictions.output import Partial, Stream, identity, write_predictions
from firth.inference.predictions.reading import Reading
from firth.progress import Progress


def main(argv: list[str]) -> int:
    """`firth predict`."""
    parser = Parser(
        prog="firth predict",
        description="Label texts by a fine-tuned model or a logistic regression: a label, or all "
        "that are likely enough, with the probability of each, or the score of a regression. The "
        "output has the rows of the input, in their order. A tagger labels the words of sentences, "
        "a model of squad.py answers questions, and one of questions with choices chooses.",
    )
    add = parser.add_argument
    add_model(parser, "; A,B for the mean of two")
    add(
        "--input",
        required=True,
        help=".txt (a text or pair a line), .csv, .tsv, .jsonl, SQuAD's .json; - stdin",
    )
    add("--output", required=True, help="the .csv, .tsv or .jsonl file to write; - for stdout")
    add("--overwrite", action="store_true", help="replace a complete output")
    add_texts(parser)
    args = parser.parse_args(argv)

    if own := own_command(args.model):
        place = None if args.output == "-" else check_output(args.output)
        own.predict(args, parser, place)
        return 0
    refuse_candidates(args)
    reading = Reading(args.batch_size, args.max_length, args.long, args.stride, args.packed)
    rows = open_rows(args.model, args.input, args)
    kind = output_format(args.output, rows)
    if args.output != "-":
        output = check_output(args.output)
        if args.input != "-" and output.exists() and os.path.samefile(args.input, output):
            raise FirthError(f"--output {output} is the input; write another file")
        if output.exists() and not args.overwrite:
            raise FirthError(f"{output} is there already; give --overwrite to replace it")
    classifier = load_classifier(args.model, args.dtype, rows.size, args.task)
    say_dtype(classifier.encoder)
    threshold = checked_threshold(classifier, args.threshold)
    layout = Layout(kind, rows, classifier.labels, threshold)
    total = rows.count(layout.check)
    if args.output == "-":
        # What comes in by lines goes out by batches; --batch-size=1 answers every line.
        options = {"batches": 1} if args.input == "-" else {}
        sink = Stream(sys.stdout.buffer)
        write_predictions(classifier, rows, sink, layout, reading, **options)
    else:
        options = dict(errors=args.errors, dtype=args.dtype, threshold=threshold)
        said = identity(classifier, rows, layout, reading, **options)
        with Partial(output, said) as sink:
            bar = Progress(total, sink.rows, "predict", quiet=total is None)
            try:
                write_predictions(classifier, rows, sink, layout, reading, progress=bar)
            finally:
                bar.close()
            sink.finish()
        print(f"{output}: {sink.rows:,} texts, {', '.join(layout.new)}")
    warn_of_cut(sink.cut, sink.rows, classifier, reading, ("--max-length", "--long"))
    return 0
