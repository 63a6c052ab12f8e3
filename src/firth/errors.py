"""The one exception that Firth raises for bad input."""


class FirthError(ValueError):
    """What was wrong, where (file, line, key, shape), what was expected and what to do.

    The command line prints the message as one line and exits with status 2; in Python it is an
    ordinary `ValueError`. Anything else that escapes is a bug in Firth and keeps its traceback.
    """
