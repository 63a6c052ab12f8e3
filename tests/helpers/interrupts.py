"""A Ctrl-C at a chosen moment."""

import contextlib
from unittest import mock


@contextlib.contextmanager
def stopping(owner, name: str, after: int):
    """Interrupt, as Ctrl-C does, the call of a method that follows so many calls of it."""
    method, calls = getattr(owner, name), []

    def call(*args, **kwargs):
        if len(calls) == after:
            raise KeyboardInterrupt
        calls.append(name)
        return method(*args, **kwargs)

    with mock.patch.object(owner, name, call):
        yield
