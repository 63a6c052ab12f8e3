"""Small corpora, as text and as ids, and whether two stores have the same files."""

import random

import numpy as np

WORDS = "the vase broke when it fell off table Mr. hall 3.14 wishing café and nobody mended"


def sentence(rng):
    return " ".join(["The", *rng.choices(WORDS.split(), k=rng.randrange(3, 12)), "end."])


def make_documents(count, seed=0):
    """Documents of lines of sentences."""
    rng = random.Random(seed)
    return [
        [[sentence(rng) for _ in range(rng.randrange(1, 5))] for _ in range(rng.randrange(1, 6))]
        for _ in range(count)
    ]


def as_text(documents):
    return "\n\n".join("\n".join(" ".join(line) for line in d) for d in documents) + "\n"


def same_files(one, other):
    names = sorted(str(p.relative_to(one)) for p in one.rglob("*") if p.is_file())
    assert names == sorted(str(p.relative_to(other)) for p in other.rglob("*") if p.is_file())
    assert len(names) >= 6
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def random_ids(seed, size):
    """Documents of sentences of token ids; some documents are empty."""
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(0, size, rng.integers(1, 9)) for _ in range(rng.integers(0, 5))]
        for _ in range(60)
    ]


def append(writer, documents, continued=False):
    """Append documents of `random_ids` to a StoreWriter."""
    sentences = [s for document in documents for s in document]
    tokens = np.concatenate([*sentences, np.zeros(0, int)])
    writer.append(tokens, [len(s) for s in sentences], [len(d) for d in documents], continued)
