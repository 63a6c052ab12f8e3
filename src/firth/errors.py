"""The one exception that Firth raises for bad input."""


class FirthError(ValueError):
    """Bad input: the message says what is wrong and where, what is expected and what to do.

    "Where" is a file, a line, a key or a shape. The command line prints the message as one line and
    exits with status 2; in Python the error is a `ValueError`. Any other exception is a bug in
    Firth and keeps its traceback.
    """
