"""babysit.sh --local: what it starts again on this machine, and what it does not."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

BABYSIT = ["sh", str(Path(__file__).parents[2] / "launch/babysit.sh"), "--local"]
# Notes each start; ends as word START of $1 says, the last word for ever.
RUN = r"""echo start >>starts
code=$(echo "$1" | tr ' ' '\n' | sed -n "$(wc -l <starts)p;\$p" | head -n 1)
[ "$code" != kill ] || kill -KILL $$
exit "$code" """


def babysit(folder, exits, *flags):
    """(exit status, starts, what was said) of a run that ends as `exits` says."""
    command = [*BABYSIT, "--backoff=0", *flags, "--", "sh", "-c", RUN, "sh", exits]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    starts = folder / "starts"
    return result.returncode, len(starts.read_text().split()), result.stderr


@pytest.mark.parametrize(
    ("exits", "flags", "status", "starts"),
    [
        ("0", [], 0, 1),
        ("kill 1 143 75 0", [], 0, 5),
        ("1 2 0", [], 2, 2),
        ("1", ["--max-restarts=3"], 3, 4),
        ("143 143 0", ["--max-restarts=2"], 0, 3),
        ("1", ["--max-hours=0"], 3, 1),
    ],
)
def test_what_is_started_again(tmp_path, exits, flags, status, starts):
    found = babysit(tmp_path, exits, *flags)
    assert found[:2] == (status, starts), found[2]


def test_the_delay_doubles_up_to_its_cap_but_not_after_a_save(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sleep").write_text('#!/bin/sh\necho "$1" >>sleeps\n')
    (programs / "sleep").chmod(0o755)
    command = [*BABYSIT, "--backoff=3", "--backoff-cap=10", "--", "sh", "-c", RUN, "sh"]
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    subprocess.run([*command, "1 1 1 1 143 1 0"], cwd=tmp_path, env=environment, timeout=60)
    assert (tmp_path / "sleeps").read_text().split() == ["3", "6", "10", "10", "3"]


def test_a_signal_reaches_the_run_which_may_take_its_time(tmp_path):
    save = "trap 'sleep 0.3; : >saved; exit 143' TERM; echo ready; while :; do sleep 0.02; done"
    process = subprocess.Popen(
        [*BABYSIT, "--", "sh", "-c", save], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert (tmp_path / "saved").exists(), "the watch ended before the run"


def test_a_signal_ends_the_wait_for_a_restart(tmp_path):
    process = subprocess.Popen(
        [*BABYSIT, "--backoff=60", "--", "sh", "-c", "exit 1"], stderr=subprocess.PIPE, text=True
    )
    assert "restart 1 in 60 s" in process.stderr.readline()
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143
