"""The help of every verb: it ends with an example whose options exist."""

import inspect
import re
import subprocess
import sys

import pytest

import firth
from firth import cli
from firth.cli import main
from firth.commands.arguments import EXAMPLES
from firth.configs import common
from firth.recipe import flatten

SHORT = ("--config", "--workdir")  # of `firth train`, which argparse does not read


def help_of(verb, capsys) -> str:
    for argv in ([verb, "--help"], ["help", verb]):
        try:
            assert main(argv) == 0
        except SystemExit as stopped:
            assert stopped.code == 0
        yield capsys.readouterr().out


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_help_ends_with_an_example_that_fits_it(verb, capsys):
    text, same = help_of(verb, capsys)
    assert same == text and text.startswith(f"usage: firth {verb}")
    before, _, example = text.partition("\nexample:\n")
    commands = re.findall(r"^  firth (\w+) ?(.*(?:\\\n.*)*)$", example, re.MULTILINE)
    assert verb in {name for name, _ in commands} and example.strip()
    for name, arguments in commands:
        assert name in cli.VERBS
        for option in re.findall(r"(--[a-z-]+)", arguments.partition(" # ")[0]):
            assert name != verb or option in before or option in SHORT, option


def test_examples_are_of_verbs():
    assert cli.VERBS.keys() <= EXAMPLES.keys()


def test_the_fields_that_people_change_have_their_defaults(capsys):
    text, _ = help_of("train", capsys)
    every = common.pretraining(steps=0, batch_size=0, model=common.model(""), data=common.data())
    defaults = flatten(every)
    shown = re.findall(r"^  --config\.([\w.]+)=(\S*) +(\S.*)?$", text, re.MULTILINE)
    assert len(shown) > 15
    assert {"steps", "batch_size", "schedule.lr", "data.store", "seed"} <= {n for n, *_ in shown}
    for name, value, _ in shown:
        assert value in ("...", "N") or value == str(defaults[name]), name
    said = dict((name, what) for name, _, what in shown)
    assert said["seed"] == "of initial values, masks, dropout and the order of the data"


def test_help_of_no_verb(capsys):
    assert main(["help", "trian"]) == 2 and "did you mean 'train'" in capsys.readouterr().err
    assert main(["help"]) == 0 and "usage: firth VERB" in capsys.readouterr().out


def test_help_of_the_package_and_of_load_without_jax():
    program = "import sys, pydoc, firth; print(pydoc.plain(pydoc.render_doc(firth))); "
    program += "print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    *text, jax = done.stdout.splitlines()
    assert jax == "False"
    for part in (
        "load(source, *, dtype=None, heads=True, task=None)",
        "hf:org/name",
        "encoder.fill(",
    ):
        assert part in "\n".join(text)


def test_load_has_the_signature_of_what_it_calls():
    from firth.inference.encoder import load

    ours, theirs = (inspect.signature(f).parameters for f in (firth.load, load))
    assert {k: (p.kind, p.default) for k, p in ours.items()} == {
        k: (p.kind, p.default) for k, p in theirs.items()
    }
