"""Closed and full streams, an ASCII terminal and Ctrl-C: one line, or what was asked for."""

import io
import json
import signal
import subprocess
import sys

import pytest
from helpers.lines import make_places

from firth import cli
from firth.cli import main

FIRTH = [sys.executable, "-m", "firth"]
CHIPS = ["plan", "--list"]  # a verb that prints at once


@pytest.fixture(scope="module")
def model(store, tmp_path_factory):
    """The directory of a tiny BERT."""
    return str(make_places(tmp_path_factory.mktemp("places"), store)["firth"])


@pytest.mark.parametrize("verb", ["represent", "score", "fill", "generate"])
def test_a_closed_stdin(model, verb, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    name = "out.npz" if verb == "represent" else "out"
    output = [] if verb == "fill" else ["--output", str(tmp_path / name)]
    assert main([verb, "--model", model, "--input", "-", *output]) == 2
    expected = f"firth {verb}: error: standard input is closed; expected one text a line, or name a"
    assert capsys.readouterr().err == f"{expected} file\n"
    assert not list(tmp_path.iterdir())


def test_an_ascii_terminal(model, monkeypatch):
    """Other characters are escaped: as Python does in text, as JSON does in JSON."""
    for options in (["--top=1"], ["--top=1", "--json"]):
        terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(["fill", "--model", model, "caf\xe9 \u4e2d [MASK]", *options]) == 0
        shown = terminal.buffer.getvalue().decode("ascii")
        if "--json" in options:
            assert json.loads(shown)["text"] == "caf\xe9 \u4e2d [MASK]"
        else:
            assert r"caf\xe9 \u4e2d" in shown


def test_json_on_a_terminal_of_unicode_stays_readable(model, capsys):
    assert main(["fill", "--model", model, "caf\xe9 [MASK]", "--top=1", "--json"]) == 0
    assert "caf\xe9" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [CHIPS, ["plan", "--help"], ["--help"], ["help"]])
def test_a_full_stdout(argv, monkeypatch, capfd):
    """/dev/full takes what is written and refuses it when it is flushed."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(argv) == 2
    name = f"firth {argv[0]}" if argv[0] == "plan" else "firth"
    expected = f"{name}: error: the output cannot be written: No space left on device; make room"
    assert capfd.readouterr().err == f"{expected} and run the same command again\n"


def test_a_process_whose_streams_are_full_or_closed():
    """Python, too, is silent at its end."""
    with open("/dev/full", "w") as full:
        done = subprocess.run([*FIRTH, *CHIPS], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *FIRTH, *CHIPS]
    assert subprocess.run(closed).returncode == 0


def test_ctrl_c_ends_a_plan(tmp_path):
    """Wherever it comes: JAX's callback on garbage would drop it."""
    program = """
import gc, jax.numpy, os, signal, sys, threading
from firth import cli
from firth.commands import plan
def fire(phase, info):
    if phase == "start":
        gc.callbacks.remove(fire)
        signal.raise_signal(signal.SIGINT)
def wait(argv):
    gc.callbacks.insert(0, fire)
    gc.collect()
    while True: pass
plan.main = wait
sys.exit(cli.main(["plan"]))
"""
    interrupts = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
        preexec_fn=interrupts,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "firth plan: interrupted\n")


def test_an_error_of_the_file_system_is_one_line(monkeypatch, tmp_path, capsys):
    """Whatever verb meets it; a bug in Firth keeps its traceback."""
    monkeypatch.setitem(cli.VERBS, "try", ("made_verb", "a verb of this test"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "made_verb.py").write_text("def main(argv):\n    open(argv[0])\n")
    assert main(["try", str(tmp_path)]) == 2
    expected = f"firth try: error: {tmp_path}: Is a directory; choose a place that can be read"
    assert capsys.readouterr().err == f"{expected} and written\n"
    with pytest.raises(TypeError):
        main(["try", None])
