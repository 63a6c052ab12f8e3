"""An n-gram model and its tokenizer: it scores texts, continues prompts and takes part in mixtures.

B rows, T tokens, V vocabulary.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.data.corpus.stream import Stream
from firth.errors import FirthError
from firth.models.ngram import files
from firth.tokenizers.load import load_tokenizer


class NgramLM:
    """The model in a workdir of `firth train --config ngram.py`.

    Attributes: source, model (`firth.models.ngram.model.Ngram`), tokenizer, ends ("sentence" or
    "document": what its `<s>` begins), max_length (no text is too long). Raises FirthError naming
    the file that is missing or damaged.
    """

    kind = "causal"
    max_length = sys.maxsize

    def __init__(self, source):
        self.source = Path(source)
        self.model, spec = files.load(self.source)
        self.ends = spec["ends"]
        self.tokenizer = load_tokenizer(self.source / "tokenizer")
        if self.tokenizer.vocab_size != self.model.size:
            raise FirthError(
                f"{self.source}/tokenizer has {self.tokenizer.vocab_size} tokens, but the model "
                f"has {self.model.size}; they are not a pair"
            )

    def log_probs(self, stream: Stream) -> np.ndarray:
        """float64 [T]: the natural log-probability of each token of a stream."""
        return self.model.score(stream.tokens, stream.starts)

    def score(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """float32 [n] of each row: the log-probabilities of its tokens after `<s>`."""
        lengths = np.array([len(row) for row in rows])
        borders = np.cumsum(lengths)
        tokens = np.array([token for row in rows for token in row], np.int32)
        starts = np.zeros(len(tokens), bool)
        starts[(borders - lengths)[lengths > 0]] = True
        scores = self.model.score(tokens, starts).astype(np.float32)
        return np.split(scores, borders[:-1]) if rows else []

    def blocks(self, prompts, numbers, max_tokens: int, seed: int, settings: dict, size: int):
        """As `firth.inference.decode.blocks`: int32 [B, T] at a time, for rows that continue."""
        listed_V = np.array([token != "" for token in self.tokenizer.vocab])  # "" is a hole
        draws = [np.random.default_rng([seed, *map(int, number)]) for number in numbers]
        texts = [[self.model.size, *map(int, prompt)] for prompt in prompts]
        tokens_BT, generated = None, 0
        while True:
            open_B = yield tokens_BT
            steps = min(size, max_tokens - generated)
            generated += steps
            tokens_BT = np.zeros((len(texts), steps), np.int32)
            for row in np.flatnonzero(open_B):
                for step in range(steps):
                    token = self._next(texts[row], listed_V, draws[row], settings)
                    texts[row].append(token)
                    tokens_BT[row, step] = token

    def _next(self, text: list[int], listed_V, draw, settings: dict) -> int:
        context = text[max(len(text) - self.model.order, 0) :]
        if self.tokenizer.end_id in context:  # a new text begins
            last = len(context) - 1 - context[::-1].index(self.tokenizer.end_id)
            context = [self.model.size, *context[last + 1 :]]
        log_probs_V = np.where(listed_V, self.model.distribution(context), -np.inf)
        return choose(log_probs_V, draw, **settings)


def choose(log_probs_V, draw: np.random.Generator, *, temperature, top_k, top_p, greedy) -> int:
    """The likeliest token, or a draw from the `top_k` likeliest and from the nucleus `top_p`."""
    if greedy:
        return int(np.argmax(log_probs_V))
    scores_V = (log_probs_V - log_probs_V.max()) / temperature
    order_V = np.argsort(-scores_V, kind="stable")[: top_k or None]
    p = np.exp(scores_V[order_V])
    p /= p.sum()
    if top_p < 1:
        p = np.where(np.cumsum(p) - p < top_p, p, 0)
    share = np.cumsum(p)
    return int(order_V[np.searchsorted(share, draw.random() * share[-1], side="right")])
