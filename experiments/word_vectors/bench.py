"""Words a second: Firth against gensim, on one core and the same text.

    python experiments/word_vectors/bench.py --text words.txt --words 2000000 --rounds 3

Every round trains an epoch with each side in turn, in this process, on one core. Seconds are those
of the processor, all threads together, which other jobs disturb little. The counting of words, a
first short call that compiles, and gensim's vocabulary are not timed. Needs gensim beside
Firth, `pip install gensim`; without it, Firth's side alone is timed.
"""

import argparse
import os
import statistics
import time
from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np

from firth.models.word_vectors.vocabulary import choose
from firth.run.word_vectors.corpus import PIECE, Corpus
from firth.run.word_vectors.methods import Word2Vec, Word2VecFields

KINDS = (
    ("skipgram", "negative", 0.025),
    ("cbow", "negative", 0.05),
    ("skipgram", "hierarchical", 0.025),
    ("cbow", "hierarchical", 0.05),
)


def corpus_of(lines: list[list[str]]) -> Corpus:
    """The text as a store would have it, a line a sentence."""
    counts = Counter(word for line in lines for word in line)
    ids = {word: number for number, word in enumerate(sorted(counts))}
    tokens = np.array([ids[word] for line in lines for word in line], np.int32)
    words = choose([counts[word] for word in ids], [], 5)
    borders = np.cumsum([0, *map(len, lines)])
    pieces = -(-len(tokens) // PIECE)
    return Corpus(words, words.rows(len(ids)), tokens, borders, pieces, -(-len(tokens) // pieces))


class Firth:
    """An epoch of Firth's training, as `firth train` runs it."""

    def __init__(self, corpus: Corpus, architecture: str, loss: str, lr: float):
        fields = Word2VecFields(architecture=architecture, loss=loss)
        self.method = Word2Vec(corpus, fields, 1, lr, 0)
        empty = self.method.prepare(0)._replace(steps=0)
        jax.block_until_ready(self.method.train(self.method.initial(), empty))

    def epoch(self) -> float:
        """Seconds of the processor."""
        begin, tables = time.process_time(), self.method.initial()
        for step in range(self.method.steps):
            tables, *_ = self.method.train(tables, self.method.prepare(step))
        jax.block_until_ready(tables)
        return time.process_time() - begin


class Gensim:
    """An epoch of gensim's, with one worker."""

    def __init__(self, gensim, lines, architecture: str, loss: str, lr: float):
        hierarchical = loss == "hierarchical"
        self.lines, self.model = (
            lines,
            gensim.Word2Vec(
                *(),
                **dict(vector_size=100, window=5, min_count=5, sample=1e-3, alpha=lr, workers=1),
                **dict(sg=int(architecture == "skipgram"), hs=int(hierarchical)),
                negative=0 if hierarchical else 5,
            ),
        )
        self.model.build_vocab(lines)

    def epoch(self) -> float:
        """Seconds of the processor."""
        begin = time.process_time()
        self.model.train(self.lines, total_examples=self.model.corpus_count, epochs=1)
        return time.process_time() - begin


def gensim_models():
    """gensim's models, or None."""
    try:
        from gensim import __version__, models

        return SimpleNamespace(Word2Vec=models.Word2Vec, version=__version__)
    except ImportError:
        print("gensim is not installed (pip install gensim): only Firth is timed")
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, help="words in lines, as text.py writes them")
    parser.add_argument("--words", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before JAX starts its threads
    lines, count = [], 0
    with open(args.text) as file:
        for line in file:
            lines.append(line.split())
            count += len(lines[-1])
            if count >= args.words:
                break
    corpus, gensim = corpus_of(lines), gensim_models()
    print(f"{count:,} words, {len(corpus.words):,} different with 5 or more, one core")
    print("words/s, median of rounds:   Firth     gensim   ratio")
    for kind in KINDS:
        sides = {"firth": Firth(corpus, *kind)}
        if gensim:
            sides["gensim"] = Gensim(gensim, lines, *kind)
        seconds = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name, side in sides.items():
                seconds[name].append(side.epoch())
        speeds = {name: count / statistics.median(values) for name, values in seconds.items()}
        row = f"{kind[0]}, {kind[1]:<12}".ljust(24) + f"{speeds['firth']:>10,.0f}"
        if gensim:
            row += f" {speeds['gensim']:>10,.0f}  {speeds['firth'] / speeds['gensim']:>5.2f}x"
        print(row)


if __name__ == "__main__":
    main()
