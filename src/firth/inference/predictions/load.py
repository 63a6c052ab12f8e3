"""Any model that labels texts, by its name."""

from firth.inference.predictions.average import Average
from firth.inference.predictions.classifier import TextClassifier
from firth.inference.predictions.linear import LinearClassifier
from firth.models.logistic.files import is_logistic
from firth.storage.remote import is_url


def load_classifier(model: str, dtype: str | None = None) -> TextClassifier:
    """The classifier of a model, or the mean of several, "A,B".

    Raises FirthError for a model that cannot label texts, and for several of other labels.
    """
    names = [model] if is_url(model) else model.split(",")
    parts = [_load(name.strip(), dtype) for name in names]
    return parts[0] if len(parts) == 1 else Average(parts)


def _load(name: str, dtype: str | None) -> TextClassifier:
    if is_logistic(name):
        return LinearClassifier(name, dtype)
    from firth.inference.encoder import load

    return load(name, dtype=dtype).classifier
