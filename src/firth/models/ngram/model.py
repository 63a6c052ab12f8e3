"""An n-gram model: tables of log-probabilities with back-off, as in an ARPA file.

T places of a text, G n-grams of one order, V words.
"""

from dataclasses import dataclass

import numpy as np

from firth.models.ngram.counts import with_starts


@dataclass(frozen=True)
class Ngram:
    """p(word | words before it), by the longest n-gram that the tables hold.

    If the n-gram h w is in a table, log p(w | h) stands there. Else it is the back-off weight of h
    (0 if h is in no table) plus log p(w | h without its first word). Every smoothing has this form.

    size: words of the vocabulary, V; the id V is `<s>`.
    keys: int64 [G] of each order, sorted; the number of the prefix in the table below * (V + 1) +
      the last word. Those of order 1 are 0 .. V.
    log_probs: float32 [G] of each order, natural logarithms.
    backoffs: float32 [G] of each order but the highest, natural logarithms.
    """

    size: int
    keys: tuple[np.ndarray, ...]
    log_probs: tuple[np.ndarray, ...]
    backoffs: tuple[np.ndarray, ...]

    @property
    def order(self) -> int:
        """Words of the longest n-grams."""
        return len(self.keys)

    def score(self, tokens_T: np.ndarray, starts_T: np.ndarray) -> np.ndarray:
        """float64 [T]: the natural log-probability of each word after those before it.

        `starts_T` is True at the first word of each sentence, which follows `<s>` alone.
        """
        words, depth = with_starts(tokens_T, starts_T, self.size)
        found, owed = np.full(len(words), np.nan), np.zeros(len(words))
        ranks = self._ranks(words, depth)
        for n in range(self.order, 0, -1):
            rank, open_ = ranks[n - 1], np.isnan(found)
            known = open_ & (rank >= 0)
            found[known] = owed[known] + self.log_probs[n - 1][rank[known]]
            if n > 1:
                context = np.concatenate([[-1], ranks[n - 2][:-1]])
                falls = open_ & ~known & (context >= 0) & (depth >= n - 1)
                owed[falls] += self.backoffs[n - 2][context[falls]]
        return found[depth > 0]

    def _ranks(self, words, depth) -> list[np.ndarray]:
        """For each order int64 [T]: the number of the n-gram that ends at each place, or -1."""
        ranks = [words.astype(np.int64)]
        for n in range(2, self.order + 1):
            rank = np.full(len(words), -1)
            place = np.flatnonzero(depth >= n - 1)
            place = place[ranks[-1][place - 1] >= 0]
            rank[place] = self._find(n, ranks[-1][place - 1], words[place])
            ranks.append(rank)
        return ranks

    def _find(self, order: int, prefix, word) -> np.ndarray:
        """The number of each n-gram in the table of its order, or -1."""
        table = self.keys[order - 1]
        wanted = np.asarray(prefix, np.int64) * (self.size + 1) + word
        if not len(table):
            return np.full(wanted.shape, -1)
        # The search is many times as fast for numbers in their order: it stays in the cache.
        by_size = np.argsort(wanted, axis=None)
        rank = np.empty(wanted.shape, np.int64)
        rank.flat[by_size] = np.searchsorted(table, wanted.flat[by_size])
        rank = np.minimum(rank, len(table) - 1)
        return np.where(table[rank] == wanted, rank, -1)

    def distribution(self, context) -> np.ndarray:
        """float64 [V]: the log-probability of every word after the words of a context.

        `context` are ids; id V, `<s>`, may be the first. Only its last order - 1 words count.
        """
        context = [int(word) for word in context][max(len(context) - self.order + 1, 0) :]
        log_probs_V = self.log_probs[0][: self.size].astype(np.float64)
        for n in range(1, len(context) + 1):  # by the context of the last n words
            rank = context[-n]
            for m, word in enumerate(context[len(context) - n + 1 :], 2):
                rank = int(self._find(m, rank, word)) if rank >= 0 else -1
            if rank < 0:
                continue
            log_probs_V += self.backoffs[n - 1][rank]
            first = rank * (self.size + 1)
            begin, end = np.searchsorted(self.keys[n], [first, first + self.size + 1])
            words = self.keys[n][begin:end] - first
            log_probs_V[words] = self.log_probs[n][begin:end]
        return log_probs_V
