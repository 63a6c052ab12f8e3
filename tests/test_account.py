"""What a session does at its end: sessions of made tests, run with the conftest of these."""

import os
import re
import subprocess
import sys
from pathlib import Path

import account
import pytest

SKIPS = {  # the lines of a made test file -> whether its skip is a failure
    "from pytest import skip\ndef test(): skip('needs a GPU')": False,
    "from pytest import mark\n@mark.skipif(True, reason='needs a TPU')\ndef test(): pass": False,
    "from pytest import skip\nskip('needs a TPU', allow_module_level=True)": False,
    "from pytest import skip\ndef test(): skip('no time')": True,
    "from pytest import mark\n@mark.skip\ndef test(): pass": True,
    "from pytest import mark\n@mark.xfail\ndef test(): assert False": True,
    "from pytest import importorskip\ndef test(): importorskip('no_such_package')": True,
    "from pytest import importorskip\nimportorskip('no_such_package')": True,
    "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.skipTest('x')": True,
}
HOLDS = """
import subprocess, sys
def test():
    program = "import time; held = b'1' * 300_000_000; time.sleep(2)"
    subprocess.run([sys.executable, "-c", program], check=True)
"""
GROWS = """
import functools, jax
compiled, held = jax.jit(lambda x: x + 1), []
@functools.cache
def remembered(): return 1
def test_small():
    assert compiled(remembered()) == 2
def test_large():
    assert compiled._cache_size() == 1 and remembered.cache_info().currsize == 1
    held.append(b"1" * 320_000_000)
def test_given_back():
    assert compiled._cache_size() == 0 and remembered.cache_info().currsize == 1
"""
AFTER = """
import sys
def test_forgotten():
    (module,) = [m for m in list(sys.modules.values()) if hasattr(m, "remembered")]
    assert module.remembered.cache_info().currsize == 0
"""


def session(folder, files, *options):
    """(exit status, what it prints) of the made test files."""
    for number, text in enumerate(files):
        (folder / f"test_{number}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-rfE", *options]
    tests = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": tests, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_a_skip_without_a_listed_reason_fails_the_session(tmp_path):
    status, said = session(tmp_path, SKIPS, "-n", "2", "--continue-on-collection-errors")
    bad = {f"test_{number}.py" for number, fails in enumerate(SKIPS.values()) if fails}
    assert set(re.findall(r"^(?:FAILED|ERROR) (test_\d\.py)", said, re.M)) == bad, said
    assert status == 1
    assert re.search(r"^skipped: 3\n +2  a TPU: needs a TPU\n +1  a GPU: needs a GPU$", said, re.M)


def test_an_expected_failure_is_counted_by_pytest():
    """Which passes over failed reports that carry this mark."""
    where = ("test_x.py", 1, "test")
    report = pytest.TestReport("test", where, {}, "skipped", None, "call", wasxfail="")
    assert account.judged(report).failed and not hasattr(report, "wasxfail")


def test_listed_skips_are_counted_and_memory_is_that_of_all_processes(tmp_path):
    files = [text for text, fails in SKIPS.items() if not fails]
    status, said = session(tmp_path, [*files, HOLDS], "-p", "no:xdist")
    assert status == 0, said
    assert "\nskipped: 3\n" in said
    assert 0.32 < float(re.search(r"^memory: ([\d.]+) GB", said, re.M)[1]) < 1.5


def test_a_process_that_grows_gives_back_what_it_compiled(tmp_path):
    """What a file's functions remember stays until its end: its tests share that."""
    status, said = session(tmp_path, [GROWS, AFTER], "-p", "no:xdist")
    assert status == 0, said
