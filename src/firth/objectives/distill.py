"""Distillation of a masked language model (Sanh et al. 2019, sections 2 and 3).

Three terms: soft targets (the teacher's distribution at a temperature), the masked LM loss, and the
cosine between student's and teacher's last hidden states. Any teacher and student that share a
vocabulary. B batch, L length, P prediction slots, V vocabulary, D hidden size.
"""

import dataclasses

import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.products import Product, masked_words
from firth.models.model import family
from firth.objectives import mask, mlm
from firth.objectives.losses import cross_entropy
from firth.objectives.objective import Objective, Sources


@dataclasses.dataclass(frozen=True)
class Distill(Objective):
    """`soft`, `hard` and `cosine` are the weights of the three terms (5, 2 and 1 in the code).

    The student starts from a copy of the teacher's embeddings and `layers`; without `layers`, from
    random values. `masked_only` takes the soft targets at the masked positions instead of at all
    tokens. For the cosine, a student of another width gets a `bridge`, a learned map to the
    teacher's width.
    """

    masked: mlm.MaskedLM
    teacher: object  # firth.weights.read.Saved
    soft: float = 5.0
    hard: float = 2.0
    cosine: float = 1.0
    temperature: float = 2.0
    masked_only: bool = False
    layers: tuple[int, ...] = ()
    width: int = 0  # the student's hidden size

    bidirectional = True
    frozen = ("^teacher/",)

    @classmethod
    def from_config(cls, fields: dict, sources: Sources) -> "Distill":
        """Build it from a config's `objective` section.

        Raises FirthError for a missing teacher, and for one with another vocabulary.
        """
        own = {f.name for f in dataclasses.fields(cls)} - {"masked", "teacher", "width"}
        chosen = {name: fields.pop(name) for name in own & fields.keys()}
        source = fields.pop("teacher", "")
        if not source:
            raise FirthError(
                "objective.teacher is not set; give a directory, a workdir or hf:org/name"
            )
        teacher = sources.load(source)
        check_vocabulary(teacher, source, sources.tokenizer)
        chosen["layers"] = tuple(chosen.get("layers", ()))
        chosen["width"] = sources.body["hidden_size"]
        return cls(mlm.MaskedLM.from_config(fields, sources), teacher, **chosen)

    def __post_init__(self):
        if self.temperature <= 0:
            raise FirthError(f"objective.temperature={self.temperature} must be greater than 0")
        if "mlm" not in self.teacher.heads:
            raise FirthError(
                f"objective.teacher={self.teacher.source} has no masked LM head to learn from; it "
                f"has {', '.join(self.teacher.heads) or 'none'}"
            )
        if self.masked.pairs != "none":
            raise FirthError(
                "objective.pairs: distillation has no pair objective; use objective.pairs=none "
                "and rows without pairs (bert.py:SIZE,view=packed)"
            )

    @property
    def heads(self):
        """Heads whose logits the losses need."""
        bridged = self.cosine and self.width != self.teacher.spec["hidden_size"]
        return ("mlm", "bridge") if bridged else ("mlm",)

    @property
    def coefficients(self):
        """Weight of each term in the total loss; T squared keeps the scale of the gradients."""
        return {"soft": self.soft * self.temperature**2, "hard": self.hard, "cosine": self.cosine}

    def parts(self, spec: dict) -> dict:
        """The teacher, in the student's layout (`scan`) and `dtype`, without dropout."""
        run_as = {name: spec[name] for name in ("scan", "dtype") if name in spec}
        return {"teacher": self.teacher.spec | run_as}

    def initial(self, spec: dict) -> dict:
        """The teacher's parameters, and the student's copied from them.

        Raises FirthError if the student cannot take the chosen layers.
        """
        taught = self.teacher.params
        initial = {"teacher": {name: taught[name] for name in ("encoder", "mlm")}}
        if not self.layers:
            return initial
        source, count = self.teacher.spec, self.teacher.spec["num_layers"]
        stacks = [family(s["family"]).Body.stack_of for s in (spec, source)]
        shapes = [(s["hidden_size"], s["intermediate_size"]) for s in (spec, source)]
        if stacks[0] is not stacks[1] or shapes[0] != shapes[1]:
            raise FirthError(
                f"objective.layers={self.layers}: a {spec['family']} {shapes[0][0]} wide cannot "
                f"take the layers of a {source['family']} {shapes[1][0]} wide; set layers=() to "
                "start from random values"
            )
        if len(self.layers) != spec["num_layers"] or not all(0 <= i < count for i in self.layers):
            raise FirthError(
                f"objective.layers={self.layers}: expected one of the teacher's layers 0 to "
                f"{count - 1} for each of the student's {spec['num_layers']}"
            )
        encoder = dict(taught["encoder"])
        stack = encoder["stack"]
        encoder["stack"] = {f"layer_{i}": stack[f"layer_{j}"] for i, j in enumerate(self.layers)}
        return initial | {"encoder": encoder, "mlm": taught["mlm"]}

    def check(self, data):
        """As masked language modelling."""
        self.masked.check(data)

    def corrupt(self, batch, key):
        """As masked language modelling."""
        return self.masked.corrupt(batch, key)

    def products(self, model, *, rows, length, micro):
        """See `Objective.products`."""
        c, shape = model.encoder.config, dict(rows=rows, length=length, micro=micro)
        t = model.teacher.encoder.config
        tokens, predicted = rows * length, rows * min(self.masked.max_predictions, length)
        yield from c.products(**shape)
        yield masked_words(c, predicted if self.masked_only else predicted + tokens)
        if "bridge" in self.heads:
            yield Product("bridge", 2 * tokens * c.hidden_size * t.hidden_size)
        taught = masked_words(t, predicted if self.masked_only else tokens)
        for product in (*t.products(**shape), taught):
            yield product._replace(owner="teacher", backward=0)

    def weights(self, batch):
        """What each term's sum is divided by, over the whole (corrupted) batch."""
        slots, tokens = batch["target_weights"].sum(), batch["mask"].sum(dtype=jnp.float32)
        return {"soft": slots if self.masked_only else tokens, "hard": slots, "cosine": tokens}

    def losses(self, model, batch, *, train: bool):
        """Sums {term: loss sum} and metrics {name: (sum, weight)} of a corrupted batch."""
        texts = (batch["tokens"], batch["segments"], batch["mask"])
        out = model.encoder(*texts, train=train)
        taught = model.teacher.encoder(*texts)
        weights_BL = batch["mask"].astype(jnp.float32)
        at_slots = mask.gather(out.last, batch["positions"])
        logits_BPV = model.mlm(at_slots)
        hard, right = cross_entropy(logits_BPV, batch["targets"], batch["target_weights"])
        if self.masked_only:
            targets_BPV = model.teacher.mlm(mask.gather(taught.last, batch["positions"]))
            soft = self._divergence(logits_BPV, targets_BPV, batch["target_weights"])
        else:
            soft = self._divergence(model.mlm(out.last), model.teacher.mlm(taught.last), weights_BL)
        student_BLD = model.head("bridge")(out.last) if "bridge" in self.heads else out.last
        cosine = (_distance(student_BLD, taught.last) * weights_BL).sum() if self.cosine else 0.0
        weights = self.weights(batch)
        sums = {"soft": soft, "hard": hard, "cosine": jnp.asarray(cosine, jnp.float32)}
        metrics = {
            "soft_loss": (soft, weights["soft"]),
            "mlm_loss": (hard, weights["hard"]),
            "mlm_accuracy": (right, weights["hard"]),
            "cosine_loss": (sums["cosine"], weights["cosine"]),
            "masked_fraction": (weights["hard"], weights["cosine"]),
        }
        return sums, metrics

    def _divergence(self, student, teacher, weights):
        """Sum of KL(teacher || student) at the temperature, weighted; the teacher is constant."""
        log_q = jax.nn.log_softmax(student / self.temperature)
        log_p = jax.nn.log_softmax(jax.lax.stop_gradient(teacher) / self.temperature)
        return ((jnp.exp(log_p) * (log_p - log_q)).sum(-1) * weights).sum()


def _distance(student_BLD, teacher_BLD):
    """1 - cosine of each pair of hidden states, float32 [B, L]; the teacher's are constant."""
    student = student_BLD.astype(jnp.float32)
    teacher = jax.lax.stop_gradient(teacher_BLD).astype(jnp.float32)
    norms = jnp.linalg.norm(student, axis=-1) * jnp.linalg.norm(teacher, axis=-1)
    return 1.0 - (student * teacher).sum(-1) / jnp.maximum(norms, 1e-8)


def check_vocabulary(teacher, source: str, tokenizer):
    """Raise FirthError for a teacher with another vocabulary than the corpus."""
    own = teacher.tokenizer()
    if own is not None and own.vocab != tokenizer.vocab:
        raise FirthError(
            f"objective.teacher={source} has another vocabulary ({own.vocab_size:,} tokens) "
            f"than the corpus ({tokenizer.vocab_size:,}); prepare the store with the "
            "teacher's tokenizer"
        )
    if teacher.spec["vocab_size"] < tokenizer.vocab_size:
        raise FirthError(
            f"objective.teacher={source} has {teacher.spec['vocab_size']:,} words, fewer than the "
            f"corpus' {tokenizer.vocab_size:,}"
        )
