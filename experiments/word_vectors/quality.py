"""Word vectors against human judgements and analogies, beside trivial baselines.

    python experiments/word_vectors/quality.py --tests DIR --models runs/sg,runs/cbow \
        [--store store/] [--gensim words.txt]

`--tests` holds questions-words.txt, wordsim353.tsv and simlex999.txt, which gensim ships in
gensim/test/test_data. Random vectors stand beside them. `--store` adds the positive pointwise
mutual information (PPMI) of words within 5 places, over the frequent words of the first model.
`--gensim` trains gensim on the same text by the same settings.

One line a model: Spearman's correlation with the judgements, the share of analogies solved among
the words of all models (3CosAdd), and how many were asked.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import scipy.sparse as sparse
from scipy.stats import spearmanr

from firth.data.corpus.store import open_store
from firth.inference.word_vectors import analogies
from firth.inference.word_vectors.model import WordModel
from firth.models.word_vectors import cooccurrence

SETS = {"WordSim-353": "wordsim353.tsv", "SimLex-999": "simlex999.txt"}
PARTS = "semantic", "syntactic", "total"


class Plain:
    """Vectors of words, with the parts of a WordModel that the measures use."""

    def __init__(self, words, vectors):
        self.words, self.vectors = words, vectors
        self.numbers = {word: number for number, word in enumerate(words)}

    def row(self, word: str) -> int:
        return self.numbers.get(word, -1)


def read_judgements(path: Path) -> list[tuple[str, str, float]]:
    """(word, word, judgement) of the lines that have them."""
    found = []
    for line in path.read_text().splitlines():
        parts = line.split("\t")
        if not line.startswith("#") and len(parts) >= 3:
            try:
                found.append((parts[0].lower(), parts[1].lower(), float(parts[2])))
            except ValueError:
                continue  # the head of the table
    return found


def correlation(model, judgements, known) -> tuple[float, int]:
    """Spearman's rho with the judgements on pairs of known words, and how many these are."""
    pairs = [(a, b, score) for a, b, score in judgements if {a, b} <= known]
    rows = np.array([[model.row(a), model.row(b)] for a, b, _ in pairs])
    if sparse.issparse(model.vectors):
        cosines = np.asarray(model.vectors[rows[:, 0]].multiply(model.vectors[rows[:, 1]]).sum(1))
    else:
        cosines = (
            analogies.unit(model.vectors[rows[:, 0]]) * analogies.unit(model.vectors[rows[:, 1]])
        ).sum(1)
    return spearmanr(np.ravel(cosines), [score for *_, score in pairs])[0], len(pairs)


def solved(model, sections, known) -> dict[str, tuple[int, int]]:
    """{"total": (right, asked), ...} on questions of known words, answered by known words."""
    asked = [(name, [q for q in qs if {w.lower() for w in q} <= known]) for name, qs in sections]
    rows = [model.row(word) for word in sorted(known)]
    part = Plain(sorted(known), model.vectors[rows])
    if sparse.issparse(part.vectors):
        return {name: sparse_solved(part, asked, name) for name in PARTS}
    return {s.name: (s.right, s.asked) for s in analogies.score(part, asked) if s.name in PARTS}


def sparse_solved(model, sections, part: str) -> tuple[int, int]:
    """The same for sparse vectors of length 1."""
    right, asked = 0, 0
    for name, questions in sections:
        grammar = name.startswith(analogies.SYNTACTIC)
        if not questions or part not in ("total", "syntactic" if grammar else "semantic"):
            continue
        rows = np.array([[model.row(w.lower()) for w in four] for four in questions])
        for some in np.array_split(rows, -(-len(rows) // 256)):
            a, b, c = (model.vectors[some[:, k]] for k in range(3))
            scores = ((b - a + c) @ model.vectors.T).toarray()
            np.put_along_axis(scores, some[:, :3], -np.inf, 1)
            right += int((scores.argmax(1) == some[:, 3]).sum())
        asked += len(rows)
    return right, asked


def ppmi(store_path: str, words: list[str], window: int = 5) -> Plain:
    """The PPMI rows of some words, of length 1, sparse."""
    store = open_store(store_path)
    ids = [store.tokenizer().id(word) for word in words]
    rows = np.full(store.tokenizer().vocab_size, -1, np.int32)
    rows[ids] = np.arange(len(ids))
    units = np.searchsorted(np.asarray(store.sentences), np.arange(store.num_tokens), "right")
    cells = cooccurrence.count(rows[np.asarray(store.tokens)], units, len(ids), window)
    counts = np.bincount(cells.rows, cells.values, len(ids))
    values = np.log(cells.values * counts.sum() / (counts[cells.rows] * counts[cells.columns]))
    values = np.maximum(values, 0).astype(np.float32)
    table = sparse.csr_matrix((values, (cells.rows, cells.columns)), (len(ids), len(ids)))
    table.eliminate_zeros()
    norms = np.sqrt(np.asarray(table.multiply(table).sum(1)))
    return Plain(words, sparse.diags(1 / np.maximum(norms.ravel(), 1e-12)).tocsr() @ table)


def gensim_models(text: str):
    """(name, vectors) of gensim's skip-gram and CBOW with Firth's defaults."""
    from gensim.models import Word2Vec

    lines = [line.split() for line in Path(text).read_text().splitlines()]
    for name, sg, alpha in (("gensim skip-gram", 1, 0.025), ("gensim CBOW", 0, 0.05)):
        settings = dict(vector_size=100, window=5, min_count=5, sample=1e-3, negative=5, epochs=5)
        model = Word2Vec(lines, sg=sg, alpha=alpha, workers=1, seed=1, **settings)
        yield name, Plain(model.wv.index_to_key, model.wv.vectors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", required=True)
    parser.add_argument("--models", required=True, help="workdirs or files, with commas between")
    parser.add_argument("--store")
    parser.add_argument("--gensim", metavar="TEXT")
    parser.add_argument("--most-frequent", type=int, default=30_000)
    parser.add_argument("--output", help="a .jsonl to append the results to")
    args = parser.parse_args()
    found = {Path(name).name: WordModel(name) for name in args.models.split(",")}
    first = next(iter(found.values()))
    if args.gensim:
        found |= dict(gensim_models(args.gensim))
    if args.store:
        found["PPMI"] = ppmi(args.store, first.words[: args.most_frequent])
    random = np.random.default_rng(0).normal(size=first.vectors.shape)
    found["random"] = Plain(first.words, random.astype(np.float32))
    known = set(first.words[: args.most_frequent])
    known &= set.intersection(*(set(model.words) for model in found.values()))
    sections = analogies.read_questions(str(Path(args.tests) / "questions-words.txt"))
    sets = {name: read_judgements(Path(args.tests) / file) for name, file in SETS.items()}
    print(f"{len(known):,} words that all know")
    for name, model in found.items():
        entry = {"model": name}
        for title, judgements in sets.items():
            rho, pairs = correlation(model, judgements, known)
            entry |= {title: round(float(rho), 3), f"{title} pairs": pairs}
        for part, (right, asked) in solved(model, sections, known).items():
            entry |= {part: round(100 * right / max(asked, 1), 1), f"{part} asked": asked}
        print(json.dumps(entry), flush=True)
        if args.output:
            with open(args.output, "a") as file:
                file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
