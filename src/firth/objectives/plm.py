"""Permutation language modelling (Yang et al. 2019, sections 2.2 to 2.5).

The device draws everything: the tokens to predict, and the factorization order as one rank a
token. B rows, L length, P prediction slots, S length of a part, G predictions of a part.
"""

import dataclasses
import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.layers.products import next_words
from firth.models.model import family
from firth.objectives import mask, spans
from firth.objectives.clm import check_view, forget
from firth.objectives.losses import cross_entropy
from firth.objectives.objective import Objective, Sources

SELECTIONS = ("span", "token")
UNITS = ("piece", "word")


@dataclasses.dataclass(frozen=True)
class PermutationLM(Objective):
    """Predict the last tokens of a random factorization order from those before them.

    It predicts `max_predictions` tokens of each row: spans of 1 to 5 `unit`s, each within a context
    `alpha` / `beta` times as long ("span"), or single tokens ("token"). All others come first in
    the order and see only each other. Special tokens have their place in the order but are never
    predicted. The paper and the released code count in `unit` "piece"; "word" counts words.

    With `reuse`, a row is two parts with a permutation each: the first `reuse` tokens, which the
    memory (of `memory` places) keeps, and the rest, which sees all of the first. Within a part the
    order repeats from block to block of `perm_size` tokens (0: one block). With `backwards` the
    second half of the rows runs from right to left; their spans, too, begin where words begin.
    """

    special_ids: tuple[int, ...]
    max_predictions: int
    word_starts: np.ndarray
    selection: str = "span"
    unit: str = "piece"
    alpha: int = 6
    beta: int = 1
    perm_size: int = 0
    reuse: int = 0
    memory: int = 0
    backwards: bool = False

    heads: ClassVar[tuple] = ("lm",)
    coefficients: ClassVar[dict] = {"plm": 1.0}
    bidirectional: ClassVar[bool] = True

    @classmethod
    def from_config(cls, fields: dict, sources: Sources) -> "PermutationLM":
        """Build it from a config's `objective` section; FirthError for a body of one stream."""
        body, tokenizer = sources.body, sources.tokenizer
        if not hasattr(family(body["family"]).Body, "two_streams"):
            raise FirthError(
                f"objective 'plm' cannot train model.family={body['family']!r}: it needs a content "
                "and a query stream, which only xlnet has; use mlm or rtd"
            )
        special = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id)
        return cls(
            special_ids=tuple(i for i in special if i is not None),
            word_starts=tokenizer.word_starts,
            **fields,
        )

    @property
    def by_halves(self) -> bool:
        """The rows that run backwards are the second half of the batch."""
        return self.backwards

    def __post_init__(self):
        for name, known in (("selection", SELECTIONS), ("unit", UNITS)):
            if getattr(self, name) not in known:
                raise FirthError(
                    f"objective.{name}={getattr(self, name)!r} is unknown; one of {known}"
                )
        if self.max_predictions < (2 if self.reuse else 1):
            raise FirthError(
                f"objective.max_predictions={self.max_predictions} selects nothing in some part of "
                "a row; expected at least one for each (with objective.reuse there are two)"
            )
        if self.selection == "span" and self.alpha < self.beta:
            raise FirthError(
                f"objective.alpha={self.alpha} and beta={self.beta} leave no context around a "
                "span; expected alpha >= beta >= 1"
            )
        if min(self.memory, self.reuse, self.perm_size) < 0 or self.beta < 1:
            raise FirthError("objective.memory, reuse and perm_size must be >= 0, and beta >= 1")

    def check(self, data):
        """Refuse a data section whose rows do not suit this objective."""
        check_view(data, self.memory)
        for name, field in (("reuse", "reuse"), ("backwards", "bidirectional")):
            value, of_data = getattr(self, name), data.get(field, 0)
            if value != of_data:
                raise FirthError(
                    f"objective.{name}={value} but data.{field}={of_data}; the two must agree"
                )
        if self.reuse >= data.length:
            raise FirthError(f"objective.reuse={self.reuse} is not below data.length={data.length}")
        for part in self._parts(data.length):
            size = part.stop - part.start
            if size % (self.perm_size or size):
                raise FirthError(
                    f"objective.perm_size={self.perm_size} does not divide the {size} tokens from "
                    f"{part.start} to {part.stop}; choose a divisor, or 0 for one block"
                )
        if self.max_predictions > data.length // 2:
            raise FirthError(
                f"objective.max_predictions={self.max_predictions} is more than half of "
                f"data.length={data.length}"
            )

    def carry(self, model, rows: int, memory: int = 0) -> dict:
        """The empty memory of so many rows, of another length when asked; {} without memory."""
        return model.encoder.empty_memory(rows, memory or self.memory) if self.memory else {}

    def _parts(self, length: int) -> list[slice]:
        """The parts of a row, each with a permutation of its own."""
        borders = [0, self.reuse, length] if self.reuse else [0, length]
        return [slice(a, b) for a, b in itertools.pairwise(borders)]

    def corrupt(self, batch, key):
        """Add `ranks` [B, L], and `positions`, `targets` and `target_weights` [B, P]."""
        tokens_BL, mask_BL = batch["tokens"], batch["mask"]
        keys_B = mask.row_keys(key, batch)
        ordinary_BL = mask_BL & ~jnp.isin(tokens_BL, jnp.asarray(self.special_ids))
        starts_BL = jnp.asarray(self.word_starts)[tokens_BL]
        rows = len(tokens_BL)
        # `two_streams` negates the distances of these rows.
        backward_B = (jnp.arange(rows) >= rows // 2) & self.backwards
        parts = self._parts(tokens_BL.shape[1])
        positions, weights, ranks = [], [], []
        for number, part in enumerate(parts):
            # As the released code: the first of two halves takes the odd one.
            slots = (self.max_predictions + len(parts) - 1 - number) // len(parts)
            place = jax.vmap(self._place, in_axes=(0, 0, 0, 0, None))
            part_keys_B = jax.vmap(lambda k, n=number: jax.random.fold_in(k, n))(keys_B)
            ordinary_BS, starts_BS = ordinary_BL[:, part], starts_BL[:, part]
            positions_BP, weights_BP, order_BS = place(
                part_keys_B, ordinary_BS, starts_BS, backward_B, slots
            )
            positions.append(positions_BP + part.start)
            weights.append(weights_BP)
            ranks.append(order_BS + number * (tokens_BL.shape[1] + 1))
        positions_BP = jnp.concatenate(positions, axis=1)
        return batch | {
            "ranks": jnp.concatenate(ranks, axis=1),
            "positions": positions_BP,
            "targets": mask.gather(tokens_BL, positions_BP),
            "target_weights": jnp.concatenate(weights, axis=1),
        }

    def _place(self, key, ordinary_S, starts_S, backward, slots: int):
        """(positions [G], weights [G], ranks [S]) of one part of one row.

        Ranks are 0 for the tokens that come first, and 1 + the place in the order for the others.
        Targets are chosen in the order of the text: a part that runs `backward` is turned for that,
        and its targets are turned back.
        """
        size = ordinary_S.shape[0]
        span_key, fill_key, order_key = jax.random.split(key, 3)
        score_S = jax.random.uniform(fill_key, (size,))
        if self.selection == "span":
            starts_S = jnp.where(backward, starts_S[::-1], starts_S)
            chosen_S = spans.scattered_spans(
                span_key, starts_S, slots, self.alpha, self.beta, words=self.unit == "word"
            )
            score_S += 2.0 * chosen_S  # single tokens fill the slots that spans leave
        score_S = jnp.where(backward, score_S[::-1], score_S)
        top_G, positions_G = jax.lax.top_k(jnp.where(ordinary_S, score_S, -1.0), slots)
        weights_G = (top_G >= 0).astype(jnp.float32)
        target_S = jnp.zeros(size, bool).at[positions_G].max(weights_G > 0)
        block = self.perm_size or size
        once = jax.random.permutation(order_key, block)
        order_S = (jnp.arange(0, size, block)[:, None] + once).reshape(size)
        return positions_G, weights_G, jnp.where(ordinary_S & ~target_S, 0, 1 + order_S)

    def products(self, model, *, rows, length, micro):
        """See `Objective.products`."""
        c, predicted = model.encoder.config, self.max_predictions
        shape = dict(rows=rows, length=length, micro=micro, memory=self.memory)
        yield from c.products(**shape, predicted=predicted, directions=1 + self.backwards)
        yield next_words(c, rows * predicted)

    def weights(self, batch):
        """Number of predicted tokens."""
        return {"plm": batch["target_weights"].sum()}

    def losses(self, model, batch, *, train: bool):
        """Sums {term: loss sum}, metrics {name: (sum, weight)}, and the memory if there is one.

        The loss is in nats a predicted token.
        """
        memory = forget(batch["carry"], batch.get("reset")) if "carry" in batch else None
        out, query_BPD = model.encoder.two_streams(
            batch["tokens"],
            batch["segments"],
            batch["mask"],
            batch["ranks"],
            batch["positions"],
            train=train,
            memory=memory,
            kept=self.reuse or None,
            backwards=self.backwards,
        )
        logits_BPV = model.lm(query_BPD)
        loss, right = cross_entropy(logits_BPV, batch["targets"], batch["target_weights"])
        weight = batch["target_weights"].sum()
        metrics = {"plm_loss": (loss, weight), "plm_accuracy": (right, weight)}
        metrics["predicted_fraction"] = (weight, batch["mask"].sum(dtype=jnp.float32))
        return {"plm": loss}, metrics, *([] if memory is None else [out.memory])
