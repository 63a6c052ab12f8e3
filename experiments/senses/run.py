"""One vector for a word, or one for each place: the senses of three words in MiniLM.

    python experiments/senses/run.py

Writes results.jsonl beside this file, and the figure of docs/lineage.md.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity

import firth

HERE = Path(__file__).parent
MARKS = ("o", "^", "s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--output", type=Path, default=HERE)
    parser.add_argument("--figure", type=Path, default=HERE.parents[1] / "docs/assets/senses.png")
    args = parser.parse_args()
    with open(HERE / "sentences.tsv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    encoder = firth.load(args.model, heads=False)
    words = list(dict.fromkeys(row["word"] for row in rows))
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    axes, lines = figure.subplots(2, len(words)), []
    for column, word in zip(axes.T, words, strict=True):
        own = [row for row in rows if row["word"] == word]
        senses = np.array([row["sense"] for row in own])
        hidden, around = vectors(encoder, word, [row["sentence"] for row in own])
        lines.append(measure(word, senses, hidden, around))
        draw(column, word, senses, hidden[:, -1])
    figure.savefig(args.figure, dpi=130)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (args.output / "results.jsonl").write_text(text)
    print(text, end="")


def vectors(encoder, word: str, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """([sentences, layers, D] at the word, the mean static vector of each sentence's other words).

    Static vectors are the rows of the encoder's own table of words.
    """
    found, around = [], []
    table = np.asarray(encoder.params["encoder"]["word"]["embedding"])
    for sentence in sentences:
        (encoding,) = encoder.tokenizer.encode([sentence])
        spans = [sentence[a:b].lower() for a, b in encoding.offsets]
        place = spans.index(word)  # each word is one piece of the vocabulary
        others = [i for n, i in enumerate(encoding.ids) if n != place]
        around.append(table[others].mean(0))
        found.append(np.asarray(encoder([sentence]).hidden)[1:, 0, place + 1])  # after [CLS]
    return np.stack(found), np.stack(around)


def purity(vectors: np.ndarray, senses: np.ndarray) -> float:
    """The share of places whose nearest other place, by cosine, has the same sense."""
    similar = cosine_similarity(vectors)
    np.fill_diagonal(similar, -np.inf)
    return float(np.mean(senses[similar.argmax(1)] == senses))


def measure(word: str, senses, hidden, around) -> dict:
    _, counts = np.unique(senses, return_counts=True)
    layers = [purity(hidden[:, i], senses) for i in range(hidden.shape[1])]
    return {
        "word": word,
        "places": len(senses),
        "majority": float(counts.max() / counts.sum()),
        # Leaving a place out, its sense is the rarest: always the majority of the others is wrong.
        "chance": float(np.mean([(n - 1) / (counts.sum() - 1) for n in counts for _ in range(n)])),
        "mean_of_static_vectors_around": purity(around, senses),
        "last_layer": layers[-1],
        "layers": layers,
    }


def draw(axes, word: str, senses, vectors):
    """Above the one static vector, below the contextual ones, each on its two main axes."""
    above, below = axes
    above.plot(0, 0, "k*", markersize=16)
    above.annotate(
        f"{len(senses)} places,\none vector", (0, 0), (14, -4), textcoords="offset points"
    )
    above.set(title=f"{word}: static", xlim=(-1, 1), ylim=(-1, 1))
    points = PCA(2).fit_transform(vectors)
    for mark, sense in zip(MARKS, dict.fromkeys(senses), strict=False):
        chosen = points[senses == sense]
        below.plot(*chosen.T, mark, label=sense, alpha=0.8)
    below.set(title=f"{word}: contextual")
    below.legend(fontsize=8)
    for axis in axes:
        axis.set(xticks=[], yticks=[])


if __name__ == "__main__":
    main()
