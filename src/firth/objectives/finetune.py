"""Classification and regression of texts (Devlin et al. 2019, section 4.1), and GPT's additions.

Radford et al. 2018, sections 3.2 and 3.3: a language-modelling loss beside the task's, and both
orders of two texts whose order means nothing. Choices are read one by one, and their scores are the
logits of a softmax (Devlin et al. 2019, section 4.4). B rows or questions, L length, C labels or
choices, R = B C, T texts of a packed row.
"""

import dataclasses

import jax.numpy as jnp

from firth.data.labels.class_weights import class_weights
from firth.errors import FirthError
from firth.models import FAMILIES
from firth.models.model import family, reads_backward
from firth.objectives.clm import next_tokens
from firth.objectives.losses import binary_cross_entropy, cross_entropy, log_loss
from firth.objectives.objective import Sources, TaskObjective


@dataclasses.dataclass(frozen=True)
class Finetune(TaskObjective):
    """Softmax cross-entropy over the labels or choices, or the squared error of a single output.

    With `multilabel` each label has a sigmoid of its own, and the loss of a text is the mean over
    the labels of their binary cross-entropies.

    `lm_weight` is that of the language-modelling loss of the same texts, a mean over the tokens of
    each (causal models only). `both_orders` reads a pair in both orders and adds the two hidden
    states that the classifier sees. `special_counts` are the numbers of special tokens before,
    between and after the texts. With `choices` a batch has tokens [B, C, L], and each row of L
    tokens one score. `class_weights` [C] multiply the loss of each example by that of its label,
    and count in the divisor as in torch's cross-entropy; metrics are not weighted.

    A batch of packed rows (`firth.data.packing`) has `text`, int [B, L], and an axis of texts in
    weight, labels and logits: [B, T] and [B, T, C]. The loss is the mean over texts, as ever.
    """

    regression: bool = False
    lm_weight: float = 0.0
    both_orders: bool = False
    special_counts: tuple[int, int, int] = (1, 1, 1)
    choices: bool = False
    multilabel: bool = False
    class_weights: tuple[float, ...] = ()

    @classmethod
    def from_config(cls, fields: dict, sources: Sources) -> "Finetune":
        """Build it from a config's `objective` section and the task."""
        task, body = sources.task, sources.body
        if task is None:
            raise FirthError(
                "objective 'finetune' learns labels, and this recipe has no task; use finetune.py"
            )
        choices = task.kind == "choice"
        if fields.get("both_orders") and (choices or len(task.text_columns) != 2):
            raise FirthError(
                f"objective.both_orders needs two texts, but task {task.name!r} has "
                f"{'choices' if choices else 'one'}"
            )
        counts = tuple(map(len, family(body["family"]).SPECIAL_TOKENS)) if body else (1, 1, 1)
        written = class_weights(fields.pop("class_weights", ""), task, sources.labels)
        kinds = dict(regression=task.kind == "regression", multilabel=task.kind == "multilabel")
        return cls(**kinds, choices=choices, class_weights=written, special_counts=counts, **fields)

    def __post_init__(self):
        if self.lm_weight < 0:
            raise FirthError(f"objective.lm_weight={self.lm_weight}: expected 0 or more")

    @property
    def bidirectional(self):
        """A language-modelling loss needs a causal model; the task alone takes any."""
        return False if self.lm_weight else None

    @property
    def heads(self):
        """Heads whose logits the losses need."""
        head = "choice" if self.choices else "classifier"
        return (head, "lm") if self.lm_weight else (head,)

    @property
    def coefficients(self):
        """Weight of each term in the total loss."""
        return {"task": 1.0} | ({"lm": self.lm_weight} if self.lm_weight else {})

    def weights(self, batch):
        """Number of real rows; with weights of classes, the sum of theirs in the task."""
        rows = dict.fromkeys(self.coefficients, batch["weight"].sum())
        return rows | {"task": self._weights(batch).sum()}

    def _weights(self, batch):
        """Weight of each row in the task's loss, float32 [B]."""
        if not self.class_weights:
            return batch["weight"]
        return batch["weight"] * jnp.asarray(self.class_weights, jnp.float32)[batch["labels"]]

    def logits(self, model, batch, *, train: bool):
        """Logits float32 [B, C], of packed rows [B, T, C]."""
        if "text" in batch:
            rows, texts = (batch["tokens"], batch["segments"]), batch["weight"].shape[1]
            return model.classify_packed(*rows, batch["text"], texts, self.heads[0], train=train)
        return self._read(model, _rows(batch), train)[0].reshape(self._shape(batch))

    def _shape(self, batch) -> tuple[int, int]:
        """Of the logits, whose rows are those of the batch."""
        return (len(batch["tokens"]), batch["tokens"].shape[1] if self.choices else -1)

    def _read(self, model, batch, train: bool):
        """(logits [B, C], hidden states [B, L, D] of the texts in their own order).

        Where the classifier alone reads them, they may be those of the first token, [B, 1, D].
        """
        mask_BL, c = batch["mask"], model.encoder.config
        first_only = c.classifier_pooling == "cls" and not self.lm_weight

        def encode(tokens_BL, segments_BL):
            if reads_backward(c):
                tokens_BL = turned(tokens_BL, mask_BL)
            rows = (tokens_BL, segments_BL, mask_BL)
            if first_only:
                return model.read_at(jnp.zeros_like(tokens_BL[:, :1]), *rows, train=train)
            return model.encoder(*rows, train=train)

        out = encode(batch["tokens"], batch["segments"])
        last_BLD = out.last
        if self.both_orders:
            swapped = swap_texts(batch["tokens"], batch["segments"], mask_BL, self.special_counts)
            other = encode(*swapped)
            pooled = None if out.pooled is None else out.pooled + other.pooled
            out = out.replace(last=out.last + other.last, pooled=pooled)
        return model.classify(out, mask_BL, train=train, head=self.heads[0]), last_BLD

    def losses(self, model, batch, *, train: bool):
        """Sums {term: loss sum} and metrics {name: (sum, weight)}."""
        if "text" in batch:
            return self.losses_of(self.logits(model, batch, train=train), batch)
        rows = _rows(batch)
        logits, last_RLD = self._read(model, rows, train)
        sums, metrics = self.losses_of(logits.reshape(self._shape(batch)), batch)
        if self.lm_weight:
            tokens_RL, mask_RL = rows["tokens"], rows["mask"]
            if reads_backward(model.encoder.config):
                tokens_RL = turned(tokens_RL, mask_RL)
            targets_RL, counted_RL = next_tokens(tokens_RL, mask_RL)
            losses_RL, _ = log_loss(model.lm(last_RLD), targets_RL)
            means_R = (losses_RL * counted_RL).sum(1) / jnp.maximum(counted_RL.sum(1), 1)
            means_B = means_R.reshape(len(batch["weight"]), -1).mean(1)
            sums["lm"] = (means_B * batch["weight"]).sum()
            metrics["lm_loss"] = (sums["lm"], batch["weight"].sum())
        return sums, metrics

    def losses_of(self, logits_BC, batch):
        """The sums and metrics of the task from its logits."""
        weights_B = batch["weight"]
        weight = weights_B.sum()
        if self.regression:
            error_B = logits_BC[..., 0] - batch["labels"].astype(jnp.float32)
            loss = (error_B**2 * weights_B).sum()
            return {"task": loss}, {"task_loss": (loss, weight)}
        if self.multilabel:
            loss = (binary_cross_entropy(logits_BC, batch["labels"]) * weights_B).sum()
            return {"task": loss}, {"task_loss": (loss, weight)}
        loss, right = cross_entropy(logits_BC, batch["labels"], weights_B)
        metrics = {"task_loss": (loss, weight), "task_accuracy": (right, weight)}
        if self.class_weights:
            loss, _ = cross_entropy(logits_BC, batch["labels"], self._weights(batch))
        return {"task": loss}, metrics


def check_packing(spec: dict, both_orders: bool = False) -> None:
    """Raise FirthError if a body of this spec cannot read several texts in a row (`data.packed`).

    Its attention must end where a text does, and its positions begin with each text. Pairs in
    `both_orders` need rows of their own.
    """
    name = spec["family"]
    if not _packs(name):
        able = [each for each in FAMILIES if _packs(each)]
        raise FirthError(
            f"model.family={name!r} cannot read packed rows, where each text must be read as if it "
            f"were alone; {', '.join(able)} can"
        )
    if both_orders:
        raise FirthError("packed rows cannot be read in both orders of their pairs")


def _packs(name: str) -> bool:
    """Whether a family's Config says that its body reads packed rows.

    One of the user's own says so itself: derived from BERT's, it may mix the tokens of a row in
    another way.
    """
    config = family(name).Config
    return vars(config).get("packs", False) if ":" in name else getattr(config, "packs", False)


def _rows(batch: dict) -> dict:
    """The tokens, segments and mask of a batch as [R, L]: those of choices are [B, C, L]."""
    names = ("tokens", "segments", "mask")
    return {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in names}


def turned(tokens_BL, mask_BL):
    """The real tokens of each row, which come first, in the opposite order."""
    place_L = jnp.arange(tokens_BL.shape[1])
    source_BL = jnp.where(mask_BL, mask_BL.sum(1, keepdims=True) - 1 - place_L, place_L)
    return jnp.take_along_axis(tokens_BL, source_BL, axis=1)


def swap_texts(tokens_BL, segments_BL, mask_BL, special_counts: tuple[int, int, int]):
    """(tokens, segments) [B, L] of the same pairs with the second text first.

    `special_counts` are the numbers of special tokens before, between and after the texts. These
    tokens stay in place. Rows without a second text stay as they are.
    """
    before, between, after = special_counts
    place_L = jnp.arange(tokens_BL.shape[1])
    in_second_BL = (segments_BL == 1) & mask_BL
    size_B1 = mask_BL.sum(1, keepdims=True)
    second_B1 = jnp.where(in_second_BL.any(1), in_second_BL.argmax(1), size_B1[:, 0])[:, None]
    a_B1 = second_B1 - before - between  # length of the first text
    b_B1 = size_B1 - after - second_B1
    border_B1 = before + b_B1  # where the second text, now the first, ends
    source_BL = jnp.select(
        [
            place_L < before,
            place_L < border_B1,
            place_L < border_B1 + between,
            place_L < border_B1 + between + a_B1,
        ],
        [
            place_L + jnp.zeros_like(size_B1),
            place_L - before + second_B1,
            place_L - border_B1 + before + a_B1,
            place_L - border_B1 - between + before,
        ],
        place_L,
    )
    paired_B1 = second_B1 < size_B1
    source_BL = jnp.where(paired_B1, source_BL, place_L)
    tokens_BL = jnp.take_along_axis(tokens_BL, source_BL, axis=1)
    later_BL = mask_BL & (place_L >= border_B1 + between) & paired_B1
    return tokens_BL, jnp.where(segments_BL > 1, segments_BL, later_BL.astype(segments_BL.dtype))
