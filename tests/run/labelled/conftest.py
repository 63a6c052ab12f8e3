"""A small model of one label a text."""

from helpers.published.classifiers import labelled

__all__ = ["labelled"]
