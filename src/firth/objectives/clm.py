"""Causal language modelling: every token from those before it (Radford et al. 2018, section 3.1).

With memory, as in Transformer-XL (Dai et al. 2019, section 3.2), a row's next segment attends to
the segments before, from batch to batch. The state of a recurrent body goes on in the same way: it
is the memory of such a body, which therefore always has one. B rows, L length, V vocabulary.
"""

import dataclasses

import jax.numpy as jnp

from firth.data.views import VIEWS
from firth.errors import FirthError
from firth.layers.products import next_words
from firth.models.model import family, is_stateful
from firth.objectives.losses import log_loss
from firth.objectives.objective import Objective, Sources
from firth.registry import resolve


@dataclasses.dataclass(frozen=True)
class CausalLM(Objective):
    """Predict the next token at every place; rows remember `memory` places of earlier segments.

    A batch may hold `following` int [B], the token after a row's last one; without it the last
    place predicts nothing. `reset` bool [B] marks rows whose memory belongs to another text.
    `stateful` says that the body is recurrent, as `from_config` finds: its rows must continue too.
    `backward` says that it reads texts from their end, as the rows must then do.

    Two terms keep the last layer's output small and slow (Merity et al. 2017): `activation` times
    the mean of its squares, after dropout (AR), and `temporal` times the mean of the squared
    differences from one place to the next, before dropout (TAR).
    """

    memory: int = 0
    stateful: bool = False
    backward: bool = False
    activation: float = 0.0
    temporal: float = 0.0

    heads = ("lm",)
    bidirectional = False

    @property
    def coefficients(self) -> dict[str, float]:
        """{term of the loss: its weight}."""
        terms = {"lm": 1.0, "activation": self.activation, "temporal": self.temporal}
        return {name: weight for name, weight in terms.items() if weight}

    @classmethod
    def from_config(cls, fields: dict, sources: Sources) -> "CausalLM":
        """Build it from a config's `objective` section; FirthError for a body without memory."""
        own = dict(stateful=is_stateful(family(sources.body["family"]).Config))
        objective = cls(**fields, **own, backward=sources.body.get("backward", False))
        if objective.memory:
            check_memory(sources.body)
        return objective

    def __post_init__(self):
        if self.memory < 0:
            raise FirthError(f"objective.memory={self.memory}: expected 0 (none) or more places")
        if min(self.activation, self.temporal) < 0:
            raise FirthError(
                f"objective.activation={self.activation}, objective.temporal={self.temporal}: "
                "expected 0 (none) or more"
            )

    def check(self, data):
        """Refuse a data section that would give rows the memory of other texts."""
        check_view(data, self.memory, self.stateful)
        if data.get("backward", False) != self.backward:
            raise FirthError(
                f"data.backward={not self.backward}, but model.backward={self.backward}: set both "
                "alike, so that what is made of the model reads texts as it does"
            )
        if data.get("reuse", 0):
            raise FirthError(
                f"data.reuse={data.reuse} makes XLNet's rows of two segments, which are not in the "
                "order of the text; set data.reuse=0 for causal language modelling"
            )

    def carry(self, model, rows: int, memory: int = 0) -> dict:
        """The empty memory of so many rows, of another length when asked; {} without memory."""
        if not self.memory and not is_stateful(model.encoder.config):
            return {}
        return model.encoder.empty_memory(rows, memory or self.memory)

    def corrupt(self, batch, key):
        """Add `targets` int and `target_weights` float32 [B, L]; tokens stay as they are."""
        del key
        targets_BL, weights_BL = next_tokens(batch["tokens"], batch["mask"])
        if "following" in batch:
            targets_BL = jnp.where(weights_BL, targets_BL, batch["following"][:, None])
            weights_BL = batch["mask"]
        return batch | {
            "targets": targets_BL,
            "target_weights": weights_BL.astype(jnp.float32),
        }

    def products(self, model, *, rows, length, micro):
        """See `Objective.products`."""
        c, shape = model.encoder.config, dict(rows=rows, length=length, micro=micro)
        memory = dict(memory=self.memory) if self.memory else {}
        yield from c.products(**shape, **memory)
        yield next_words(c, rows * length)

    def weights(self, batch):
        """Number of predicted tokens, of all tokens, and of pairs of neighbours."""
        mask_BL = batch["mask"]
        counts = {
            "lm": batch["target_weights"].sum(),
            "activation": mask_BL.sum(),
            "temporal": (mask_BL[:, 1:] & mask_BL[:, :-1]).sum(),
        }
        return {name: counts[name] for name in self.coefficients}

    def losses(self, model, batch, *, train: bool):
        """Sums {term: loss sum}, metrics {name: (sum, weight)}, and the memory if there is one.

        The loss is in nats a token.
        """
        texts = (batch["tokens"], batch["segments"], batch["mask"])
        memory = {}
        if "carry" in batch:
            memory["memory"] = forget(batch["carry"], batch.get("reset"))
        out = model.encoder(*texts, train=train, **memory)
        weights_BL = batch["target_weights"]
        losses_BL, right_BL = next_word_losses(model, out.last, batch["targets"])
        loss, right = (losses_BL * weights_BL).sum(), (right_BL * weights_BL).sum()
        weight = weights_BL.sum()
        metrics = {"lm_loss": (loss, weight), "lm_accuracy": (right, weight)}
        sums = {"lm": loss} | self._penalties(out, batch["mask"])
        return sums, metrics, *([out.memory] if memory else [])

    def _penalties(self, out, mask_BL) -> dict:
        """Sums of the terms of the last layer's output; a place counts the mean over its width."""
        sums, width = {}, out.last.shape[-1]  # what is narrower than the widest layer is padded
        if self.activation:
            squares_BL = jnp.square(out.last.astype(jnp.float32)).mean(-1)
            sums["activation"] = (squares_BL * mask_BL).sum()
        if self.temporal:
            h_BLD = out.hidden[-1][..., :width].astype(jnp.float32)
            squares_BL = jnp.square(h_BLD[:, 1:] - h_BLD[:, :-1]).mean(-1)
            sums["temporal"] = (squares_BL * (mask_BL[:, 1:] & mask_BL[:, :-1])).sum()
        return sums


def next_word_losses(model, hidden_BLD, targets_BL):
    """(-log P of each target in nats, whether it is the likeliest word), float32 [B, L].

    Where the softmax has classes, they and the words of one class are scored instead of all words.
    """
    if getattr(model.encoder.config, "class_sizes", ()):
        return model.head("lm").losses(hidden_BLD, targets_BL)
    return log_loss(model.lm(hidden_BLD).astype(jnp.float32), targets_BL)


def next_tokens(tokens_BL, mask_BL):
    """(the token after each [B, L], bool [B, L] whether both are real ones of the row)."""
    last_L = jnp.arange(tokens_BL.shape[1]) == tokens_BL.shape[1] - 1
    known_BL = mask_BL & jnp.roll(mask_BL, -1, axis=1) & ~last_L
    return jnp.roll(tokens_BL, -1, axis=1), known_BL


def forget(memory: dict, reset_B) -> dict:
    """The memory, emptied for rows that begin another text; empty memory is all zeros."""
    if reset_B is None:
        return memory

    def emptied(leaf):
        return jnp.where(reset_B.reshape(-1, *[1] * (leaf.ndim - 1)), 0, leaf)

    if "filled" in memory:  # what lies in places that are not filled does not matter
        return memory | {"filled": emptied(memory["filled"])}
    return {name: emptied(leaf) for name, leaf in memory.items()}


def check_view(data, memory: int, stateful: bool = False):
    """Refuse a view whose rows do not continue those of the batch before."""
    if (memory or stateful) and not resolve("data.view", data.view, VIEWS).continues:
        what = f"objective.memory={memory}" if memory else "the state of a recurrent network"
        raise FirthError(
            f"{what} needs data.view='streams', not {data.view!r}: the rows of other views do not "
            "continue, so that a memory would be that of another text"
        )


def check_memory(body: dict):
    """Refuse a body that cannot keep a memory of so many places."""
    module = family(body["family"])
    if is_stateful(module.Config):
        raise FirthError(
            f"objective.memory is set, but the memory of model.family={body['family']!r} is its "
            "state, which every row keeps: set objective.memory=0"
        )
    if not hasattr(module.Body, "empty_memory"):
        raise FirthError(
            f"objective.memory is set, but model.family={body['family']!r} has no memory; "
            "transformer_xl and xlnet have"
        )
