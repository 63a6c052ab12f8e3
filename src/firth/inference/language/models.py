"""Any language model by its name: counted or neural."""

from firth.inference.encoder import load
from firth.inference.language.ngram import NgramLM
from firth.models.ngram.files import is_ngram


def load_model(source, **options):
    """An `NgramLM` if the folder holds one, else the `Encoder` of `firth.load` with its options."""
    return NgramLM(source) if is_ngram(source) else load(source, **options)
