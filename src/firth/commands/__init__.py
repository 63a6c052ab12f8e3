"""The verbs of the `firth` command: one file each, with its arguments and messages."""
