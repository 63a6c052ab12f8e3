"""Masked language modelling, with next-sentence prediction when asked (Devlin et al. 2019, 3.1)."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.objectives import mask
from firth.objectives.losses import cross_entropy


@dataclasses.dataclass(frozen=True)
class MaskedLM:
    """Predict the original tokens at corrupted positions; `pairs="nsp"` adds the pair loss.

    `masking` chooses single tokens or whole words, up to `max_predictions` a row; `rates` are the
    fractions of (mask token, random token) among them. `special_ids` are never chosen, and
    `word_starts` (bool [V]) marks the tokens that begin a word.
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

    def __post_init__(self):
        for name, known in (("masking", ("token", "word")), ("pairs", ("none", "nsp"))):
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
        if self.masking == "word" and self.word_starts is None:
            raise FirthError("objective.masking='word' needs a tokenizer that keeps word starts")

    @property
    def heads(self):
        """Heads whose logits the losses need."""
        return ("mlm", "nsp") if self.pairs == "nsp" else ("mlm",)

    @property
    def coefficients(self):
        """Weight of each term in the total loss."""
        return dict.fromkeys(self.heads, 1.0)

    def corrupt(self, batch, key):
        """Add `positions`, `targets` and `target_weights` [B, P] and corrupt `tokens` [B, L]."""
        tokens_BL, mask_BL = batch["tokens"], batch["mask"]
        L = tokens_BL.shape[1]
        keys_B = mask.row_keys(key, batch)
        special_BL = jnp.isin(tokens_BL, jnp.asarray(self.special_ids))
        candidates_BL = mask_BL & ~special_BL
        counts = mask.prediction_counts(L, self.rate, self.max_predictions)
        counts_B = jnp.asarray(counts)[mask_BL.sum(1)]
        slots = min(self.max_predictions, L)
        if self.masking == "word":
            starts_BL = jnp.asarray(self.word_starts)[tokens_BL]
            chosen = mask.select_words(keys_B, candidates_BL, starts_BL, counts_B, slots)
        else:
            chosen = mask.select_tokens(keys_B, candidates_BL, counts_B, slots)
        positions_BP, weights_BP = chosen
        corrupted_BL = mask.replace(
            keys_B,
            tokens_BL,
            positions_BP,
            weights_BP,
            mask_id=self.mask_id,
            vocab_size=self.vocab_size,
            rates=self.rates,
        )
        return batch | {
            "tokens": corrupted_BL,
            "positions": positions_BP,
            "targets": mask.gather(tokens_BL, positions_BP),
            "target_weights": weights_BP,
        }

    def weights(self, batch):
        """What each term's sum is divided by, over the whole (corrupted) batch."""
        weights = {"mlm": batch["target_weights"].sum()}
        if self.pairs == "nsp":
            weights["nsp"] = _rows(batch).sum()
        return weights

    def losses(self, model, batch, *, train: bool):
        """Sums {term: loss sum} and metrics {name: (sum, weight)} of a corrupted batch."""
        out = model.encoder(batch["tokens"], batch["segments"], batch["mask"], train=train)
        logits_BPV = model.mlm(mask.gather(out.last, batch["positions"]))
        loss, right = cross_entropy(logits_BPV, batch["targets"], batch["target_weights"])
        weights = self.weights(batch)
        sums = {"mlm": loss}
        metrics = {
            "mlm_loss": (loss, weights["mlm"]),
            "mlm_accuracy": (right, weights["mlm"]),
            "masked_fraction": (weights["mlm"], batch["mask"].sum(dtype=jnp.float32)),
        }
        if self.pairs == "nsp":
            logits_B2 = model.nsp(out.pooled)
            loss, right = cross_entropy(logits_B2, batch["next"], _rows(batch))
            sums["nsp"] = loss
            metrics["nsp_loss"] = (loss, weights["nsp"])
            metrics["nsp_accuracy"] = (right, weights["nsp"])
        return sums, metrics


def _rows(batch):
    """Weight [B]: 1 for real rows, 0 for the padding rows that complete an evaluation batch."""
    return batch["mask"].any(axis=1).astype(jnp.float32)


def from_config(fields: dict, tokenizer, task=None) -> MaskedLM:
    """Build from a config's `objective` section."""
    del task
    rates = (fields.pop("mask_rate"), fields.pop("random_rate"))
    if tokenizer.mask_id is None:
        raise FirthError("masked language modelling needs a tokenizer with a mask token")
    special = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id)
    return MaskedLM(
        mask_id=tokenizer.mask_id,
        vocab_size=tokenizer.vocab_size,
        special_ids=tuple(i for i in special if i is not None),
        word_starts=tokenizer.word_starts,
        rates=rates,
        **fields,
    )
