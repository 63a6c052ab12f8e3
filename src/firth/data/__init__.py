"""Batches from text and from labelled tasks. This package knows no models and no objectives."""
