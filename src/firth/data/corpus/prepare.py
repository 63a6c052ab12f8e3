"""`firth prepare`: tokenise a corpus into a corpus store.

    firth prepare --input 'corpus/*.txt' --tokenizer tok/ --output store/
    firth prepare --tfds wiki40b/en --text-field text --tokenizer tok/ --output store/

`text.py` cuts the input into batches of a few megabytes. Worker processes segment and tokenise them
into parts (`parts.py`). This process appends the parts to the store in the order of the input.
OUTPUT.partial/ holds the parts until the store is complete. So the same command resumes a killed
run if input, tokenizer and options are the same. The store depends only on the text, the tokenizer
and the options, not on workers or interruptions. With `--runner` Apache Beam makes the parts
(`beam.py`), and the store has the same bytes. A store at a URL (`--output gs://...`) is written to
local disk and then uploaded.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from firth.data.corpus.destination import check_output, locked, place, put_store, unfinished
from firth.data.corpus.parts import Options, Part, make_parts
from firth.data.corpus.store import Store, open_store
from firth.data.corpus.text import (
    BLOCK_BYTES,
    FORMATS,
    Input,
    find_sources,
    read_batches,
)
from firth.data.corpus.writer import StoreWriter, UnfinishedError, explained
from firth.errors import FirthError
from firth.progress import BytesProgress
from firth.storage.local import write_json
from firth.storage.remote import is_url
from firth.tokenizers.base import Tokenizer

CHOICES = {
    "format": (None, *FORMATS),
    "document": ("blank-line", "file"),
    "sentences": ("split", "line", "newline"),
    "errors": ("strict", "replace"),
}


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
            then the cache (see `remote.cache_folder`) holds unfinished work.
        options: format, field, document and sentence rules, treatment of undecodable bytes.
        workers: number of processes; None means one for each core that this process may use. With
            more than one, a script must call this under `if __name__ == "__main__":`, as
            multiprocessing requires.
        overwrite: replace the store at `output`, once the new one is complete.
        block_bytes: bytes of text in one unit of work.
        runner: "local" for `workers` processes here, or a runner of Apache Beam, which takes
            `runner_arguments` as its options.
        tfds_dir: TFDS's data_dir (None: its default); workers of a runner need access to it too.
        tfds_download: whether TFDS may download a missing dataset.

    Raises FirthError for missing, empty or bad input, an existing output, and a full disk.
    """
    for name, choices in CHOICES.items():
        if getattr(options, name) not in choices:
            known = ", ".join(str(c) for c in choices)
            raise FirthError(f"{name} is {getattr(options, name)!r}; expected one of {known}")
    output = place(output)
    check_output(output, overwrite)
    sources = find_sources(inputs, options.format, tfds_dir, tfds_download)
    _check_newlines(sources, tokenizer, options)
    partial = unfinished(output)
    remote = runner != "local" or any(map(is_url, [output, *inputs]))  # a network may have failed
    with locked(partial), _discarded(partial, unless=remote):
        plan = _check_plan(partial, sources, tokenizer, options, block_bytes, runner)
        if not (partial / "store").exists():
            if runner == "local":
                batches = read_batches(sources, options.field, options.errors, block_bytes)
                parts = make_parts(
                    batches, partial / "parts", tokenizer, options, workers or _cores()
                )
            else:
                # Remote workers see only the URL. Each plan has its own folder there.
                folder = f"{output}.partial/{plan}" if is_url(output) else partial / "parts"
                parts = _make_parts_with_beam()(
                    sources, folder, tokenizer, options, block_bytes, runner, runner_arguments
                )
            _write_store(partial, sources, tokenizer, options, parts)
        put_store(partial, output)
        shutil.rmtree(partial, ignore_errors=True)
    return open_store(output, verify=False)


@contextlib.contextmanager
def _discarded(partial: Path, unless: bool) -> Iterator[None]:
    """Remove the unfinished work after bad input, with which the same command fails again.

    It stays where the command can go on: after a full disk or a kill, and for `unless`.
    """
    try:
        yield
    except UnfinishedError:
        raise
    except FirthError:
        if not unless:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _make_parts_with_beam():
    try:
        from firth.data.corpus.beam import make_parts as make_parts_with_beam
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] != "apache_beam":
            raise
        raise FirthError(
            "--runner needs Apache Beam; install it with pip install 'firth[beam]'"
        ) from None
    return make_parts_with_beam


def _check_newlines(sources: Sequence[Input], tokenizer: Tokenizer, options: Options) -> None:
    if options.sentences != "newline":
        return
    if tokenizer.line_end_id is None:
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
    sources: Sequence[Input],
    tokenizer: Tokenizer,
    options: Options,
    block_bytes: int,
    runner: str,
) -> str:
    """Keep the parts of an earlier run if its plan is the same; otherwise delete them.

    Returns the digest of the plan.
    """
    plan = {
        "firth": metadata.version("firth"),
        "input": [source.fingerprint() for source in sources],
        "tokenizer": tokenizer.digest,
        "options": options._asdict(),
        "block_bytes": block_bytes,
        "cut": "local" if runner == "local" else "beam",
    }
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
    path, parts = partial / "plan.json", partial / "parts"
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        earlier = None
    if earlier == plan:
        note(f"resuming with the {len(list(parts.glob('*.npz')))} parts in {partial}")
        return digest
    if earlier is not None:
        note(f"starting over: input, tokenizer or options differ from those of {partial}")
    with explained(partial):
        for old in (partial / "parts", partial / "store", partial / "replaced"):
            shutil.rmtree(old, ignore_errors=True)
        parts.mkdir()
        write_json(path, plan)
    return digest


def _write_store(
    partial: Path,
    sources: Sequence[Input],
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
        BytesProgress("prepare", sum(source.bytes for source in sources)) as progress,
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
        note(f"{len(empty)} of {len(sources)} input files are empty, {empty[0]} among them")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def note(text: str) -> None:
    """Print a note on stderr."""
    print(f"note: {text}", file=sys.stderr, flush=True)
