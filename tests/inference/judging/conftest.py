"""The small fine-tuned models that are judged."""

from helpers.published.classifiers import labelled, scored

__all__ = ["labelled", "scored"]
