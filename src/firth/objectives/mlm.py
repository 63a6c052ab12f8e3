"""Masked language modelling, with or without a pair objective.

Next-sentence prediction: Devlin et al. 2019, section 3.1. Sentence-order prediction: Lan et al.
2020, section 3.1.
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.layers.products import Product, masked_words, of_body
from firth.objectives import mask, spans
from firth.objectives.losses import cross_entropy
from firth.objectives.objective import Objective, Sources

MASKINGS = ("token", "word", "ngram", "span", "frequency")
COUNTINGS = ("round", "floor")
PAIRS = ("none", "nsp", "sop")


@dataclasses.dataclass(frozen=True)
class MaskedLM(Objective):
    """Predict the original tokens at corrupted positions; `pairs` "nsp" or "sop" adds that loss.

    `masking` chooses up to `max_predictions` tokens a row: single tokens, whole words, ALBERT's
    n-grams of words, SpanBERT's spans of words, or single tokens by frequency, as DistilBERT does.
    `rates` are the fractions of (mask token, random token) among them. `word_starts` (bool [V])
    marks the tokens that begin a word, which words, n-grams and spans need; frequency needs
    `token_weights` (float32 [V], from `mask.smoothed_weights`).

    `counting` is BERT's "round" or RoBERTa's "floor" with a random remainder. `special_ids` are
    never chosen, except with `mask_specials`, as in RoBERTa; padding never is. Without
    `random_specials`, random tokens are none of `special_ids`, `reserved_ids` and `mask_id`.
    """

    mask_id: int
    vocab_size: int
    special_ids: tuple[int, ...]
    word_starts: np.ndarray | None = None
    masking: str = "token"
    rate: float = 0.15
    max_predictions: int = 20
    rates: tuple[float, float] = (0.8, 0.1)
    pairs: str = "none"
    counting: str = "round"
    mask_specials: bool = False
    random_specials: bool = True
    reserved_ids: tuple[int, ...] = ()
    token_weights: np.ndarray | None = None

    bidirectional = True

    @classmethod
    def from_config(cls, fields: dict, sources: Sources) -> "MaskedLM":
        """Build it from a config's `objective` section.

        `smoothing` (default 0.7) is the exponent of masking="frequency". Raises FirthError for a
        tokenizer without a mask token.
        """
        tokenizer = sources.tokenizer
        rates = (fields.pop("mask_rate", 0.8), fields.pop("random_rate", 0.1))
        smoothing = fields.pop("smoothing", 0.7)
        if tokenizer.mask_id is None:
            raise FirthError("masked language modelling needs a tokenizer with a mask token")
        special = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id)
        if fields.get("masking") == "frequency" and sources.counts:
            fields["token_weights"] = mask.smoothed_weights(
                sources.counts(), smoothing, tokenizer.special_ids
            )
        return cls(
            mask_id=tokenizer.mask_id,
            vocab_size=tokenizer.vocab_size,
            special_ids=tuple(i for i in special if i is not None),
            word_starts=tokenizer.word_starts,
            rates=rates,
            reserved_ids=tuple(sorted(tokenizer.special_ids)),
            **fields,
        )

    def __post_init__(self):
        for name, known in (
            ("masking", MASKINGS),
            ("counting", COUNTINGS),
            ("pairs", PAIRS),
        ):
            if getattr(self, name) not in known:
                raise FirthError(
                    f"objective.{name}={getattr(self, name)!r} is unknown; one of {known}"
                )
        if not 0 < self.rate < 1 or self.max_predictions < 1:
            raise FirthError(
                f"objective.rate={self.rate} and max_predictions={self.max_predictions} select "
                "nothing; rate must lie in (0, 1) and max_predictions be at least 1"
            )
        if min(self.rates) < 0 or sum(self.rates) > 1 + 1e-9:
            raise FirthError(
                f"objective.mask_rate={self.rates[0]} and random_rate={self.rates[1]} must not be "
                "negative or add up to more than 1; what is left of 1 keeps its token"
            )
        if self.mask_specials and self.masking != "token":
            raise FirthError(
                f"objective.mask_specials=True with masking={self.masking!r}: only masking='token' "
                "can choose special tokens; words, n-grams and spans end at them, and their "
                "frequency weighs nothing"
            )
        if not self.random_specials and len(self._avoided()) >= self.vocab_size:
            raise FirthError(
                f"objective.random_specials=False leaves no random token: all {self.vocab_size} "
                "tokens are special; expected a vocabulary with others"
            )
        if self.masking in ("word", "ngram", "span"):
            self._check_table("word_starts", "a tokenizer that keeps word starts")
        if self.masking == "frequency":
            self._check_table("token_weights", "token_weights, from mask.smoothed_weights")
            weights = np.asarray(self.token_weights)
            if not (np.isfinite(weights).all() and weights.min() >= 0 and weights.max() > 0):
                raise FirthError(
                    f"token_weights from {weights.min()} to {weights.max()} cannot choose tokens; "
                    "expected finite weights, none negative and some positive"
                )

    def _check_table(self, name: str, needed: str):
        """Refuse a masking whose table is missing or belongs to another vocabulary."""
        table = getattr(self, name)
        if table is None:
            raise FirthError(f"objective.masking={self.masking!r} needs {needed}")
        if np.shape(table) != (self.vocab_size,):
            raise FirthError(
                f"{name} of shape {np.shape(table)} for objective.masking={self.masking!r}; "
                f"expected ({self.vocab_size},), one for each token of the vocabulary"
            )

    def _avoided(self) -> set[int]:
        """Ids that random tokens avoid when `random_specials` is False."""
        return {*self.special_ids, *self.reserved_ids, self.mask_id}

    def check(self, data):
        """Refuse a view without the pairs of the objective, and rows too short for any mask."""
        pairs, order = self.pairs, data.get("order", "nsp")
        if pairs != "none" and (data.view, order) != ("pairs", pairs):
            raise FirthError(
                f"objective.pairs={pairs!r} needs data.view='pairs' and data.order={pairs!r}, not "
                f"{data.view!r} and {order!r}: only that view yields two segments and their "
                "relation"
            )
        if self.rate * data.length < 1:
            raise FirthError(
                f"data.length={data.length} is too short for objective.rate={self.rate}: not one "
                f"token a row would be predicted; expected at least {math.ceil(1 / self.rate)}"
            )

    @property
    def heads(self):
        """Heads whose logits the losses need."""
        return ("mlm",) if self.pairs == "none" else ("mlm", self.pairs)

    @property
    def coefficients(self):
        """Weight of each term in the total loss."""
        return dict.fromkeys(self.heads, 1.0)

    def corrupt(self, batch, key):
        """Add `positions`, `targets` and `target_weights` [B, P] and corrupt `tokens` [B, L]."""
        tokens_BL, mask_BL = batch["tokens"], batch["mask"]
        keys_B = mask.row_keys(key, batch)
        candidates_BL = mask_BL
        if not self.mask_specials:
            candidates_BL &= ~jnp.isin(tokens_BL, jnp.asarray(self.special_ids))
        counts_B = self.counts(keys_B, mask_BL)
        positions_BP, weights_BP = self._select(keys_B, tokens_BL, candidates_BL, counts_B)
        corrupted_BL = mask.replace(
            keys_B,
            tokens_BL,
            positions_BP,
            weights_BP,
            mask_id=self.mask_id,
            vocab_size=self.vocab_size,
            rates=self.rates,
            avoid=() if self.random_specials else tuple(self._avoided()),
        )
        return batch | {
            "tokens": corrupted_BL,
            "positions": positions_BP,
            "targets": mask.gather(tokens_BL, positions_BP),
            "target_weights": weights_BP,
        }

    def counts(self, keys_B, mask_BL):
        """How many tokens to choose in each row, int32 [B]."""
        sizes_B, L = mask_BL.sum(1), mask_BL.shape[1]
        if self.counting == "floor":
            return mask.drawn_counts(keys_B, sizes_B, L, self.rate, self.max_predictions)
        return jnp.asarray(mask.prediction_counts(L, self.rate, self.max_predictions))[sizes_B]

    def _select(self, keys_B, tokens_BL, candidates_BL, counts_B):
        """Positions and weights [B, P] of the tokens that `masking` chooses."""
        slots = min(self.max_predictions, tokens_BL.shape[1])
        if self.masking == "token":
            return mask.select_tokens(keys_B, candidates_BL, counts_B, slots)
        if self.masking == "frequency":
            weights_BL = jnp.asarray(self.token_weights, jnp.float32)[tokens_BL]
            return mask.select_weighted(keys_B, candidates_BL, weights_BL, counts_B, slots)
        starts_BL = jnp.asarray(self.word_starts)[tokens_BL]
        if self.masking == "word":
            return mask.select_words(keys_B, candidates_BL, starts_BL, counts_B, slots)
        probs = spans.ngram_probs() if self.masking == "ngram" else spans.geometric_probs()
        return spans.select_spans(keys_B, candidates_BL, starts_BL, counts_B, slots, probs)

    def products(self, model, *, rows, length, micro):
        """See `Objective.products`."""
        c = model.encoder.config
        predicted = min(self.max_predictions, length)
        read = predicted + (self.pairs != "none")
        shape = dict(rows=rows, length=length, micro=micro)
        yield from of_body(model.encoder, read=read, **shape)
        yield masked_words(c, rows * predicted)
        if self.pairs != "none":
            yield Product("pooler", 2 * rows * c.hidden_size**2)
            yield Product(self.pairs, 2 * rows * c.hidden_size * 2)

    def weights(self, batch):
        """The divisor of each term's sum, over the whole (corrupted) batch."""
        weights = {"mlm": batch["target_weights"].sum()}
        if self.pairs != "none":
            weights[self.pairs] = _rows(batch).sum()
        return weights

    def losses(self, model, batch, *, train: bool):
        """Sums {term: loss sum} and metrics {name: (sum, weight)} of a corrupted batch."""
        at_BP = batch["positions"]
        if self.pairs != "none":  # the first token, which the pair is read from
            at_BP = jnp.pad(at_BP, ((0, 0), (1, 0)))
        rows = (batch["tokens"], batch["segments"], batch["mask"])
        out = model.read_at(at_BP, *rows, train=train)
        logits_BPV = model.mlm(out.last[:, -batch["positions"].shape[1] :])
        loss, right = cross_entropy(logits_BPV, batch["targets"], batch["target_weights"])
        weights = self.weights(batch)
        sums = {"mlm": loss}
        metrics = {
            "mlm_loss": (loss, weights["mlm"]),
            "mlm_accuracy": (right, weights["mlm"]),
            "masked_fraction": (weights["mlm"], batch["mask"].sum(dtype=jnp.float32)),
        }
        if (pairs := self.pairs) != "none":
            logits_B2 = model.head(pairs)(out.pooled)
            loss, right = cross_entropy(logits_B2, batch["next"], _rows(batch))
            sums[pairs] = loss
            metrics[f"{pairs}_loss"] = (loss, weights[pairs])
            metrics[f"{pairs}_accuracy"] = (right, weights[pairs])
        return sums, metrics


def _rows(batch):
    """Weight [B]: 1 for real rows, 0 for the padding rows that complete an evaluation batch."""
    return batch["mask"].any(axis=1).astype(jnp.float32)
