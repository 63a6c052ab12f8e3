"""`firth prepare --runner`: make the parts of a store with Apache Beam, here or on a cluster.

    groups of sources ──read──▶ batches of blocks ──shuffle, encode──▶ part files ──▶ index.json

The pipeline reads and encodes with the functions of the local path (`text.read_batches`,
`parts.encode_blocks`). So the parts hold the same documents in the same order, whatever the cuts.
The process that started the pipeline then joins them in the order of the index. A pipeline reuses
the parts of an earlier one that failed.
"""

import contextlib
import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import create_runner

from firth.data.corpus.parts import Options, Part, encode_blocks, load_part, save_part
from firth.data.corpus.text import Batch, Input, read_batches
from firth.errors import FirthError
from firth.storage.remote import is_url, join, read_bytes, remove, write_bytes
from firth.tokenizers.base import Tokenizer
from firth.tokenizers.word_cache import CachedTokenizer

# Beam's "direct" runner first tries to fetch a program from the network. This is its fallback.
_DIRECT = "FnApiRunner"
_READ_AHEAD = 16  # parts


def make_parts(
    sources: Sequence[Input],
    folder: str | os.PathLike,
    tokenizer: Tokenizer,
    options: Options,
    block_bytes: int,
    runner: str,
    arguments: Sequence[str] = (),
) -> Iterator[tuple[int, Part, bool]]:
    """Run the pipeline and yield (bytes read so far, part, True) in the order of the sources.

    Args:
        folder: where the parts go, local or a URL; every worker needs access to it and to the
            sources.
        runner: "direct" (this machine), "dataflow", "flink", "spark" or another runner of Beam.
        arguments: Beam's pipeline options, as on the command line.

    Raises FirthError for bad input (the first that a worker meets) and for a failed pipeline.
    """
    index = _read_index(folder)
    if index is None:
        _run(sources, folder, tokenizer, options, block_bytes, runner, arguments)
        index = _read_index(folder)
    if index is None:
        raise FirthError(
            f"the workers wrote no parts into {folder} that this machine can see; give --output as "
            "a URL (gs://...) or a path on a file system that all of them share"
        )
    with ThreadPoolExecutor(_READ_AHEAD) as pool:
        paths = [join(folder, _name(group, number)) for group, number, _ in index]
        ahead = deque(pool.submit(load_part, path) for path in paths[:_READ_AHEAD])
        for place, (path, (_, _, position)) in enumerate(zip(paths, index, strict=True)):
            part = ahead.popleft().result()
            if place + _READ_AHEAD < len(paths):
                ahead.append(pool.submit(load_part, paths[place + _READ_AHEAD]))
            if part is None:
                _remove(join(folder, "index.json"))
                raise FirthError(f"{path} cannot be read back; run the same command again")
            yield position, part, True


def _run(sources, folder, tokenizer, options, block_bytes, runner, arguments) -> None:
    try:
        direct = runner.lower() in ("direct", "directrunner")
        beam_runner = create_runner(_DIRECT if direct else runner)
    except (ImportError, ValueError) as error:
        raise FirthError(f"--runner {runner}: {error}") from None
    failure = join(folder, "error.txt")
    _remove(failure)
    try:
        with beam.Pipeline(beam_runner, PipelineOptions(list(arguments))) as pipeline:
            (
                pipeline
                | "groups" >> beam.Create(list(_groups(sources, block_bytes)))
                | "spread groups" >> beam.Reshuffle()
                | "read" >> beam.ParDo(_Read(options, block_bytes, failure))
                | "spread batches" >> beam.Reshuffle()
                | "encode" >> beam.ParDo(_Encode(tokenizer, options, folder, failure))
                | "collect" >> beam.combiners.ToList()
                | "index" >> beam.Map(_write_index, folder)
            )
    except Exception as error:
        message = read_bytes(failure)
        if message is not None:
            raise FirthError(message.decode()) from error
        reason = str(error).strip().splitlines()
        raise FirthError(
            f"the {runner} pipeline failed: {reason[-1] if reason else type(error).__name__}; run "
            "the same command again: it keeps the finished parts"
        ) from error


def _groups(sources: Sequence[Input], block_bytes: int) -> Iterator[tuple[int, int, list[Input]]]:
    """(number, bytes of all sources before, sources): small neighbours share a group."""
    group, size, before, number = [], 0, 0, 0
    for source in sources:
        if group and (size + source.bytes > block_bytes or source.format == "tfds"):
            yield number, before, group
            number, before, group, size = number + 1, before + size, [], 0
        group.append(source)
        size += source.bytes
    yield number, before, group


class _Read(beam.DoFn):
    """Turns a group of sources into its batches: ((group, number), batch)."""

    def __init__(self, options: Options, block_bytes: int, failure: str | os.PathLike):
        self._options, self._block_bytes, self._failure = options, block_bytes, failure

    def process(self, element):
        group, before, sources = element
        with _report_errors(self._failure):
            batches = read_batches(
                sources, self._options.field, self._options.errors, self._block_bytes
            )
            for number, batch in enumerate(batches):
                yield (group, number), Batch(batch.blocks, before + batch.position)


class _Encode(beam.DoFn):
    """Writes the part of a batch to a file and emits (group, number, bytes read so far)."""

    def __init__(self, tokenizer: Tokenizer, options: Options, folder, failure):
        self._tokenizer, self._options = tokenizer, options
        self._folder, self._failure = folder, failure

    def setup(self):
        self._cached = CachedTokenizer(self._tokenizer)

    def process(self, element):
        key, batch = element
        path = join(self._folder, _name(*key))
        with _report_errors(self._failure):
            if load_part(path) is None:
                save_part(path, encode_blocks(batch.blocks, self._cached, self._options))
        yield (*key, batch.position)


@contextlib.contextmanager
def _report_errors(failure: str | os.PathLike) -> Iterator[None]:
    """Write a FirthError to a file for the waiting process, because runners lose exceptions."""
    try:
        yield
    except FirthError as error:
        write_bytes(failure, str(error).encode())
        raise


def _name(group: int, number: int) -> str:
    return f"{group:06d}-{number:06d}.npz"


def _write_index(entries: list, folder: str | os.PathLike) -> None:
    """The last step of the pipeline: an index means that all parts exist."""
    write_bytes(join(folder, "index.json"), json.dumps(sorted(entries)).encode())


def _read_index(folder: str | os.PathLike) -> list | None:
    text = read_bytes(join(folder, "index.json"))
    return None if text is None else json.loads(text)


def _remove(path: str | os.PathLike) -> None:
    remove(path) if is_url(path) else Path(path).unlink(missing_ok=True)
