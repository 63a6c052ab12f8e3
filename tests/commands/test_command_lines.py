"""What a user may type by mistake: one line that says what is wrong, and nothing written.

The tables are in lines/; their form is in helpers/lines.py.
"""

import contextlib
import io
import re
import resource
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.lines import listing, make_places, read_table

from firth import cli

TABLES = sorted((Path(__file__).parent / "lines").glob("*.toml"))
LINES = [line for table in TABLES for line in read_table(table)]
# Advice for Python, which does not help on a command line.
PYTHON = re.compile(r"Traceback|\w=True|\bkwarg|__init__|keyword argument|NoneType|object at 0x")


@pytest.fixture(scope="module")
def places(store, tmp_path_factory):
    """The places that lines name; `test_no_line_changes_the_places` comes last."""
    folder = tmp_path_factory.mktemp("places")
    made = make_places(folder, store)
    before = listing(folder), listing(store.parent)
    yield made
    after = listing(folder), listing(store.parent)
    changed = {
        name for a, b in zip(before, after, strict=True) for name, _ in a.items() ^ b.items()
    }
    assert not changed, "a line has changed its input"


@pytest.fixture(autouse=True)
def patience():
    """A line that begins to train, instead of being refused, fails after a minute."""
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("this line goes on"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder in which a line runs, with an empty standard input."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # whatever this environment says
    return tmp_path


@contextlib.contextmanager
def limited(size, monkeypatch):
    """Let files grow to this many bytes, so that a larger one fails as on a full disk.

    Python keeps no bytecode meanwhile: it would cut that of a module off without noticing.
    """
    if size is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("line", LINES, ids=[line.name for line in LINES])
def test_a_line_ends_as_its_table_says(line, places, here, capsys, monkeypatch):
    for name, text in line.files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(text.encode("latin-1" if name.startswith("latin") else "utf-8"))
    for name, target in line.links.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).symlink_to(target)
    before = listing(here)
    with limited(line.limit, monkeypatch):
        status = cli.main(line.argv(places))
    printed = capsys.readouterr()
    shown = printed.err if line.status else printed.out + printed.err
    assert status == line.status, shown
    assert re.search(line.pattern, shown), shown
    if line.status:
        assert re.fullmatch(rf"(note: .+\n)*firth {line.verb}: error: .+\n", printed.err), shown
        assert not PYTHON.search(printed.err)
        assert not printed.out
        assert listing(here) == before


def test_the_tables_hold_enough():
    """At least 300 different lines, and some of every verb."""
    assert len({(line.verb, line.arguments, str(line.files)) for line in LINES}) >= 300
    counts = {verb: sum(line.verb == verb for line in LINES) for verb in cli.VERBS}
    assert min(counts.values()) >= 15, counts
