"""babysit.sh on a played Google Cloud: what goes wrong there, and what is done about it."""

import re
import time

import pytest
from helpers.cloud import QUOTA, QUOTA_DENIED, REFUSED

SETTINGS = ["--project=p", "--zone=us-west4-a", "--name=base", "--type=v5litepod-16", "--spot"]
RUN = ["firth", "train", "--config", "bert.py:base", "--workdir", "gs://b/runs/it's here"]


def babysit(cloud, *more, budget="--max-hours=10", run=RUN):
    result = cloud.sh("babysit.sh", *SETTINGS, budget, *more, "--", *run)
    print(result.stderr)
    return result


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_is_started_on_every_worker_and_its_tpu_given_back(cloud):
    waiting = "WAITING_FOR_RESOURCES\nPROVISIONING\nACTIVE"
    cloud = cloud(states_1=waiting)
    result = babysit(cloud)
    assert result.returncode == 0, result.stderr
    [create] = cloud.calls("create")
    flags = "--node-id=base --accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite"
    assert {*flags.split(), "--spot", "base"} <= set(create)
    assert cloud.starts() == 1 and not cloud.rented()
    for worker in range(2):  # one log a worker, with the command as it was given
        log = cloud.log(1, worker)
        assert f"start 1 on worker {worker}: {' '.join(RUN[1:])}\n" in log
        assert log.endswith("== exit 0\n")
    installed = (cloud.stub / "vm-1-worker-1/python3").read_text()
    assert "--editable .[tpu,remote]" in installed


def test_a_preempted_tpu_is_deleted_and_asked_for_anew(cloud):
    taken = "ACTIVE\n" * 6 + "SUSPENDED"
    cloud = cloud(states_1=taken, exits="hang\n0")
    result = babysit(cloud)
    assert result.returncode == 0, result.stderr
    assert len(cloud.calls("create")) == 2 and len(cloud.calls("delete")) == 2
    assert cloud.starts() == 2 and not cloud.rented()
    assert "base is SUSPENDED; restart 1 in 10 s" in result.stderr
    log = cloud.log(1, 0)
    assert "start 1" in log, "fetched before the VM went"


def test_a_node_that_is_preempted_while_its_request_is_active_is_replaced(cloud):
    cloud = cloud(exits="0", broken_1="0 1", node="PREEMPTED")
    result = babysit(cloud)
    assert result.returncode == 0, result.stderr
    assert "the node is PREEMPTED" in result.stderr and len(cloud.calls("create")) == 2


def test_quota_errors_are_waited_out_ever_longer(cloud):
    cloud = cloud(create="\n".join([QUOTA] * 3 + [QUOTA_DENIED] * 3 + ["", ""]))
    result = babysit(cloud, "--max-restarts=0", "--backoff-cap=100")  # waiting is no restart
    assert result.returncode == 0, result.stderr
    assert cloud.sleeps()[:6] == [10, 20, 40, 80, 100, 100]
    assert result.stderr.count("asking again") == 6


def test_a_request_that_is_refused_is_not_repeated(cloud):
    cloud = cloud(create=REFUSED)
    result = babysit(cloud)
    assert result.returncode == 2 and "tpu.nodes.create" in result.stderr
    assert len(cloud.calls("create")) == 1 and cloud.sleeps() == []


def test_a_worker_that_never_answers_has_its_tpu_replaced(cloud):
    cloud = cloud(broken_1="1")
    result = babysit(cloud)
    assert result.returncode == 0, result.stderr
    assert "only t1v-n-1-w-0 answered (1 of 3)" in result.stderr
    assert len(cloud.calls("create")) == 2 and cloud.starts() == 1


def test_a_worker_that_cannot_be_set_up_has_its_tpu_replaced(cloud):
    cloud = cloud(no_python="1-1")
    result = babysit(cloud)
    assert result.returncode == 0, result.stderr
    assert "not every worker could be set up" in result.stderr
    assert len(cloud.calls("create")) == 2 and cloud.starts() == 1


def test_a_lost_connection_is_not_taken_for_the_end_of_the_run(cloud):
    answers = "\n" * 4 + "0 1\n" * 6 + "\n"
    states = "ACTIVE\n" * 3 + "UNREACHABLE\n" * 3 + "ACTIVE"
    cloud = cloud(silent=answers, states_1=states, exits="0")
    result = babysit(cloud)
    assert result.returncode == 0, result.stderr
    assert "no worker answers (1 of 10)" in result.stderr
    assert len(cloud.calls("create")) == 1 and cloud.starts() == 1


def test_the_budget_ends_the_run_saved_and_gives_the_tpu_back(cloud):
    cloud = cloud(exits="hang", states_1="WAITING_FOR_RESOURCES\n" * 5 + "ACTIVE")
    result = babysit(cloud, "--usd-hour=19.2", "--poll=600", budget="--max-usd=9.6")
    assert result.returncode == 3 and not cloud.rented()
    spent = int((cloud.folder / "runs/launch/base/spent").read_text().split()[0])
    assert spent == 1800, "half an hour at that price; waiting in the queue costs nothing"
    assert "== exit 143" in cloud.log(1, 1)
    again = babysit(cloud, "--usd-hour=19.2", budget="--max-usd=9.6")
    assert again.returncode == 3 and len(cloud.calls("create")) == 1, "the account is kept"


def test_bad_input_is_not_started_again(cloud):
    cloud = cloud(exits="2")
    result = babysit(cloud)
    assert result.returncode == 2 and cloud.starts() == 1 and not cloud.rented()
    assert "start 1 on worker 0" in result.stderr, "the end of the logs says why"


def test_a_saved_run_is_started_again_at_once_on_the_same_tpu(cloud):
    cloud = cloud(exits="143\n143\n0")
    result = babysit(cloud)
    assert result.returncode == 0 and cloud.starts() == 3
    assert len(cloud.calls("create")) == 1
    # On a loaded machine one worker may end late and be killed, and that is backed off from.
    assert not re.search(r"exit 143 after \d+ s; restart \d+ in", result.stderr), "no back-off"


def test_one_dead_worker_restarts_all_and_is_not_waited_for(cloud):
    cloud = cloud(exits="hang 1\n0")
    result = babysit(cloud)
    assert result.returncode == 0, result.stderr
    assert "exit 1 after" in result.stderr and cloud.starts() == 2
    first = cloud.log(1, 0)
    assert "== exit 143" in first, "the other worker was told to save before it was started again"


def test_a_tpu_on_which_the_run_keeps_failing_is_replaced(cloud):
    cloud = cloud(exits="1\n1\n1\n0")
    result = babysit(cloud)
    assert result.returncode == 0, result.stderr
    assert len(cloud.calls("create")) == 2 and cloud.starts() == 4


def test_restarts_are_limited(cloud):
    cloud = cloud(exits="1")
    result = babysit(cloud, "--max-restarts=1")
    assert result.returncode == 3 and cloud.starts() == 2 and not cloud.rented()


def test_a_second_watch_takes_over_and_another_command_does_not(cloud):
    cloud = cloud(exits="hang")
    (cloud.folder / "tpu.env").write_text(
        "project=p\nzone=us-west4-a\nname=base\ntype=v5litepod-16\n"
    )
    assert cloud.sh("babysit.sh", "--max-hours=0.05", "--keep", "--", *RUN).returncode == 3
    assert cloud.rented() and cloud.starts() == 1
    assert cloud.sh("run.sh", "--", *RUN).returncode == 0
    wait_for(lambda: cloud.starts() == 2)
    other = cloud.sh("babysit.sh", "--max-hours=9", "--", *RUN, "--config.seed=1")
    assert other.returncode == 2 and "another command runs on base" in other.stderr
    assert cloud.rented(), "the TPU of somebody else's run is left alone"
    (cloud.stub / "exits").write_text("0\n")
    status = cloud.sh("status.sh")
    assert status.stdout.count(" running 0 ") == 2, status.stdout
    assert cloud.sh("stop.sh", "--keep").returncode == 0
    assert cloud.sh("status.sh").stdout.count(" exited 143 ") == 2
    assert babysit(cloud).returncode == 0 and not cloud.rented()
    assert len(cloud.calls("create")) == 1 and cloud.starts() == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", *RUN], "give --max-hours or --max-usd"),
        (["--max-usd=5", "--", *RUN], "--usd-hour"),
        (["--max-hours=5", "--", "firth", "train", "--workdir=/mnt/b/x"], "--workdir gs://"),
        (["--max-hours=5", "--type=v9-8", "--", *RUN], "--runtime"),
        (["--max-hours=5", "--zone=", "--", *RUN], "zone=... into tpu.env"),
        (["--max-hours=5"], "no command"),
        (["--hours=5", "--", *RUN], "no flag --hours"),
        (["--poll=often", "--", *RUN], "often is no whole number"),
        (["--max-hours=1d", "--", *RUN], "1d is no number of hours"),
    ],
)
def test_bad_settings_rent_nothing(cloud, arguments, said):
    cloud = cloud()
    result = cloud.sh("babysit.sh", *SETTINGS, *arguments)
    assert result.returncode == 2 and said in result.stderr, result.stderr
    assert cloud.calls() == []
