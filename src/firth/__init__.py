"""Firth: contextual word representations in JAX."""

__version__ = "0.1.0"


def load(source, **options):
    """Load an encoder; see `firth.inference.encoder.load`. Imported late, for speed."""
    from firth.inference.encoder import load

    return load(source, **options)
