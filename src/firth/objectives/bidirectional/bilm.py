"""ELMo's objective: every word from those before it, and from those after it.

Two language models that share the vectors of words and the softmax, each with a state that goes on
from batch to batch (Peters et al. 2018, section 3.1). B rows, L length, P width of one direction.
"""

import dataclasses

import jax

from firth.errors import FirthError
from firth.layers.products import Product
from firth.models.elmo.bilm import DIRECTIONS
from firth.models.model import family
from firth.objectives.bidirectional.sampled import draw, sampled_losses
from firth.objectives.clm import forget
from firth.objectives.losses import log_loss
from firth.objectives.objective import Objective, Sources


@dataclasses.dataclass(frozen=True)
class BidirectionalLM(Objective):
    """The mean of the losses of both directions, in nats a word.

    `samples` words stand for the whole vocabulary in training (`sampled`), each
    direction with its own; 0, or as many as there are words: all of them. Evaluation scores all.
    `words` and `max_characters` are those of the model, as `from_config` finds.
    """

    samples: int = 8192
    words: int = 0
    max_characters: int = 0

    heads = ("bilm",)
    coefficients = {"forward": 0.5, "backward": 0.5}  # noqa: RUF012
    bidirectional = None

    @classmethod
    def from_config(cls, fields: dict, sources: Sources) -> "BidirectionalLM":
        """Build it from a config's `objective` section; FirthError for another body than ELMo's."""
        body = dict(sources.body)
        if not hasattr(family(body["family"]).Body, "read"):
            raise FirthError(
                f"objective.name='bilm' trains a model of two directions, model.family='elmo', not "
                f"{body['family']!r}; use the recipe elmo.py"
            )
        places = body.get("max_characters", family(body["family"]).Config.max_characters)
        return cls(**fields, words=body["vocab_size"], max_characters=places)

    def __post_init__(self):
        if self.samples < 0:
            raise FirthError(f"objective.samples={self.samples}: expected 0 (all words) or more")

    def check(self, data):
        """Refuse a data section without rows of both directions, or with other characters."""
        if data.view != "both_ways":
            raise FirthError(
                f"objective.name='bilm' needs data.view='both_ways', not {data.view!r}: rows that "
                "continue in both directions"
            )
        if data.max_characters != self.max_characters:
            raise FirthError(
                f"data.max_characters={data.max_characters}, but model.max_characters="
                f"{self.max_characters}; expected the same"
            )

    def carry(self, model, rows: int, memory: int = 0) -> dict:
        """Both directions' states before any text."""
        del memory
        return model.encoder.empty_memory(rows)

    def products(self, model, *, rows, length, micro):
        """See `Objective.products`."""
        c = model.encoder.config
        yield from c.products(rows=rows, length=length, micro=micro)
        scored = min(self.samples or c.vocab_size, c.vocab_size)
        yield Product("bilm", 2 * 2 * rows * length * c.width * scored)

    def weights(self, batch):
        """Number of words, the same for both directions."""
        return dict.fromkeys(DIRECTIONS, batch["mask"].sum())

    def losses(self, model, batch, *, train: bool):
        """Sums {direction: loss}, metrics {name: (sum, weight)}, and the new states."""
        body, mask_BL = model.encoder, batch["mask"]
        memory = forget(batch["carry"], batch.get("reset"))
        e_B2LP = body.embed(batch["characters"].astype("int32"))
        sums, metrics, after, weight = {}, {}, {}, mask_BL.sum()
        for i, direction in enumerate(DIRECTIONS):
            layers, state = body.read(direction, e_B2LP[:, i], mask_BL, memory, train=train)
            h_BLP, targets_BL = body.drop(layers[-1], train=train), batch["targets"][:, i]
            losses_BL = self._word_losses(model, h_BLP, targets_BL, train)
            sums[direction] = (losses_BL * mask_BL).sum()
            metrics[f"{direction}_loss"] = sums[direction], weight
            after |= state
        metrics["lm_loss"] = sum(sums.values()), 2 * weight
        return sums, metrics, jax.lax.stop_gradient(after)

    def _word_losses(self, model, h_BLP, targets_BL, train: bool):
        head = model.head("bilm")
        if not train or not 0 < self.samples < self.words:
            return log_loss(head(h_BLP), targets_BL)[0]
        sampled_S = draw(model.make_rng("dropout"), self.words, self.samples)
        flat_MP = h_BLP.reshape(-1, h_BLP.shape[-1])
        losses_M = sampled_losses(flat_MP, head.table, head.bias, targets_BL.reshape(-1), sampled_S)
        return losses_M.reshape(targets_BL.shape)
