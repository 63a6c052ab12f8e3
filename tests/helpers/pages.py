"""Run a page of the documentation: its files are written, its commands run, in its order.

A Python block whose first line names a file, `# my_recipe.py`, is written to that file; any other
one runs, all of a page in one namespace. Every command of a shell block (`sh`) must succeed. Blocks
of another kind, such as `text`, are for people alone.
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
HERE = re.compile(r".*<<'(\w+)'\n(?s:.*?)\n\1$", re.MULTILINE)
# For runs of published weights, whose steps would take ten times as long as quickly compiled ones.
# Most pages find thin ones in a folder of that name.
FAST_STEPS = "--xla_backend_optimization_level=1"
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
            for line in commands_of(block):
                run(line, extra)
                commands.append(line)
        elif named := FILE.match(block):
            (folder / named[1]).write_text(block)
        else:
            exec(compile(block, page.name, "exec"), names)
    return commands


def commands_of(block: str) -> list[str]:
    """The commands of a shell block: a line each, or the lines of a here-document."""
    rest, commands = block.replace("\\\n", " "), []
    while rest:
        here = HERE.match(rest)
        command = here[0] if here else rest.partition("\n")[0]
        rest = rest[len(command) :].removeprefix("\n")
        if here or shlex.split(command, comments=True):
            commands.append(command)
    return commands


def run(line: str, extra: Extra) -> None:
    """Run a command of a shell block.

    Commands of `firth` run in this process. Those that train have one of their own, with one
    device instead of the eight of a test.
    """
    words = shlex.split(line, comments=True)
    if "firth" in words and not SHELL & set(words):
        argv = words[words.index("firth") + 1 :]
        argv += extra(argv)
        if words[0] == "firth" and argv[0] != "train":
            assert main(argv) == 0, line
            return
        line = shlex.join([*words[: words.index("firth")], "firth", *argv])
    published = "minilm" in line and not Path("minilm").exists()
    environment = os.environ | {"PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    environment |= {"XLA_FLAGS": FAST_STEPS} if published else {}
    command = ["sh", "-ec", NAMED + line]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (line, done.stderr)
