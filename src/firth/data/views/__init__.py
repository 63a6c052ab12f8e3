"""Batches of examples from a store. Each view has a file, and a line here that names its config."""

from firth.data.views.base import Source, View, ViewConfig
from firth.errors import FirthError
from firth.registry import resolve

VIEWS = {  # name -> a `ViewConfig`
    "packed": "firth.data.views.packed:PackedConfig",
    "pairs": "firth.data.views.pairs:PairsConfig",
    "streams": "firth.data.views.streams:StreamsConfig",
    "both_ways": "firth.data.views.both_ways:BothWaysConfig",
}
# Fields of a recipe's data section that do not belong to the view.
SECTION = ("store", "view", "heldout", "heldout_store", "loader", "prefetch", "task")


def view_config(data) -> ViewConfig:
    """The config of the view that `data.view` names, from the data section of a recipe.

    Raises FirthError for an unknown view or field, and for a value that the view refuses.
    """
    make = resolve("data.view", data.view, VIEWS)
    try:
        return make(**{name: value for name, value in data.items() if name not in SECTION})
    except TypeError as error:
        raise FirthError(f"data.view={data.view!r}: {error}") from None


def create_view(data, source: Source) -> View:
    """The view of a source that the data section of a recipe describes.

    Raises FirthError as `view_config` does, and for a source that does not suit the view.
    """
    return view_config(data).view(source)
