"""Commands of Firth as experiments start them, each in a process of its own."""

import os
import subprocess
import sys

OWN = dict(os.environ)  # before jax, which looks for a TPU, adds to it


def command(*argv) -> list[str]:
    """The command line of a verb and its arguments."""
    return [sys.executable, "-m", "firth", *map(str, argv)]


def settings(fields: dict) -> list[str]:
    """A recipe's fields as options."""
    return [f"--config.{name}={value}" for name, value in fields.items()]


def call(*argv, **variables: str) -> None:
    """Run a command, with environment variables; one that fails ends this process too."""
    if code := subprocess.run(command(*argv), env=OWN | variables).returncode:
        sys.exit(code)


def printed(*argv) -> str:
    """What a command prints on its standard output; one that fails ends this process too."""
    done = subprocess.run(command(*argv), env=OWN, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout
