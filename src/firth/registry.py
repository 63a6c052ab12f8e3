"""Names in a recipe: parts that Firth ships, and the user's own as `module:Name`."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

from firth.errors import FirthError
from firth.recipe import suggest


def resolve(field: str, name: str, known: Mapping[str, str]) -> object:
    """Import the object that a recipe names: `known[name]`, or the user's own as "module:Name".

    `field` is the field of the recipe, for messages. The values of `known` are "module:attribute".
    A module of the user may also lie in the current directory.

    Raises FirthError for an unknown name and for a missing module or attribute.
    """
    if name not in known and ":" not in name:
        raise FirthError(
            f"{field}={name!r} is unknown{suggest(name, known)} (name your own as module:Name)"
        )
    module, _, attribute = known.get(name, name).partition(":")
    if name not in known and (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, ValueError) as error:
        raise FirthError(f"{field}={name!r}: cannot import {module!r} ({error})") from error
    except AttributeError:
        raise FirthError(f"{field}={name!r}: module {module!r} has no {attribute!r}") from None
