"""`firth prepare`: tokenise a corpus into a store.

firth prepare --input 'corpus/*.txt' --tokenizer tok/ --output store/
firth prepare --tfds wiki40b/en --text-field text --tokenizer tok/ --output store/
"""

import argparse
import math
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from firth.commands.arguments import Parser, positive
from firth.data.corpus.destination import check_output, place
from firth.data.corpus.parts import Options
from firth.data.corpus.prepare import CHOICES, note, prepare
from firth.data.corpus.text import FORMATS, find_sources, read_batches, read_documents
from firth.data.corpus.writer import explained
from firth.errors import FirthError
from firth.storage.local import read_json, write_json
from firth.tokenizers.base import Tokenizer
from firth.tokenizers.load import load_tokenizer, train_tokenizer
from firth.weights.packaged import PACKAGES

# The most text to train a vocabulary on, in bytes. Training keeps it in memory, sentencepiece some
# twenty times its size, and more text changes the counts of words little.
_TRAINING_BYTES = {
    "wordpiece": 256 << 20,
    "bpe": 256 << 20,
    "unigram": 32 << 20,
    "word": math.inf,  # needs all the text, but keeps only the types
    "char": math.inf,
}
_ASKED = "training.json"  # beside a trained tokenizer: what was asked for
_COMPRESSION = 4  # assumed ratio of compression, to choose that sample


def main(argv: Sequence[str]) -> int:
    """Run `firth prepare`; returns the exit status. Raises FirthError for bad input."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    args, runner_arguments = _parser().parse_args(argv[:end]), argv[end + 1 :]
    if runner_arguments and args.runner == "local":
        raise FirthError(f"{runner_arguments[0]} after -- is for Apache Beam; give a --runner too")
    if args.workers is not None and args.runner != "local":
        raise FirthError(
            f"--workers is for --runner=local; {args.runner} takes options of Beam after --, as in "
            "-- --direct_num_workers=2 --direct_running_mode=multi_processing"
        )
    options = Options(*(getattr(args, name) for name in Options._fields))
    args.input += [f"tfds:{name}" for name in args.tfds]
    if not args.input:
        raise FirthError("nothing to prepare; name files with --input, or a dataset with --tfds")
    output = place(args.output)
    check_output(output, args.overwrite)
    if os.path.abspath(args.output) == os.path.abspath(args.tokenizer):
        raise FirthError(f"--output {output} is also --tokenizer; name two folders")
    begin = time.monotonic()
    store = prepare(
        args.input,
        _tokenizer(args, options),
        output,
        options,
        workers=args.workers,
        overwrite=args.overwrite,
        runner=args.runner,
        runner_arguments=runner_arguments,
        tfds_dir=args.tfds_dir,
        tfds_download=args.tfds_download,
    )
    seconds = time.monotonic() - begin
    print(
        f"{output}: {store.num_tokens:,} tokens, {store.num_sentences:,} sentences, "
        f"{store.num_documents:,} documents in {seconds:,.1f} s"
    )
    return 0


def _tokenizer(args: argparse.Namespace, options: Options) -> Tokenizer:
    path, kind = Path(args.tokenizer), args.train_tokenizer
    named = not path.exists() and (args.tokenizer in PACKAGES or args.tokenizer.startswith("hf:"))
    if named and kind:
        raise FirthError(
            f"--tokenizer {args.tokenizer} names published weights, which have a tokenizer; leave "
            "--train-tokenizer out, or choose another --tokenizer"
        )
    if named or (path / "checkpoints").is_dir():
        from firth.weights.read import find_tokenizer  # late: it imports jax

        path = find_tokenizer(args.tokenizer)
    if kind and not path.exists():
        _train(path, args, options)
    elif not path.exists():
        raise FirthError(
            f"there is no tokenizer at {path}; name another --tokenizer, or train one on the input "
            "with --train-tokenizer=wordpiece"
        )
    tokenizer = load_tokenizer(path, lowercase=args.lowercase)
    if kind and tokenizer.kind != kind:
        raise FirthError(
            f"{path} holds a {tokenizer.kind} tokenizer, not the {kind} one to be trained; remove "
            "it, choose another --tokenizer, or leave --train-tokenizer out to use it"
        )
    _check_size(path, tokenizer, args.vocab_size)
    return tokenizer


def _check_size(path: Path, tokenizer: Tokenizer, size: int | None) -> None:
    """Raise FirthError for a tokenizer that was not made with this --vocab-size."""
    if size in (None, tokenizer.vocab_size):
        return
    asked = read_json(path / _ASKED) if (path / _ASKED).is_file() else {}
    if asked.get("vocab_size") != size:
        raise FirthError(
            f"{path} holds a tokenizer of {tokenizer.vocab_size:,} tokens, not {size:,}; leave "
            "--vocab-size out to use it, or choose another --tokenizer to train one"
        )
    note(f"the text gave a vocabulary of {tokenizer.vocab_size:,} tokens, not all of {size:,}")


def _train(path: Path, args: argparse.Namespace, options: Options) -> None:
    """Train a tokenizer on the input, or an even sample of it, and save it at `path`."""
    sources = find_sources(args.input, options.format, args.tfds_dir, args.tfds_download)
    kind = args.train_tokenizer
    size = sum(s.bytes * (_COMPRESSION if s.name.endswith((".gz", ".xz")) else 1) for s in sources)
    every = max(1, math.ceil(size / _TRAINING_BYTES[kind]))
    share = f" of every {every}th batch" if every > 1 else ""
    limit = f" of {args.vocab_size:,}" if args.vocab_size else ""
    note(f"training a {kind} vocabulary{limit} on the text{share}")
    batches = read_batches(sources, options.field, options.errors)
    kept = "\n" if kind == "char" and options.sentences == "newline" else ""  # a character too
    tokenizer = train_tokenizer(
        kind,
        (
            line + kept
            for number, batch in enumerate(batches)
            if number % every == 0
            for block in batch.blocks
            for text in read_documents(block, options.field, options.document, options.errors)
            for line in text.split("\n")
            if line.strip()
        ),
        args.vocab_size,
        lowercase=args.lowercase,
    )
    temporary = path.with_name(path.name + ".writing")
    with explained(path):
        shutil.rmtree(temporary, ignore_errors=True)
        tokenizer.save(temporary)
        write_json(temporary / _ASKED, {"kind": kind, "vocab_size": args.vocab_size})
        temporary.rename(path)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="firth prepare",
        description="Turn a corpus into a store of tokens, sentences and documents.",
        epilog="The same command resumes an interrupted run.",
    )
    options = {
        "--input": dict(
            **dict(nargs="+", action="extend", default=[], metavar="FILE"),
            help="files and patterns ('dir/**/*.txt'), .gz and .xz too",
        ),
        "--tfds": dict(
            **dict(nargs="+", action="extend", default=[], metavar="NAME[:VERSION][:SPLIT]"),
            help="splits of TensorFlow Datasets ('wiki40b/en:train[:10%%]'; default: train)",
        ),
        "--tfds-dir": dict(metavar="DIR", help="TFDS's data_dir (default: TFDS_DATA_DIR)"),
        "--tfds-download": dict(action="store_true", help="let TFDS download missing datasets"),
        "--tokenizer": dict(
            **dict(required=True, metavar="DIR"),
            help="directory or file of a tokenizer; or that of weights: a directory, a workdir, "
            "hf:org/name or minilm",
        ),
        "--output": dict(required=True, metavar="DIR", help="the store to make, or its URL"),
        "--format": dict(choices=FORMATS, help="default: by extension, else text"),
        "--document": dict(
            choices=CHOICES["document"],
            default="blank-line",
            help="what divides text files into documents (default: %(default)s)",
        ),
        "--sentences": dict(
            choices=CHOICES["sentences"],
            default="split",
            help="split lines into sentences by rules (the default), or take each line as one; "
            "newline: also blank lines, and every line end as a token, <eos> or the character",
        ),
        "--errors": dict(
            choices=CHOICES["errors"],
            default="strict",
            help="stop at bytes that are not UTF-8, or replace them with U+FFFD",
        ),
        "--workers": dict(type=positive, metavar="N", help="processes (default: one a core)"),
        "--runner": dict(
            default="local",
            metavar="NAME",
            help="local: processes here (the default); direct, dataflow, flink, spark, ...: Apache "
            "Beam, its options after --",
        ),
        "--overwrite": dict(action="store_true", help="replace the store at --output"),
        "--train-tokenizer": dict(
            choices=tuple(_TRAINING_BYTES),
            help="first train one on the input, if there is none at --tokenizer yet",
        ),
        "--vocab-size": dict(
            type=positive,
            metavar="N",
            help="of a trained tokenizer (default: 30,000; word and char: all types)",
        ),
    }
    for name, settings in options.items():
        parser.add_argument(name, **settings)
    parser.add_argument(
        *("--field", "--text-field"),
        default="text",
        help="field of JSONL, column of CSV, feature of TFDS",
    )
    case = parser.add_mutually_exclusive_group()
    case.add_argument(
        "--lowercase",
        action="store_true",
        default=None,
        help="fold case (wordpiece, unigram: the default)",
    )
    case.add_argument("--cased", dest="lowercase", action="store_false", help="keep case")
    return parser
