"""Commands on a machine with the TPU's compiler and no TPU: the CPU, and not a word about it."""

import os
import subprocess
import sys

import pytest
from helpers.cases import nightly

from firth.distributed import libtpu

FIRST = "import jax; "  # as in `python -m firth train`
PROGRAM = "from firth.cli import main; main(['plan', '--list']); import jax; jax.devices()"
# `load` fails here, but not before it has chosen the platform.
LOAD = """
import contextlib, firth
with contextlib.suppress(Exception):
    firth.load('nowhere')
import jax
jax.devices()
"""


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize("program", [nightly(PROGRAM), FIRST + PROGRAM, nightly(LOAD)])
def test_nothing_is_said_of_tpus_that_are_not_there(program):
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


NO_TPU_FOUND = "import jax; jax.devices()"
SLICE_DESCRIBED = (
    "from firth.planning.compiler import topology; topology.devices(topology.parse('v5e:2x2'))"
)


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize("before", [nightly(NO_TPU_FOUND), SLICE_DESCRIBED])
def test_children_of_a_process_in_which_libtpu_found_no_tpu_run_on_the_cpu(before):
    """libtpu sets TPU_WORKER_ID and others to warnings, and a description needs a TPU's names."""
    child = "from firth.distributed.job import in_cluster; print(in_cluster())"
    program = f"{before}; import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("given", "found", "packages", "expected"),
    [
        (None, "", {"libtpu"}, "cpu"),
        (None, "", {}, None),
        (None, "", {"libtpu", "jax_plugins"}, None),
        (None, "TPU (/dev/accel0)", {"libtpu"}, None),
        (None, "GPU (/dev/nvidia0)", {"libtpu"}, None),  # which check_accelerator tells
        ("", "", {"libtpu"}, ""),
        ("tpu", "", {"libtpu"}, "tpu"),
    ],
)
def test_what_jax_may_look_for(monkeypatch, given, found, packages, expected):
    monkeypatch.delenv("JAX_PLATFORMS")
    if given is not None:
        monkeypatch.setenv("JAX_PLATFORMS", given)
    monkeypatch.setattr(libtpu, "accelerator", lambda: found)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in packages or None)
    libtpu.leave_libtpu_alone()
    assert os.environ.get("JAX_PLATFORMS") == expected
