"""The `firth` command: its verbs, and how each ends."""

import sys

import pytest

from firth import __version__, cli
from firth.cli import main
from firth.errors import FirthError


@pytest.fixture
def verb(tmp_path, monkeypatch):
    """`verb(does)` makes a verb `try` that calls `does(argv)`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "made_verb", raising=False)
    monkeypatch.setitem(cli.VERBS, "try", ("made_verb", "a verb of this test"))
    (tmp_path / "made_verb.py").write_text("def main(argv):\n    return does(argv)\n")

    def set_to(does):
        import made_verb

        made_verb.does = does

    return set_to


def test_help_lists_every_verb_and_every_verb_has_a_module(capsys):
    import importlib

    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, (module, what) in cli.VERBS.items():
        assert f"  {name} " in text and what in text
        assert module.split(".")[-1] == name and callable(importlib.import_module(module).main)


def test_how_it_ends_without_a_verb(capsys):
    assert main([]) == 2 and "usage: firth VERB" in capsys.readouterr().out
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"firth {__version__}\n"
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "firth: error: no verb 'trian'; did you mean 'train'?\n"


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        (None, 0, ""),
        (3, 3, ""),
        (FirthError("no store\n at x"), 2, "firth try: error: no store at x\n"),
        (BrokenPipeError(), 1, ""),
        (KeyboardInterrupt(), 130, "firth try: interrupted\n"),
    ],
)
def test_how_a_verb_ends(verb, capsys, ends, status, said):
    given = []

    def does(argv):
        given.append(argv)
        if isinstance(ends, BaseException):
            raise ends
        return ends

    verb(does)
    assert main(["try", "--a", "b"]) == status and given == [["--a", "b"]]
    assert capsys.readouterr().err == said


def test_a_process_that_computes_keeps_the_memory_that_it_frees(verb, monkeypatch):
    called = []
    monkeypatch.setattr("firth.distributed.allocator.keep_freed_memory", lambda: called.append(1))
    verb(lambda argv: 0)
    for name in ("try", "train"):
        monkeypatch.setitem(cli.VERBS, name, cli.VERBS["try"])
        assert main([name]) == 0 and not called  # the process is the caller's
        monkeypatch.setattr(sys, "argv", ["firth", name])
        assert main() == 0 and len(called) == (name == "train")
