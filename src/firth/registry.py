"""What a recipe names: a class or function of Firth, or of the user's own code."""

import importlib
import os
import sys
from collections.abc import Mapping

from firth.errors import FirthError
from firth.recipe import suggest


def find(field: str, name: str, known: Mapping[str, str]):
    """The object that a recipe names.

    Args:
      field: of the recipe, for errors: "objective.name".
      name: one of `known`, or the user's own as "module:Name". The module is looked for in the
        current directory first, then wherever Python looks.
      known: {name: "module:Name"}.

    Raises FirthError for a name that is not known, and for a module or an attribute that is
    missing. An error inside the user's module is not caught.
    """
    own = ":" in name
    if not own and name not in known:
        raise FirthError(
            f"{field}={name!r} is unknown{suggest(name, known)}; your own code is 'module:Name'"
        )
    module, _, attribute = (name if own else known[name]).partition(":")
    if own and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not own or error.name != module.split(".")[0]:
            raise
        raise FirthError(
            f"{field}={name!r}: there is no module {module!r} in {os.getcwd()} or where Python "
            "looks for modules; start Firth in the module's folder, or add that to PYTHONPATH"
        ) from None
    try:
        return getattr(found, attribute)
    except AttributeError:
        raise FirthError(f"{field}={name!r}: {found.__file__} has no {attribute!r}") from None
