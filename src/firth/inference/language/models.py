"""Any language model by its name: counted or neural."""

from collections.abc import Sequence
from pathlib import Path

from firth.errors import FirthError
from firth.inference.encoder import load
from firth.inference.language.ngram import NgramLM
from firth.models.ngram.files import is_ngram


def load_model(source, **options):
    """An `NgramLM` if the folder holds one, else the `Encoder` of `firth.load` with its options."""
    return NgramLM(source) if is_ngram(source) else load(source, **options)


def short_names(sources: Sequence[str]) -> list[str]:
    """The last part of each path, or the paths as they are where two parts are the same.

    Raises FirthError where two paths are the same.
    """
    names = [Path(source).name or str(source) for source in sources]
    names = list(sources) if len(set(names)) < len(names) else names
    if not sources or len(set(names)) < len(names):
        raise FirthError(f"--models {','.join(sources)}: expected different models")
    return names
