"""Freed memory stays with the process: a thread that takes it again does not fault it in again."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, threading


if "keep" in sys.argv:
    from firth.distributed.allocator import keep_freed_memory
    print(keep_freed_memory())

def work():
    for _ in range(20):
        parts = [b"x" * 2**size for size in (26, 25, 23)]  # 104 MiB

before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def printed(*argv, **variables):
    free = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC"))}
    environment = free | {"JAX_PLATFORMS": "cpu"} | variables
    return subprocess.run(
        [sys.executable, "-c", FAULTS, *argv],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_pages_are_faulted_in_once():
    (plain,) = printed()
    done, kept = printed("keep")
    assert done == "True"
    assert int(plain) > 20 * int(kept) / 3  # each of the 20 rounds, and at most three


@pytest.mark.parametrize(
    "variables",
    [
        {"MALLOC_ARENA_MAX": "2"},
        {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"},
        {"JAX_PLATFORMS": "", "TPU_NAME": "a-pod"},
    ],
)
def test_it_stands_back_for_the_user_and_for_accelerators(variables):
    assert printed("keep", **variables)[0] == "False"
