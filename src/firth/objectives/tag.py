"""Tags of words: softmax cross-entropy of each, or the likelihood of a CRF (Lample et al. 2016).

B rows, L length, W words, C tags.
"""

import dataclasses

import jax
import jax.numpy as jnp

from firth.data.tagging.schemes import allowed
from firth.errors import FirthError
from firth.layers.attention import gather
from firth.models.tagger.crf import log_partition, path_score, viterbi
from firth.objectives.losses import log_loss
from firth.objectives.mask import row_keys
from firth.objectives.objective import Sources, TaskObjective

EXTRAS = ("characters", "features")  # what a body reads beside tokens, where a batch has it


@dataclasses.dataclass(frozen=True)
class Tag(TaskObjective):
    """The loss is a mean over words: of each word's, or a CRF's negative log-likelihood.

    crf: score sequences of tags; else each word by itself.
    constrain: where the labels mark entities, decode no I-X but after a B-X or I-X. The loss is
      over all sequences.
    unknown_rate: how many of the words that occur once in train are read as the unknown word, drawn
      anew at every step (Lample et al. 2016, section 4.3).
    unknown_id: that word. labels: names of the tags.
    """

    crf: bool = False
    constrain: bool = True
    unknown_rate: float = 0.0
    unknown_id: int = 0
    labels: tuple[str, ...] = ()

    coefficients = {"tag": 1.0}  # noqa: RUF012 (as in the base)

    @classmethod
    def from_config(cls, fields: dict, sources: Sources) -> "Tag":
        """Build it from a config's `objective` section and the task."""
        if sources.task is None or sources.task.kind != "tagging":
            raise FirthError(
                "objective 'tag' learns the tags of words, and this recipe has no such task; use "
                "tagger.py"
            )
        unknown = sources.tokenizer.unk_id or 0
        return cls(labels=sources.task.labels, unknown_id=unknown, **fields)

    def __post_init__(self):
        if not 0 <= self.unknown_rate < 1:
            raise FirthError(f"objective.unknown_rate={self.unknown_rate}: expected [0, 1)")

    @property
    def head(self) -> str:
        """The head whose scores it reads."""
        return "crf" if self.crf else "tags"

    @property
    def heads(self):
        """That one alone."""
        return (self.head,)

    def corrupt(self, batch, key):
        """Some of the rare words become the unknown one."""
        if "rare" not in batch or not self.unknown_rate:
            return batch
        tokens_BL, rate = batch["tokens"], self.unknown_rate

        def draw(key):
            return jax.random.uniform(key, tokens_BL.shape[1:]) < rate

        unknown_BL = jax.vmap(draw)(row_keys(key, batch)) & batch["rare"]
        return batch | {"tokens": jnp.where(unknown_BL, self.unknown_id, tokens_BL)}

    def weights(self, batch):
        """Number of words."""
        return {"tag": batch["word_mask"].sum(dtype=jnp.float32)}

    def logits(self, model, batch, *, train: bool):
        """Scores float32 [B, W, C]."""
        extras = {name: batch[name] for name in EXTRAS if name in batch}
        out = model.encoder(
            batch["tokens"], batch["segments"], batch["mask"], train=train, **extras
        )
        x_BWD = out.last
        if "first" in batch:
            x_BWD = gather(x_BWD, batch["first"])
        return model.head(self.head)(x_BWD, train=train)

    def losses(self, model, batch, *, train: bool):
        """Sums {term: loss sum} and metrics {name: (sum, weight)}."""
        return self._losses(model, self.logits(model, batch, train=train), batch)

    def losses_of(self, logits, batch):
        """Of scores alone, where there is no CRF."""
        return self._losses(None, logits, batch)

    def _losses(self, model, scores_BWC, batch):
        mask_BW, labels_BW = batch["word_mask"], batch["labels"]
        if self.crf:
            steps = model.head(self.head).steps
            begins_BW = batch.get("begins")
            best_B = log_partition(scores_BWC, mask_BW, steps, begins_BW)
            loss_B = best_B - path_score(scores_BWC, labels_BW, mask_BW, steps, begins_BW)
            loss = (loss_B * mask_BW[:, 0]).sum()
        else:
            loss = (log_loss(scores_BWC, labels_BW)[0] * mask_BW).sum()
        right = ((scores_BWC.argmax(-1) == labels_BW) & mask_BW).sum()
        weight = self.weights(batch)["tag"]
        metrics = {"tag_loss": (loss, weight)}
        if not self.crf:  # whose words' own scores decide nothing
            metrics["tag_accuracy"] = (right, weight)
        return {"tag": loss}, metrics

    def decode(self, model, scores_BWC, batch):
        """The tags int32 [B, W] of scores, 0 where there is no word."""
        mask_BW = batch["word_mask"]
        if not self.crf:
            return jnp.where(mask_BW, scores_BWC.argmax(-1), 0).astype(jnp.int32)
        steps = model.head(self.head).steps
        if self.constrain:
            steps = steps.only(jnp.asarray(allowed(self.labels)))
        return viterbi(scores_BWC, mask_BW, steps, batch.get("begins"))

    def outputs(self, model, batch):
        """The tags of a batch; and its metrics, where it has labels."""
        scores_BWC = self.logits(model, batch, train=False)
        measured = self._losses(model, scores_BWC, batch)[1] if "labels" in batch else {}
        tags_BW = self.decode(model, scores_BWC, batch)
        return measured, {name: batch[name] for name in ("example", "weight")} | {"tags": tags_BW}
