"""Processes that train nothing: how a job ends when one of them fails, dies or falls silent."""

import itertools
import random
import signal
import time
from threading import Event
from types import SimpleNamespace

import pytest
from helpers.cases import nightly
from helpers.jobs import end, error_of, free_port, start_job

from firth.distributed import job
from firth.distributed.job import DIED
from firth.distributed.watch import Watch

MEMBER = """
import os, signal, sys, threading, time
from firth.errors import FirthError
from firth.distributed import job, watch
from firth import cli

def main(argv):
    place, (end, who) = job.from_command_line(argv)
    job.join(place)
    with watch.together(patience=place.patience, stall=place.stall):
        job.all_gather()
        watch._watch.step = 57
        if end == "abort" and job.number() != int(who):
            threading.Thread(target=os.abort).start()
        time.sleep(2.5 * watch.BEAT)
        if end == "abort": end = "SIGKILL"
        if job.number() == int(who):
            print("now", flush=True)
            if end == "error": raise FirthError("the corpus is empty")
            if end == "bug": raise KeyError("lost")
            if end != "none": os.kill(os.getpid(), getattr(signal, end))
        if end != "none": time.sleep(600)

if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FirthError as error:
        print(f"firth train: error: {error}", file=sys.stderr)
        sys.exit(2)
"""


def ended(ending: str, who: int, count: int = 3, **environment):
    """[(status, errors)] and the seconds from the event to the end of the last of the others."""
    members = start_job(count, lambda process: ["-c", MEMBER, ending, who], **environment)
    members[who].stdout.readline()
    began = time.monotonic()
    for process in members:
        if process is not members[who]:
            process.wait(60)
    seconds = time.monotonic() - began
    if ending == "SIGSTOP":  # all others end by themselves, perhaps later than their peers
        members[who].kill()
    return end(members), seconds


def test_processes_that_come_to_their_end_leave_in_peace():
    results, _ = ended("none", 1, count=2)
    assert results == [(0, results[0][1]), (0, results[1][1])], results


def test_processes_meet_by_what_slurm_says():
    slurm = dict(JOB_ID=free_port(), STEP_NODELIST="localhost", NTASKS=2, STEP_NUM_TASKS=2)
    slurm = {f"SLURM_{name}": str(value) for name, value in slurm.items()}
    nowhere = dict(FIRTH_COORDINATOR="", FIRTH_PROCESSES="", FIRTH_PROCESS="")

    def command(process):
        own = f"os.environ |= dict(SLURM_PROCID='{process}', SLURM_LOCALID='{process}')"
        said = "assert job.count() == 2 and job.all_gather(str(job.number())) == ['0', '1']"
        text = MEMBER.replace("hosts.gather()", said)
        return ["-c", f"import os; {own}\n{text}", "none", 0]

    for status, text in end(start_job(2, command, **slurm, **nowhere)):
        assert status == 0, text


@pytest.mark.parametrize("ending, who", [("SIGKILL", 0), nightly("SIGKILL", 2), ("abort", 0)])
def test_a_killed_process_ends_the_others_at_once_and_is_named_with_its_step(ending, who):
    """Also if the others abort before they know of it, as gloo does from a thread of its own."""
    results, seconds = ended(ending, who)
    assert seconds < 10
    for process, (status, text) in enumerate(results):
        if process == who:
            assert status == -signal.SIGKILL
        else:
            assert status == DIED, text
            assert f"process {who} (" in error_of(text) and "died after step 57" in error_of(text)


def test_a_silent_process_ends_the_others_when_patience_is_over():
    results, seconds = ended("SIGSTOP", 1, FIRTH_PATIENCE="4")
    assert 2 < seconds < 20
    for status, text in (results[0], results[2]):
        assert status == DIED, text
        assert "process 1 (" in error_of(text) and "silent for 4 s" in error_of(text)


def test_an_abort_of_its_own_ends_the_process_and_the_others_when_patience_is_over():
    results, seconds = ended("SIGABRT", 1, FIRTH_PATIENCE="2")
    assert 2 < seconds < 20
    assert [status for status, _ in results] == [DIED, -signal.SIGABRT, DIED]
    assert all("process 1 (" in error_of(text) for _, text in (results[0], results[2]))


@pytest.mark.parametrize(
    "ending, who, expected", [nightly("error", 0, 2), ("error", 2, 2), nightly("bug", 1, 1)]
)
def test_an_error_of_one_is_the_error_of_all(ending, who, expected):
    results, seconds = ended(ending, who)
    assert seconds < 10
    for process, (status, text) in enumerate(results):
        assert status == expected, text
        assert error_of(text).startswith(f"process {who} (")
        assert ("the corpus is empty" if ending == "error" else "KeyError: 'lost'") in text
        assert ("Traceback" in text) == (ending == "bug" and process == who)


def test_all_agree_on_the_step_whatever_the_order_in_which_they_come_to_it(monkeypatch):
    """Nobody is two steps ahead of process 0; the wish changes at any moment; one RPC a step."""
    for seed in range(50):
        rng, written = random.Random(seed), {}
        store = SimpleNamespace(
            key_value_set=written.__setitem__,
            key_value_dir_get=lambda folder, found=written: [
                (key, wish) for key, wish in found.items() if key.startswith(folder)
            ],
        )
        monkeypatch.setattr(job, "client", lambda store=store: store)
        members = [Watch.__new__(Watch) for _ in range(3)]
        for number, member in enumerate(members):
            member.number, member.lap, member.planned, member.step = number, 1, 0, 0
        answers, wish = [{}, {}, {}], ""
        while members[0].step < 60:
            wish = rng.choice(["save", "stop", ""]) if rng.random() < 0.2 else wish
            slowest = min(member.step for member in members)
            member = rng.choice([member for member in members if member.step <= slowest + 1])
            found = member.agreed(
                member.step + 1, Event(), wish if member is members[0] else "stop"
            )
            answers[member.number][member.step] = found
        steps = [step for step, found in answers[0].items() if found]
        assert len(steps) > 3 and all(b - a > 2 for a, b in itertools.pairwise(steps))
        for other in answers[1:]:
            assert all(answers[0].get(step, found) == found for step, found in other.items())


def test_processes_that_do_not_come_are_waited_for_in_vain():
    members = start_job(2, lambda process: ["-c", MEMBER, "none", "0"], FIRTH_GATHER="6")
    members[1].kill()
    status, text = end(members)[0]
    assert status == DIED and "not all processes came" in error_of(text)
