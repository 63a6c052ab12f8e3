"""Run a page of the documentation: its files are written, its commands run, in its order.

A Python block whose first line names a file, `# my_recipe.py`, is written to that file; any other
one runs, all of a page in one namespace. Every line of a shell block (`sh`) must succeed. Blocks of
another kind, such as `text`, are for people alone.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from firth.cli import main

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w/]+\.py)\n")
SHELL = {"|", ">", "<", "&&", ";"}
NAMED = 'firth() { "$PYTHON" -m firth "$@"; }\npython() { "$PYTHON" "$@"; }\n'
Extra = Callable[[list[str]], list[str]]


def run_page(page: Path, folder: Path, extra: Extra) -> list[str]:
    """Run all blocks of a page in `folder`, which is the current one; returns its commands.

    `extra` gives what is added to the arguments of a command of `firth`, so that it is small.
    """
    names, commands = {}, []
    for kind, block in BLOCK.findall(page.read_text()):
        if kind == "sh":
            lines = block.replace("\\\n", " ").splitlines()
            commands += [line for line in lines if shlex.split(line, comments=True)]
            for line in lines:
                run(line, extra)
        elif named := FILE.match(block):
            (folder / named[1]).write_text(block)
        else:
            exec(compile(block, page.name, "exec"), names)
    return commands


def run(line: str, extra: Extra) -> None:
    """Run a line of a shell block: a command of `firth` in this process, others by the shell."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["firth"] and not SHELL & set(words):
        argv = words[1:]
        try:
            status = main([*argv, *extra(argv)])
        except SystemExit as end:  # of --help
            status = end.code
        assert not status, line
    elif words:
        if "firth" in words and not SHELL & set(words):  # after settings: NAME=value firth ...
            line = shlex.join([*words, *extra(words[words.index("firth") + 1 :])])
        environment = os.environ | {"PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            ["sh", "-ec", NAMED + line], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, (line, done.stderr)
