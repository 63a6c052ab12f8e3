"""Firth: contextual word representations in JAX."""

__version__ = "0.1.0"


def load(source, **options):
    """Load an encoder; see `firth.represent.load`. Imported late so that `import firth` is fast."""
    from firth.represent import load

    return load(source, **options)
