"""What `firth predict` and `firth evaluate` do where the model is a tagger."""

import json
from pathlib import Path

from firth.data.tagging.files import FORMATS, read_sentences
from firth.errors import FirthError
from firth.inference.predictions.output import opened
from firth.inference.tagging.output import output_format, report, written
from firth.inference.tagging.tagger import Tagger, check_labels, measure
from firth.storage.local import write_bytes

# Options of texts that have no meaning for sentences of words.
OF_TEXTS = (
    "max_length",
    "stride",
    "errors",
    "long",
    "packed",
    "nbest",
    "null_threshold",
    "threshold",
    "task",
    "choices",
)


def check(args, parser) -> tuple[str, str, str]:
    """(column of words, column of tags, format) that the user names.

    Raises FirthError for options of a classifier alone, for several columns of words and for a
    format that taggers do not read.
    """
    for name in OF_TEXTS:
        if getattr(args, name, None) != parser.get_default(name):
            raise FirthError(
                f"--{name.replace('_', '-')}: the model tags words, and cuts no text; leave it out"
            )
    if len(args.text) > 1:
        raise FirthError(f"--text={','.join(args.text)}: expected the one column of words")
    if args.format and args.format not in FORMATS:
        raise FirthError(
            f"--format {args.format}: the model tags words; expected {', '.join(FORMATS)}"
        )
    label = getattr(args, "label", None) or ""
    return (args.text or ("",))[0], label, args.format or ""


def predict(args, parser, output: Path | None) -> None:
    """Tag the sentences of `args.input`; `output` is a checked place, None for standard output."""
    word, _, kind = check(args, parser)
    written_as = output_format(args.output)
    tagger = Tagger(args.model, args.dtype)
    usual = tagger.columns[0]
    sentences = read_sentences(args.input, word, format=kind, tagged=False, usual=usual)
    words, size = sentences.split(sentences.words), args.batch_size
    options = dict(output=written_as, batch_size=size, dtype=args.dtype)
    said = {"model": tagger.digest()} | options if output else {}
    with opened(output, said, len(words)) as (sink, bar):
        sink.remaining(words)
        for begin, tags in tagger.windows(sentences, batch_size=size, begin=sink.rows):
            part = words[begin : begin + len(tags)]
            sink.append(written(written_as, part, tags, tagger.labels), part)
            bar.done(sink.rows, "sentences")
        sink.finish()
    if output:
        print(f"{output}: {len(sentences):,} sentences, {len(sentences.words):,} words")


def evaluate(args, parser, output: Path | None) -> None:
    """Measure tags against those of `args.data`; writes them to `output` if there is one."""
    word, label, kind = check(args, parser)
    written_as = output_format(args.output) if output else ""
    tagger = Tagger(args.model, args.dtype)
    usual = tagger.columns
    sentences = read_sentences(args.data, word or usual[0], label or usual[1], format=kind)
    check_labels(tagger.labels, sentences)
    windows = tagger.windows(sentences, batch_size=args.batch_size)
    tags = [one for _, window in windows for one in window]
    found = measure(tagger.labels, sentences, tags)
    if output:
        words = sentences.split(sentences.words)
        write_bytes(output, written(written_as, words, tags, tagger.labels))
    print(json.dumps(found) if args.json else f"{sentences.source}: {report(found)}")
