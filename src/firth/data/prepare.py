"""`firth prepare`: a corpus in, a corpus store out.

    firth prepare --input 'corpus/*.txt' --tokenizer tok/ --output store/
    firth prepare --tfds wiki40b/en --text-field text --tokenizer tok/ --output store/

The input is cut into batches of a few megabytes (`text.py`), worker processes segment and tokenise
them into parts (`parts.py`), and the parts are appended to the store in the order of the input.
Parts are kept in OUTPUT.partial/ until the store is complete, so that a run that was killed goes on
where it was, provided that input, tokenizer and options are the same. The store depends on the
text, the tokenizer and the options alone, not on workers or interruptions; with `--runner` the
parts come from Apache Beam (`beam.py`), and are the same bytes once they are together. A store at a
URL (`--output gs://...`) is put together on local disk and then copied there.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import firth
from firth.data.destination import check_output, locked, place, put_store, unfinished
from firth.data.parts import Options, Part, make_parts
from firth.data.progress import Progress
from firth.data.store import Store, StoreWriter, explained, open_store
from firth.data.text import (
    BLOCK_BYTES,
    FORMATS,
    Source,
    find_sources,
    read_batches,
    read_documents,
)
from firth.data.tokenize import load_tokenizer, train_tokenizer
from firth.data.tokenizer import Tokenizer
from firth.errors import FirthError
from firth.files import write_json
from firth.paths import is_url

_CHOICES = {
    "format": (None, *FORMATS),
    "document": ("blank-line", "file"),
    "sentences": ("split", "line", "newline"),
    "errors": ("strict", "replace"),
}
# Text that a vocabulary is trained on at most. Training keeps it in memory, sentencepiece some
# twenty times its size, and the counts of words change little with more.
_TRAINING_BYTES = {
    "wordpiece": 256 << 20,
    "bpe": 256 << 20,
    "unigram": 32 << 20,
    "word": math.inf,  # every type counts, and only the types are kept
    "char": math.inf,
}
_COMPRESSION = 4  # how much smaller compressed text is taken to be, to choose that sample


def prepare(
    inputs: Sequence[str],
    tokenizer: Tokenizer,
    output: str | os.PathLike,
    options: Options = Options(),  # noqa: B008 (immutable)
    *,
    workers: int | None = None,
    overwrite: bool = False,
    block_bytes: int = BLOCK_BYTES,
    runner: str = "local",
    runner_arguments: Sequence[str] = (),
    tfds_dir: str | None = None,
    tfds_download: bool = False,
) -> Store:
    """Tokenise a corpus into a store at `output` and open it.

    Args:
        inputs: file names, glob patterns or URLs of either, or `tfds:NAME[:split]`.
        tokenizer: becomes part of the store.
        output: the directory to make; OUTPUT.partial beside it holds unfinished work. Or a URL;
            then the cache (see `paths.cache_folder`) holds the work.
        options: format, field, document and sentence rules, treatment of undecodable bytes.
        workers: processes; None takes the cores that this process may use. With more than one, a
            script must call this under `if __name__ == "__main__":`, as multiprocessing requires.
        overwrite: replace the store at `output`, once the new one is complete.
        block_bytes: text in one unit of work.
        runner: "local" for `workers` processes here, or a runner of Apache Beam, which takes
            `runner_arguments` as its options.
        tfds_dir: TFDS's data_dir (None: its default); workers of a runner must reach it too.
        tfds_download: whether TFDS may fetch what is not there.

    Raises FirthError for missing, empty or bad input, an output that exists, a full disk.
    """
    for name, choices in _CHOICES.items():
        if getattr(options, name) not in choices:
            known = ", ".join(str(c) for c in choices)
            raise FirthError(f"{name} is {getattr(options, name)!r}; expected one of {known}")
    output = place(output)
    check_output(output, overwrite)
    sources = find_sources(inputs, options.format, tfds_dir, tfds_download)
    _check_newlines(sources, tokenizer, options)
    partial = unfinished(output)
    with locked(partial):
        plan = _check_plan(partial, sources, tokenizer, options, block_bytes, runner)
        if not (partial / "store").exists():
            if runner == "local":
                batches = read_batches(sources, options.field, options.errors, block_bytes)
                parts = make_parts(
                    batches, partial / "parts", tokenizer, options, workers or _cores()
                )
            else:
                # Workers elsewhere see the URL. Parts of other plans lie beside these, in vain.
                folder = f"{output}.partial/{plan}" if is_url(output) else partial / "parts"
                parts = _make_parts_with_beam()(
                    sources, folder, tokenizer, options, block_bytes, runner, runner_arguments
                )
            _write_store(partial, sources, tokenizer, options, parts)
        put_store(partial, output)
        shutil.rmtree(partial, ignore_errors=True)
    return open_store(output, verify=False)


def _make_parts_with_beam():
    try:
        from firth.data.beam import make_parts as make_parts_with_beam
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] != "apache_beam":
            raise
        raise FirthError(
            "--runner needs Apache Beam; install it with pip install 'firth[beam]'"
        ) from None
    return make_parts_with_beam


def _check_newlines(sources: Sequence[Source], tokenizer: Tokenizer, options: Options) -> None:
    if options.sentences != "newline":
        return
    if tokenizer.end_id is None:
        raise FirthError(
            "sentences=newline writes line ends as the tokenizer's end-of-text token, but this "
            f"{tokenizer.kind} tokenizer has none (<eos>, </s>, ...); choose another one"
        )
    if options.document != "file" and any(source.format == "text" for source in sources):
        raise FirthError(
            "sentences=newline keeps blank lines, so they cannot divide documents; give "
            "--document=file with it"
        )


def _check_plan(
    partial: Path,
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    options: Options,
    block_bytes: int,
    runner: str,
) -> str:
    """Keep the parts of an earlier run if it did what this one is to do; else begin anew.

    Returns the digest of what is to be done.
    """
    plan = {
        "firth": firth.__version__,
        "input": [source.fingerprint() for source in sources],
        "tokenizer": tokenizer.digest,
        "options": options._asdict(),
        "block_bytes": block_bytes,
        "cut": "local" if runner == "local" else "beam",
    }
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
    path, parts = partial / "plan.json", partial / "parts"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if found == plan:
        _note(f"going on with {len(list(parts.glob('*.npz')))} parts found in {partial}")
        return digest
    if found is not None:
        _note(f"beginning anew: input, tokenizer or options differ from those of {partial}")
    with explained(partial):
        for old in (partial / "parts", partial / "store", partial / "replaced"):
            shutil.rmtree(old, ignore_errors=True)
        parts.mkdir()
        write_json(path, plan)
    return digest


def _write_store(
    partial: Path,
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    options: Options,
    parts: Iterator[tuple[int, Part, bool]],
) -> None:
    description = {
        "input": [source.describe() for source in sources],
        "options": options._asdict(),
    }
    tokens = 0
    with (
        StoreWriter(partial / "store", tokenizer, **description) as writer,
        contextlib.closing(parts),
        Progress("prepare", sum(source.bytes for source in sources)) as progress,
    ):
        for position, part, new in parts:
            writer.append(*part)
            tokens += len(part.tokens) if new else 0
            progress.update(position, tokens)
        if not writer.num_tokens:
            names = ", ".join(source.name for source in sources[:3])
            raise FirthError(f"the input holds no text: {len(sources)} sources ({names})")
    empty = [source.name for source in sources if not source.bytes]
    if empty:
        _note(f"{len(empty)} of {len(sources)} input files are empty, {empty[0]} among them")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


def _train(path: Path, args: argparse.Namespace, options: Options) -> None:
    """Train a tokenizer on the input, or an even sample of it, and save it at `path`."""
    sources = find_sources(args.input, options.format, args.tfds_dir, args.tfds_download)
    kind = args.train_tokenizer
    size = sum(s.bytes * (_COMPRESSION if s.name.endswith((".gz", ".xz")) else 1) for s in sources)
    every = max(1, math.ceil(size / _TRAINING_BYTES[kind]))
    share = f" of every {every}th batch" if every > 1 else ""
    limit = f" of {args.vocab_size:,}" if args.vocab_size else ""
    _note(f"training a {kind} vocabulary{limit} on the text{share}")
    batches = read_batches(sources, options.field, options.errors)
    tokenizer = train_tokenizer(
        kind,
        (
            line
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
        temporary.rename(path)


def _tokenizer(args: argparse.Namespace, options: Options) -> Tokenizer:
    path, kind = Path(args.tokenizer), args.train_tokenizer
    if kind and not path.exists():
        _train(path, args, options)
    elif not path.exists():
        raise FirthError(
            f"there is no tokenizer at {path}; name another --tokenizer, or make one of the input "
            "with --train-tokenizer=wordpiece"
        )
    tokenizer = load_tokenizer(path, lowercase=args.lowercase)
    if kind and tokenizer.kind != kind:
        raise FirthError(
            f"{path} holds a {tokenizer.kind} tokenizer, not the {kind} one to be trained; remove "
            "it, choose another --tokenizer, or leave --train-tokenizer out to use it"
        )
    return tokenizer


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="firth prepare",
        description="Turn a corpus into a store of tokens, sentences and documents.",
        epilog="A run that was interrupted goes on when the same command is given again.",
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
        "--tfds-download": dict(action="store_true", help="let TFDS fetch what is not there"),
        "--tokenizer": dict(required=True, metavar="DIR", help="directory or file of a tokenizer"),
        "--output": dict(required=True, metavar="DIR", help="the store to make, or its URL"),
        "--format": dict(choices=FORMATS, help="default: by extension, else text"),
        "--document": dict(
            choices=_CHOICES["document"],
            default="blank-line",
            help="what divides text files into documents (default: %(default)s)",
        ),
        "--sentences": dict(
            choices=_CHOICES["sentences"],
            default="split",
            help="split lines into sentences by rules (the default), or take each line for one; "
            "newline: also blank ones, with the tokenizer's end token (<eos>) for every line end",
        ),
        "--errors": dict(
            choices=_CHOICES["errors"],
            default="strict",
            help="stop at bytes that are not UTF-8, or replace them with U+FFFD",
        ),
        "--workers": dict(type=int, metavar="N", help="processes (default: one a core)"),
        "--runner": dict(
            default="local",
            metavar="NAME",
            help="local: processes here (the default); direct, dataflow, flink, spark, ...: Apache "
            "Beam, its options after --",
        ),
        "--overwrite": dict(action="store_true", help="replace the store at --output"),
        "--train-tokenizer": dict(
            choices=tuple(_TRAINING_BYTES),
            help="train one on the input first, if there is none at --tokenizer yet",
        ),
        "--vocab-size": dict(
            type=int,
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
        raise FirthError("nothing to prepare; give files with --input, or a dataset with --tfds")
    if args.workers is not None and args.workers < 1:
        raise FirthError(f"--workers is {args.workers}; expected 1 or more")
    output = place(args.output)
    check_output(output, args.overwrite)
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
