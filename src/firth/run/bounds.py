"""The bounds of the fields that recipes share, checked before a run writes anything.

Fields of one part alone (an objective, a view, a body) are checked where that part is built.
"""

import logging
import math
from dataclasses import dataclass

from firth.errors import FirthError
from firth.recipe import flatten

log = logging.getLogger("firth")


@dataclass(frozen=True)
class Bound:
    """A number between `least` and `most`; `above` and `below` leave the ends out."""

    whole: bool = True
    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False

    def allows(self, value) -> bool:
        """Whether a value is a number within the bounds."""
        kinds = int if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            return False
        low = value > self.least if self.above else value >= self.least
        return low and (value < self.most if self.below else value <= self.most)

    def __str__(self):
        words = "a whole number" if self.whole else "a number"
        if math.isfinite(self.least):
            words += f" above {self.least:g}" if self.above else f" of at least {self.least:,}"
        if math.isfinite(self.most):
            words += f" and below {self.most:,}" if self.below else f" and at most {self.most:,}"
        return words


COUNT, COUNT_OR_NONE = Bound(least=1), Bound(least=0)
POSITIVE = Bound(whole=False, least=0, above=True)
NOT_NEGATIVE = Bound(whole=False, least=0)
SHARE = Bound(whole=False, least=0, most=1, below=True)

BOUNDS = {
    "seed": Bound(least=0, most=2**32, below=True),
    "steps": COUNT,
    "until": COUNT_OR_NONE,
    "epochs": POSITIVE,
    "batch_size": COUNT,
    "accumulate": COUNT,
    "log_every": COUNT,
    "eval.every": COUNT_OR_NONE,
    "eval.epochs": POSITIVE,
    "eval.batch_size": COUNT,
    "eval.batches": COUNT,
    "eval.length": COUNT_OR_NONE,
    "eval.memory": COUNT_OR_NONE,
    "checkpoint.minutes": NOT_NEGATIVE,
    "checkpoint.every": COUNT_OR_NONE,
    "checkpoint.keep": COUNT,
    "data.length": COUNT,
    "data.heldout": SHARE,
    "data.prefetch": COUNT,
    "data.task_power": NOT_NEGATIVE,
    "mesh.fsdp": COUNT,
    "mesh.tensor": COUNT,
    "mesh.slices": COUNT,
    "schedule.lr": NOT_NEGATIVE,
    "schedule.warmup": NOT_NEGATIVE,
    "schedule.power": NOT_NEGATIVE,
    "schedule.end_lr": NOT_NEGATIVE,
    "schedule.min_ratio": Bound(whole=False, least=0, most=1),
    "schedule.decay": POSITIVE,
    "schedule.hold": COUNT_OR_NONE,
    "schedule.steps_per_epoch": COUNT,
    "optimizer.b1": SHARE,
    "optimizer.b2": SHARE,
    "optimizer.eps": POSITIVE,
    "optimizer.initial_accumulator": NOT_NEGATIVE,
    "optimizer.weight_decay": NOT_NEGATIVE,
    "optimizer.l2": NOT_NEGATIVE,
    "optimizer.clip_norm": NOT_NEGATIVE,
    "optimizer.layer_decay": POSITIVE,
    "model.dropout": SHARE,
    "model.attention_dropout": SHARE,
    "model.embedding_dropout": SHARE,
    "model.classifier_dropout": SHARE,
    "model.output_dropout": SHARE,
    "model.state_dropout": SHARE,
    "model.word_dropout": SHARE,
    "model.weight_dropout": SHARE,
    "model.classes": COUNT_OR_NONE,
    "model.depth": COUNT,
    "objective.activation": NOT_NEGATIVE,
    "objective.temporal": NOT_NEGATIVE,
    "objective.samples": COUNT_OR_NONE,
    "objective.unknown_rate": SHARE,
    "model.vocab_size": COUNT_OR_NONE,
    "model.num_layers": COUNT,
    "model.hidden_size": COUNT,
    "model.num_heads": COUNT,
    "model.intermediate_size": COUNT,
    "model.max_length": COUNT,
    "model.init_stddev": NOT_NEGATIVE,
    "model.init_range": NOT_NEGATIVE,
    "model.forget_bias": NOT_NEGATIVE,
    "model.cell_size": COUNT,
    "model.highways": COUNT,
    "model.cell_clip": NOT_NEGATIVE,
    "model.projection_clip": NOT_NEGATIVE,
}
CHOICES = {
    "rng": ("threefry2x32", "rbg", "unsafe_rbg"),
    "checkpoint.best_mode": ("max", "min"),
    "data.loader": ("auto", "tf.data", "thread"),
    "model.attention": ("plain", "cudnn", "auto"),
}


def check(config) -> None:
    """Raise FirthError, naming the field, for a value that no run of any recipe can have."""
    fields = flatten(config)
    by_epochs = "epochs" in fields  # then steps=0 stands for as many as epochs make
    for name, bound in BOUNDS.items():
        if name == "steps" and by_epochs:
            bound = COUNT_OR_NONE
        if name in fields and not bound.allows(fields[name]):
            raise FirthError(f"{name}={fields[name]!r}: expected {bound}")
    for name, known in CHOICES.items():
        if name in fields and fields[name] not in known:
            raise FirthError(f"{name}={fields[name]!r}: expected one of {', '.join(known)}")
    ways = fields.get("mesh.data", -1)
    if not Bound(least=1).allows(ways) and ways != -1:
        raise FirthError(f"mesh.data={ways!r}: expected a whole number of devices, or -1 for all")
    steps, until = fields.get("steps", 0), fields.get("until", 0)
    if until > steps > 0:
        raise FirthError(f"until={until} is not within the {steps:,} steps; 0 stands for the last")
    if fields.get("batch_size", 1) % fields.get("accumulate", 1):
        raise FirthError(
            f"batch_size={fields['batch_size']} is not a multiple of accumulate="
            f"{fields['accumulate']}; micro-batches are of one size"
        )


def say_what_stays(checkpoint, steps: int):
    """Say which checkpoints `keep` does not count, if there are more of them than it keeps."""
    permanent = steps // checkpoint.every if checkpoint.every else 0
    if permanent > checkpoint.keep:
        log.info(
            "checkpoint.every=%s keeps %s checkpoints for good; checkpoint.keep=%s counts only "
            "those saved by time between them (every=0 for these alone)",
            *(checkpoint.every, permanent, checkpoint.keep),
        )
