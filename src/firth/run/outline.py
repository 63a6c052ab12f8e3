"""A pretraining run without its data, for `plan` and the benchmarks.

The model, the objective and the shapes of a batch are those of the run itself. A `Vocabulary` of
the published size stands in for the tokenizer; there is no store.
"""

import dataclasses
from pathlib import Path

import jax
import numpy as np

from firth.data.views import view_config
from firth.errors import FirthError
from firth.models import bert
from firth.models.model import Model, family
from firth.recipe import OWN_RUNS
from firth.run import bounds, experiment
from firth.weights.read import Saved, read_model

FREE = 6  # the first id of `Vocabulary` that is a word


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A stand-in for a tokenizer that does not exist yet: it has ids, and numbers as tokens.

    It has the attributes that objectives read, with the usual special tokens. Every token begins a
    word. It cannot encode text.
    """

    kind = "word"

    vocab_size: int
    pad_id: int = 0
    unk_id: int = 1
    cls_id: int = 2
    sep_id: int = 3
    mask_id: int = 4
    end_id: int = 5

    @property
    def vocab(self) -> list[str]:
        """Decimal numbers, for models that spell their words."""
        return [str(number) for number in range(self.vocab_size)]

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens."""
        return frozenset(range(FREE))

    @property
    def word_starts(self) -> np.ndarray:
        """Bool [vocab_size]: True everywhere."""
        return np.ones(self.vocab_size, bool)


@dataclasses.dataclass(frozen=True)
class Outline:
    """The parts of a run that do not depend on data.

    `spec` is the model section with all fields filled in. `batch` gives the shape of every array
    of a global batch, `jax.ShapeDtypeStruct` [config.batch_size, ...]. `assumed` lists, in words,
    the values filled in for fields that the config leaves open. `fresh` holds expressions for
    parameters of the body that are trained in any case, as in `Experiment`.
    """

    config: object
    spec: dict
    model: Model
    objective: object
    batch: dict[str, jax.ShapeDtypeStruct]
    assumed: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Updates of the run: `until` if it is set, else those of the whole schedule."""
        return self.config.get("until", 0) or self.config.steps


def outline(config) -> Outline:
    """The outline of a pretraining recipe.

    If the config leaves the vocabulary to the data, it has the family's published size. If no
    teacher is named, it is a BERT of the student's width and twice its depth (for DistilBERT the
    published BERT-base).

    Raises FirthError for a fine-tuning recipe, whose length depends on its examples, and for parts
    that do not fit together, as `experiment.build` does.
    """
    if config.model.get("family") == "logistic":
        raise FirthError(
            "model.family='logistic': a logistic regression is solved in seconds to minutes; it "
            "has no steps to plan"
        )
    if "task" in config.data:
        raise FirthError(
            f"data.task={config.data.task!r}: a fine-tuning recipe has no plan, since its steps "
            "and the lengths of its rows depend on the examples; plan a pretraining recipe"
        )
    if config.model.get("family") == "ngram":
        raise FirthError(
            "model.family='ngram': an n-gram model is counted in one pass over the text, about a "
            "second a million words and order (maximum entropy: a minute or more); it has no steps "
            "to plan"
        )
    if config.model.get("family") in OWN_RUNS:
        raise FirthError(
            f"model.family={config.model.family!r}: word vectors have no plan; a run of one epoch "
            "says its words a second and the time that is left"
        )
    bounds.check(config)
    if not config.steps:
        raise FirthError(
            f"epochs={config.epochs:g}: their steps depend on the store; plan with --config.steps=N"
        )
    assumed, vocab_size, initial = [], config.model.get("vocab_size"), None
    if config.model.get("from_init"):
        initial = read_model(config.init_from) if config.init_from else None
        vocab_size = initial and initial.spec["vocab_size"]
    elif not vocab_size:
        vocab_size = family(config.model.family).Config.vocab_size
        assumed.append(f"a vocabulary of {vocab_size:,} tokens, as published (model.vocab_size)")
    tokenizer = Vocabulary(vocab_size)

    def counts():
        return np.ones(vocab_size, np.int64)

    spec = experiment.model_spec(config, initial, tokenizer, counts)
    fields, load = config.objective, read_model
    own = family(spec["family"]).Config
    # Of a causal student, and of one that reads characters, there is no distillation.
    distils = not own.causal and getattr(own, "reads_tokens", True)
    if fields.name == "distill" and not fields.get("teacher") and distils:
        teacher = stand_in_teacher(spec)
        fields, load = dict(fields) | {"teacher": "assumed"}, lambda _: teacher
        layers, width = (teacher.spec[name] for name in ("num_layers", "hidden_size"))
        known = ", the published BERT-base" if (layers, width) == bert.SIZES["base"] else ""
        assumed.append(f"a BERT of {layers} layers, {width} wide{known}, as teacher")
    objective = experiment.create_objective(fields, tokenizer, body=spec, counts=counts, load=load)
    objective.check(config.data)
    return Outline(
        config=config,
        spec=spec,
        model=experiment.create_model(spec, objective),
        objective=objective,
        batch={
            name: jax.ShapeDtypeStruct((config.batch_size, *shape), dtype)
            for name, (shape, dtype) in view_config(config.data).fields.items()
        },
        assumed=tuple(assumed),
    )


def stand_in_teacher(student: dict) -> Saved:
    """A teacher without weights: BERT, as wide as the student of this spec and twice as deep."""
    dimensions = ("vocab_size", "hidden_size", "num_heads", "intermediate_size")
    spec = {name: student[name] for name in dimensions}
    spec["max_length"] = student.get("max_length", bert.Config.max_length)
    spec |= dict(family="bert", num_layers=2 * student["num_layers"], pooler=False)
    return Saved(spec, ("mlm",), 2, None, False, {}, Path("assumed"), "published")
