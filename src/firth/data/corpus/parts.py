"""Tokenised parts of a corpus: worker processes write them to files until the store is complete.

A `Part` is one batch of the input as token ids. `make_parts` yields the parts of all batches in
order. It loads the parts of an earlier, interrupted run and makes the others.
"""

import concurrent.futures
import gc
import io
import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

import numpy as np

from firth.data.corpus.manifest import token_dtype
from firth.data.corpus.sentences import split_sentences
from firth.data.corpus.text import Batch, Block, read_documents
from firth.data.corpus.writer import UnfinishedError, explained
from firth.storage.remote import read_bytes, write_bytes
from firth.tokenizers.base import Tokenizer
from firth.tokenizers.word_cache import CachedTokenizer


class Options(NamedTuple):
    """The options that decide the contents of a store; see `firth prepare -h`."""

    format: str | None = None
    field: str = "text"
    document: str = "blank-line"
    sentences: str = "split"
    errors: str = "strict"


class Part(NamedTuple):
    """A tokenised batch; its fields are the arguments of `StoreWriter.append`.

    tokens: uint16 or uint32 [t]. sentence_lengths: uint32 [s], in tokens, none 0.
    document_lengths: uint32 [d], in sentences. continued: the first document continues the last one
    of the previous part.
    """

    tokens: np.ndarray
    sentence_lengths: np.ndarray
    document_lengths: np.ndarray
    continued: bool


def encode_blocks(blocks: Sequence[Block], cached: CachedTokenizer, options: Options) -> Part:
    """Segment and tokenise consecutive blocks.

    With sentences="newline" every line end becomes a token, the tokenizer's `line_end_id`, at the
    end of its sentence. Raises FirthError for bad text, with file and line.
    """
    sentences, ends, ended = [], [], []
    for block in blocks:
        if block.continued and ends:
            ends.pop()
        documents = read_documents(block, options.field, options.document, options.errors)
        for document in documents:
            lines = document.split("\n")
            if options.sentences == "split":
                sentences += itertools.chain.from_iterable(map(split_sentences, lines))
            elif options.sentences == "line":
                sentences += filter(None, map(str.strip, lines))
            else:  # keep the text as it is; no line end follows the last line
                ended += range(len(sentences), len(sentences) + len(lines) - 1)
                sentences += lines
            ends.append(len(sentences))
    tokens, lengths = cached.encode_flat(sentences)
    if ended:
        tokens = np.insert(tokens, np.cumsum(lengths)[ended], cached.tokenizer.line_end_id)
        lengths[ended] += 1
    # A sentence of control characters has no tokens; the part omits it.
    numbers = np.concatenate(([0], np.cumsum(lengths > 0)))
    return Part(
        tokens.astype(token_dtype(cached.tokenizer.vocab_size)),
        lengths[lengths > 0].astype(np.uint32),
        np.diff(numbers[ends], prepend=0).astype(np.uint32),
        continued=blocks[0].continued,
    )


def save_part(path: str | os.PathLike, part: Part) -> None:
    """Write a part to a file or a URL; FirthError if that fails."""
    content = io.BytesIO()
    np.savez(content, **part._asdict())
    with explained(path):
        write_bytes(path, content.getvalue())


def load_part(path: str | os.PathLike) -> Part | None:
    """The part in a file; None if the file is missing or damaged (numpy checks the CRCs)."""
    content = read_bytes(path)
    if content is None:
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return Part(*(arrays[name] for name in Part._fields))
    except Exception:  # numpy and zipfile raise many kinds for damaged files
        return None


def make_parts(
    batches: Iterable[Batch], folder: Path, tokenizer: Tokenizer, options: Options, workers: int
) -> Iterator[tuple[int, Part, bool]]:
    """Yield (bytes read so far, part, whether this run made it) in the order of the batches.

    Writes new parts into `folder` at once. Memory holds about two batches for each worker.
    """
    with _Workers(tokenizer, options, workers) as pool:
        waiting = deque()
        for number, batch in enumerate(batches):
            path = folder / f"{number:06d}.npz"
            part = load_part(path)
            future = None if part else pool.submit(batch.blocks, path)
            waiting.append((batch.position, part, path, future))
            if len(waiting) > 2 * workers:
                yield _next_part(waiting)
        while waiting:
            yield _next_part(waiting)


def _next_part(waiting: deque) -> tuple[int, Part, bool]:
    position, part, path, future = waiting.popleft()
    if future is None:
        return position, part, False
    try:
        future.result()
    except BrokenProcessPool:
        raise UnfinishedError(
            "a worker process died, perhaps for lack of memory (or because a script started it "
            "without `if __name__ == '__main__'`); run the same command again to resume, with "
            "fewer --workers if memory is short"
        ) from None
    part = load_part(path)
    if part is None:
        raise UnfinishedError(f"{path} cannot be read back; run the same command again")
    return position, part, True


class _Workers:
    """Processes that turn batches into part files; one worker means this process itself."""

    def __init__(self, tokenizer: Tokenizer, options: Options, number: int):
        self._setup = (tokenizer, options)
        self._number = number
        self._pool = None

    def __enter__(self) -> "_Workers":
        if self._number > 1:
            # Not fork: threads of the tokenizers library and of the progress bar may be running.
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self._number,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_begin_worker,
                initargs=self._setup,
            )
        else:
            _state[:] = [CachedTokenizer(self._setup[0]), self._setup[1]]
        return self

    def __exit__(self, *error) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
        _state.clear()

    def submit(self, blocks: list[Block], path: Path) -> concurrent.futures.Future:
        if self._pool:
            return self._pool.submit(_work, blocks, path)
        done = concurrent.futures.Future()
        done.set_result(_work(blocks, path))
        return done


_state = []  # in a worker: its CachedTokenizer and the Options


def _begin_worker(tokenizer: Tokenizer, options: Options) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other processes use the other cores
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and ends the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Encoding makes many lists and no cycles; looking for some took a sixth of a worker's time.
    gc.set_threshold(1 << 20)
    _state[:] = [CachedTokenizer(tokenizer), options]


def _end_with_parent() -> None:
    """End with the parent; otherwise the worker of a killed parent would wait for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(blocks: list[Block], path: Path) -> None:
    save_part(path, encode_blocks(blocks, *_state))
