"""The objective of a run from its section of the config."""

import re

from firth import registry
from firth.errors import FirthError
from firth.models.model import family
from firth.objectives import OBJECTIVES
from firth.objectives.objective import Sources
from firth.tokenizers.base import Tokenizer
from firth.weights.read import read_model

# The recipe that shows the section of each objective.
RECIPES = {
    "mlm": "bert.py",
    "clm": "gpt2.py",
    "bilm": "elmo.py",
    "plm": "xlnet.py",
    "rtd": "electra.py",
    "distill": "distilbert.py",
    "finetune": "finetune.py",
    "multitask": "finetune.py",
    "tag": "tagger.py",
    "answer": "squad.py",
}


def create_objective(
    spec, tokenizer: Tokenizer, task=None, *, body=None, counts=None, load=read_model, labels=None
):
    """Build the objective `spec.name` from the other fields of `spec`; see `objective.Sources`.

    Raises FirthError for an unknown name or field, and for a body that it cannot train.
    """
    fields = dict(spec)
    name = fields.pop("name")
    kind = registry.resolve("objective.name", name, OBJECTIVES)
    reads_tokens = not body or getattr(family(body["family"]).Config, "reads_tokens", True)
    if not reads_tokens and name != "bilm" and name in OBJECTIVES:
        raise FirthError(
            f"objective {name!r} cannot train model.family={body['family']!r}, which reads the "
            "characters of words; use objective.name=bilm"
        )
    fields.pop("static", None)  # the train step reads it: it decides the key of the corruption
    if isinstance(kind.bidirectional, bool | None):  # else its fields decide
        _check_direction(name, kind.bidirectional, body)
    try:
        objective = kind.from_config(
            fields, Sources(tokenizer, task, body or {}, counts, load, labels)
        )
    except TypeError as error:
        raise FirthError(f"objective {name!r}: {_misfit(name, error)}") from None
    _check_direction(name, objective.bidirectional, body)
    return objective


def _misfit(name: str, error: TypeError) -> str:
    """Why the section of a recipe does not make this objective, and what to do."""
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if not found:
        return str(error)
    shown = f"as in {RECIPES[name]}" if name in RECIPES else "with the fields that it defines"
    return (
        f"it has no field {found[1]!r}; the section objective belongs to another one: write a "
        f"recipe of your own with a section for {name!r}, {shown}"
    )


def _check_direction(name: str, bidirectional: bool | None, body: dict | None):
    """Raise FirthError if the body is causal and the objective bidirectional, or vice versa."""
    if bidirectional is None or not body:
        return
    module = family(body["family"])
    causal = module.Config.causal
    if causal == bidirectional:
        sees = "only the tokens before each" if causal else "both sides of every token"
        others = "plm" if hasattr(module.Body, "two_streams") else "mlm or rtd"
        raise FirthError(
            f"objective {name!r} cannot train model.family={body['family']!r}, which sees {sees}: "
            + (
                "it could not use the tokens after a masked word; use objective.name=clm"
                if causal
                else f"it would read the next word instead of predicting it; use {others}"
            )
        )
