"""Stores in memory for the tests of views: token p of the corpus is FIRST + p, which tells p."""

import random
import threading
from types import SimpleNamespace

import numpy as np

PAD, CLS, SEP, END, FIRST = 3, 1, 2, 4, 10
IDS = {"cls_id": CLS, "sep_id": SEP, "pad_id": PAD}


def store_of(documents: list[list[int]], dtype=np.uint32) -> SimpleNamespace:
    """A store whose documents have sentences of the given lengths."""
    lengths = [length for document in documents for length in document]
    sentences = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    borders = np.concatenate([[0], np.cumsum([len(d) for d in documents], dtype=np.int64)])
    tokens = np.arange(FIRST, FIRST + sentences[-1]).astype(dtype)
    return SimpleNamespace(
        tokens=tokens, sentences=sentences, documents=borders, digest=f"made {lengths}"
    )


def random_documents(
    seed: int, count: int, longest: int = 40, sentences: int = 30
) -> list[list[int]]:
    """`count` documents of 1..sentences sentences of 1..longest tokens."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, sentences + 1, count)
    return [rng.integers(1, longest + 1, size).tolist() for size in sizes]


def positions(row: np.ndarray) -> np.ndarray:
    """The corpus positions of the tokens in a row, special tokens left out."""
    return row[row >= FIRST].astype(np.int64) - FIRST


def same(left, right) -> bool:
    """Whether two batches have the same fields, dtypes and bytes."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and left[name].tobytes() == right[name].tobytes()
        for name in left
    )


def read_at_once(view, expected: list, batch_size: int, threads: int) -> list[int]:
    """The steps at which a view, read by several threads in random orders, gave another batch."""
    wrong = []

    def read(seed):
        for step in random.Random(seed).sample(range(len(expected)), len(expected)):
            if not same(view.batch(step, batch_size), expected[step]):
                wrong.append(step)

    started = [threading.Thread(target=read, args=(seed,)) for seed in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return wrong


def joined(batches) -> dict[str, np.ndarray]:
    """The rows of all batches in one."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def plain_line(documents, ends, order=None):
    """(tokens, sentence number of each) of the documents, as stored or in `order`, in lists."""
    begins = FIRST + np.cumsum([0, *map(sum, documents)])
    line, sentences, sentence = [], [], 0
    for number in range(len(documents)) if order is None else order:
        token = begins[number]
        for place, size in enumerate(documents[number], 1):
            end = ends == "sentence" or (ends == "document" and place == len(documents[number]))
            line += [*range(token, token + size), *[END] * end]
            sentences += [sentence] * (size + end)
            sentence += 1
            token += size
    return line, sentences
