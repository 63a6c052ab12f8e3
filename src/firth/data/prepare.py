"""`firth prepare`: a corpus in, a corpus store out.

    firth prepare --input 'corpus/*.txt' --tokenizer tok/ --output store/

The input is cut into batches of a few megabytes (`text.py`), worker processes segment and tokenise
them into parts (`parts.py`), and the parts are appended to the store in the order of the input.
Parts are kept in OUTPUT.partial/ until the store is complete, so that a run that was killed goes on
where it was, provided that input, tokenizer and options are the same. The store depends on the
text, the tokenizer and the options alone, not on workers or interruptions: another runner gets the
same bytes from `read_batches`, `encode_blocks` and `StoreWriter`.
"""

import argparse
import contextlib
import fcntl
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import firth
from firth.data.parts import Options, make_parts
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
) -> Store:
    """Tokenise a corpus into a store at `output` and open it.

    Args:
        inputs: file names, glob patterns or `tfds:NAME[:split]`.
        tokenizer: becomes part of the store.
        output: the directory to make; OUTPUT.partial beside it holds unfinished work.
        options: format, field, document and sentence rules, treatment of undecodable bytes.
        workers: processes; None takes the cores that this process may use. With more than one, a
            script must call this under `if __name__ == "__main__":`, as multiprocessing requires.
        overwrite: replace the store at `output`, once the new one is complete.
        block_bytes: text in one unit of work.

    Raises FirthError for missing, empty or bad input, an output that exists, a full disk.
    """
    for name, choices in _CHOICES.items():
        if getattr(options, name) not in choices:
            known = ", ".join(str(c) for c in choices)
            raise FirthError(f"{name} is {getattr(options, name)!r}; expected one of {known}")
    output = Path(output)
    _check_output(output, overwrite)
    sources = find_sources(inputs, options.format)
    _check_newlines(sources, tokenizer, options)
    partial = output.with_name(output.name + ".partial")
    with _locked(partial):
        _check_plan(partial, sources, tokenizer, options, block_bytes)
        if not (partial / "store").exists():
            _write_store(partial, sources, tokenizer, options, workers or _cores(), block_bytes)
        with explained(output):
            if output.exists():
                shutil.rmtree(partial / "replaced", ignore_errors=True)
                output.rename(partial / "replaced")
            (partial / "store").rename(output)
        shutil.rmtree(partial, ignore_errors=True)
    return open_store(output, verify=False)


def _check_output(output: Path, overwrite: bool) -> None:
    if not output.exists():
        return
    if not overwrite:
        raise FirthError(f"{output} exists; replace it with --overwrite or choose another --output")
    if not (output / "manifest.json").is_file():
        raise FirthError(f"{output} is not a corpus store, so --overwrite leaves it alone")


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


@contextlib.contextmanager
def _locked(partial: Path) -> Iterator[None]:
    """Make the folder of unfinished work and keep other runs out of it."""
    with explained(partial):
        partial.mkdir(parents=True, exist_ok=True)
        lock = (partial / "lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FirthError(
                f"another firth prepare is writing {partial}; wait for it or choose another output"
            ) from None
        yield


def _check_plan(
    partial: Path,
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    options: Options,
    block_bytes: int,
) -> None:
    """Keep the parts of an earlier run if it did what this one is to do; else begin anew."""
    plan = {
        "firth": firth.__version__,
        "input": [source.fingerprint() for source in sources],
        "tokenizer": tokenizer.digest,
        "options": options._asdict(),
        "block_bytes": block_bytes,
    }
    path, parts = partial / "plan.json", partial / "parts"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if found == plan:
        _note(f"going on with {len(list(parts.glob('*.npz')))} parts found in {partial}")
        return
    if found is not None:
        _note(f"beginning anew: input, tokenizer or options differ from those of {partial}")
    with explained(partial):
        for old in (partial / "parts", partial / "store", partial / "replaced"):
            shutil.rmtree(old, ignore_errors=True)
        parts.mkdir()
        write_json(path, plan)


def _write_store(
    partial: Path,
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    options: Options,
    workers: int,
    block_bytes: int,
) -> None:
    description = {
        "input": [source.describe() for source in sources],
        "options": options._asdict(),
    }
    batches = read_batches(sources, options.field, options.errors, block_bytes)
    parts = make_parts(batches, partial / "parts", tokenizer, options, workers)
    tokens = 0
    with (
        StoreWriter(partial / "store", tokenizer, **description) as writer,
        contextlib.closing(parts),
        Progress("prepare", sum(source.bytes for source in sources)) as progress,
    ):
        for batch, part, new in parts:
            writer.append(*part)
            tokens += len(part.tokens) if new else 0
            progress.update(batch.position, tokens)
        if not writer.num_tokens:
            names = ", ".join(source.name for source in sources[:3])
            raise FirthError(f"the input holds no text: {len(sources)} sources ({names})")
    empty = [source.name for source in sources if source.format != "tfds" and not source.bytes]
    if empty:
        _note(f"{len(empty)} of {len(sources)} input files are empty, {empty[0]} among them")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


def _train(path: Path, args: argparse.Namespace, options: Options) -> None:
    """Train a tokenizer on the input, or an even sample of it, and save it at `path`."""
    sources = find_sources(args.input, options.format)
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
            nargs="+",
            action="extend",
            required=True,
            metavar="FILE",
            help="files and patterns ('dir/**/*.txt'), .gz and .xz too, or tfds:NAME[:split]",
        ),
        "--tokenizer": dict(required=True, metavar="DIR", help="directory or file of a tokenizer"),
        "--output": dict(required=True, metavar="DIR", help="the store to make"),
        "--format": dict(choices=FORMATS, help="default: by extension, else text"),
        "--field": dict(default="text", help="field of JSONL, column of CSV, feature of TFDS"),
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
    args = _parser().parse_args(argv)
    options = Options(*(getattr(args, name) for name in Options._fields))
    if args.workers is not None and args.workers < 1:
        raise FirthError(f"--workers is {args.workers}; expected 1 or more")
    output = Path(args.output)
    _check_output(output, args.overwrite)
    begin = time.monotonic()
    store = prepare(
        args.input,
        _tokenizer(args, options),
        output,
        options,
        workers=args.workers,
        overwrite=args.overwrite,
    )
    seconds = time.monotonic() - begin
    print(
        f"{output}: {store.num_tokens:,} tokens, {store.num_sentences:,} sentences, "
        f"{store.num_documents:,} documents in {seconds:,.1f} s"
    )
    return 0
