"""A pretraining run without its data: what `plan` and the benches know before there is any.

The tokenizer is stood in for by one of the published size with its special tokens, the store by a
text that says nothing; model, objective and the shapes of a batch are those of the run itself.
"""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np

from firth import experiment
from firth.errors import FirthError
from firth.models.model import Model, family

SPECIAL = dict(pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4, end_id=5)
FREE = 6  # the first id that is a word
SENTENCE, SENTENCES = 32, 16  # tokens a sentence, sentences a document of that text


@dataclasses.dataclass(frozen=True)
class Outline:
    """The parts of a run that do not hang on data.

    `spec` is the model section with everything filled in. `batch` gives the shape of every array
    of a global batch, `jax.ShapeDtypeStruct` [config.batch_size, ...].
    """

    config: object
    spec: dict
    model: Model
    objective: object
    batch: dict[str, jax.ShapeDtypeStruct]

    @property
    def steps(self) -> int:
        """Updates of the whole run."""
        return self.config.steps


def outline(config) -> Outline:
    """The outline of a pretraining recipe.

    Raises FirthError for one of fine-tuning, whose length depends on its examples, and as
    `experiment.build` does for parts that do not fit together.
    """
    if config.data.get("task"):
        raise FirthError("a fine-tuning recipe has no plan: its steps depend on the examples")
    vocab_size = config.model.get("vocab_size") or family(config.model.family).Config.vocab_size
    tokenizer = stand_in(vocab_size)
    spec = experiment.model_spec(config, None, tokenizer)
    objective = experiment.create_objective(
        config.objective, tokenizer, body=spec, counts=lambda: np.ones(vocab_size, np.int64)
    )
    getattr(objective, "masked", objective).check(config.data)
    return Outline(
        config=config,
        spec=spec,
        model=experiment.create_model(spec, objective),
        objective=objective,
        batch=batch_shapes(config, tokenizer),
    )


def stand_in(vocab_size: int) -> SimpleNamespace:
    """What objectives and views ask of a tokenizer with so many tokens; every one begins a word."""
    return SimpleNamespace(
        vocab_size=vocab_size,
        special_ids=frozenset(SPECIAL.values()),
        word_starts=np.ones(vocab_size, bool),
        **SPECIAL,
    )


def batch_shapes(config, tokenizer) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a global batch as the view of a config yields it."""
    few = 2  # rows of a batch that is really made
    documents = 16 + 4 * few * config.data.length // (SENTENCE * SENTENCES)
    store = SimpleNamespace(
        tokens=np.full(documents * SENTENCES * SENTENCE, FREE, np.uint16),
        sentences=np.arange(0, documents * SENTENCES * SENTENCE + 1, SENTENCE),
        documents=np.arange(0, documents * SENTENCES + 1, SENTENCES),
        digest="says nothing",
    )
    view = experiment.create_view(config.data, store, tokenizer, config.seed, None)
    return {
        name: jax.ShapeDtypeStruct((config.batch_size, *rows.shape[1:]), rows.dtype)
        for name, rows in view.batch(0, few).items()
    }
