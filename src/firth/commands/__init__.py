"""The verbs of the `firth` command, one module each, with arguments and messages."""
