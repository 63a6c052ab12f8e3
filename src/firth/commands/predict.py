"""`firth predict`: label texts by a fine-tuned model.

firth predict --model runs/snippets --input new.csv --output labelled.csv
"""

from firth.commands.arguments import (
    Parser,
    add_model,
    add_texts,
    new_output,
    refuse_candidates,
    say_dtype,
)
from firth.inference.predictions.classifier import checked_threshold, warn_of_cut
from firth.inference.predictions.kinds import own_command
from firth.inference.predictions.layout import Layout, output_format
from firth.inference.predictions.load import load_classifier, open_rows
from firth.inference.predictions.output import identity, opened, write_predictions
from firth.inference.predictions.reading import Reading


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
        own.predict(args, parser, new_output(args, args.input))
        return 0
    refuse_candidates(args)
    reading = Reading(args.batch_size, args.max_length, args.long, args.stride, args.packed)
    rows = open_rows(args.model, args.input, args)
    kind, output = output_format(args.output, rows), new_output(args, args.input)
    classifier = load_classifier(args.model, args.dtype, rows.size, args.task)
    say_dtype(classifier.encoder)
    threshold = checked_threshold(classifier, args.threshold)
    layout = Layout(kind, rows, classifier.labels, threshold)
    options = dict(errors=args.errors, dtype=args.dtype, threshold=threshold)
    said = identity(classifier, rows, layout, reading, **options) if output else {}
    # What comes in by lines goes out by batches; --batch-size=1 answers every line.
    batches = 1 if args.input == args.output == "-" else None
    with opened(output, said, rows.count(layout.check)) as (sink, bar):
        write_predictions(classifier, rows, sink, layout, reading, batches=batches, progress=bar)
        sink.finish()
    if output:
        print(f"{output}: {sink.rows:,} texts, {', '.join(layout.new)}")
    warn_of_cut(sink.cut, sink.rows, classifier, reading, ("--max-length", "--long"))
    return 0
