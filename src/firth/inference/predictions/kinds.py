"""The commands of models that do not label whole texts: one line for each kind."""

from types import ModuleType

from firth.errors import FirthError
from firth.inference.answering import command as answering
from firth.inference.answering.answerer import is_answerer
from firth.inference.predictions.load import names_of
from firth.inference.tagging import command as tagging
from firth.inference.tagging.tagger import is_tagger

# What tells such a model by its name, what it does, and the module of its `predict` and `evaluate`.
KINDS = ((is_tagger, "tags words", tagging), (is_answerer, "answers by spans", answering))


def own_command(model: str) -> ModuleType | None:
    """The module of a model's commands: predict and evaluate of (args, parser, output).

    None for a model that labels texts, and for what is no model. Raises FirthError for several
    models, "A,B", of which one is of such a kind: there is no mean of them.
    """
    names = names_of(model)
    for tells, does, module in KINDS:
        if own := [name for name in names if tells(name)]:
            if len(names) > 1:
                raise FirthError(
                    f"{model}: {own[0]} {does}, and the mean of several models is of those alone "
                    "that label texts; give one"
                )
            return module
    return None
