"""The commands of models that do not label whole texts: one line for each kind."""

from types import ModuleType

from firth.inference.answering import command as answering
from firth.inference.answering.answerer import is_answerer
from firth.inference.tagging import command as tagging
from firth.inference.tagging.tagger import is_tagger

# What tells such a model by its name, and the module with its `predict` and `evaluate`.
KINDS = ((is_tagger, tagging), (is_answerer, answering))


def own_command(model: str) -> ModuleType | None:
    """The module of a model's commands: predict and evaluate of (args, parser, output).

    None for a model that labels texts, and for what is no model.
    """
    return next((module for tells, module in KINDS if tells(model)), None)
