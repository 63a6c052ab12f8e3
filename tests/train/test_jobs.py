"""Whole runs of several processes against the same run of one: the promises of a job.

FIRTH_KILLS=20 kills as many processes as experiments/several_hosts says.
"""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.cases import nightly
from helpers.jobs import SMALL, end, error_of, read_state, start_job, start_training
from helpers.runs import BY_TF_DATA, arguments, logged, make_corpus

from firth.cli import main
from firth.distributed.job import DIED
from firth.run.stopping import TERMINATED

pytestmark = pytest.mark.slow
STEPS = SMALL["steps"]


@pytest.fixture(scope="session")
def runs(store, tmp_path_factory):
    """Workdirs of the same run by 1, 2 and 4 processes."""
    found = {}
    for count in (1, 2, 4):
        found[count] = tmp_path_factory.mktemp(f"by-{count}")
        for status, text in end(start_training(count, store, found[count])):
            assert status == 0, text
    return found


def same_bytes(one, other, step=STEPS):
    one, other = read_state(one, step), read_state(other, step)
    assert one.keys() == other.keys()
    return [name for name in one if one[name].tobytes() != other[name].tobytes()] == []


def close(one, other, step=STEPS):
    """Whether states and journals are equal within what the order of sums may change."""
    first, second = read_state(one, step), read_state(other, step)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-3, atol=2e-5, err_msg=name)
    assert len(logged(one)) == len(logged(other))
    for a, b in zip(logged(one), logged(other), strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5, err_msg=name)
    return True


def newest_step(workdir) -> int:
    """The newest complete checkpoint."""
    return max((int(seal.stem) for seal in (workdir / "seals").glob("*.json")), default=0)


def until(condition, job, seconds=600):
    """Wait for a condition while the whole job runs."""
    last = time.monotonic() + seconds
    while not condition() and time.monotonic() < last:
        assert all(process.poll() is None for process in job), [p.communicate() for p in job]
        time.sleep(0.02)
    assert condition()


def test_one_two_and_four_processes_train_the_same_model(runs):
    for count in (2, 4):
        assert f"{count} process(es)" in (runs[count] / "env.txt").read_text()
        assert close(runs[1], runs[count])
        assert not list(runs[count].glob(".probe*"))


@pytest.mark.nightly
def test_tf_data_feeds_two_processes_the_same(store, runs, tmp_path):
    argv = arguments(store, tmp_path / "work", **SMALL | {"data__loader": "tf.data"})
    served = [tmp_path / str(process) for process in range(2)]
    for status, text in end(start_job(2, lambda n: ["-c", BY_TF_DATA, served[n], *argv])):
        assert status == 0, text
    assert all(int(path.read_text()) > STEPS / 2 for path in served)
    assert same_bytes(runs[2], tmp_path / "work") and logged(runs[2]) == logged(tmp_path / "work")


@pytest.mark.nightly
def test_a_memory_is_divided_over_two_processes(store, tmp_path):
    """Transformer-XL: what a batch leaves to the next lies on both."""
    changes = dict(recipe="transformer_xl.py:tiny,length=16", model__max_length=None)
    for count in (1, 2):
        for status, text in end(start_training(count, store, tmp_path / str(count), **changes)):
            assert status == 0, text
    assert close(tmp_path / "1", tmp_path / "2")
    assert any(name.startswith("['carry']") for name in read_state(tmp_path / "1", STEPS))


@pytest.mark.nightly
def test_fine_tuning_measures_all_examples_on_two_processes(runs, tmp_path):
    """The two share a workdir at a URL, whose files process 0 alone has."""
    rng = np.random.default_rng(0)
    for split, rows in (("train", 24), ("dev", 13)):  # 13: no whole number of batches
        words = ("bad", "good")
        lines = [f"the film was {words[n]},{words[n]}" for n in rng.integers(2, size=rows)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    argv = [
        f"--config=finetune.py:task=custom,init={runs[1]},length=16",
        *(f"--config.data.{split}={tmp_path}/{split}.csv" for split in ("train", "dev")),
        *(
            "--config.data.text=text",
            "--config.data.label=label",
            "--config.batch_size=8",
            "--config.epochs=2.0",
            "--config.data.loader=thread",
        ),
        *("--config.eval.batch_size=8", "--config.seeds=0,1", "--config.progress=False"),
    ]
    summaries = []
    for count, scheme in ((1, ""), (2, "file://")):
        command = ["-m", "firth", "train", *argv, f"--workdir={scheme}{tmp_path / str(count)}"]
        job = start_job(count, lambda _, command=command: command, tmp_path / "cache")
        for status, text in end(job):
            assert status == 0, text
        summaries.append(json.loads((tmp_path / str(count) / "summary.json").read_text()))
    one, two = summaries
    assert one.keys() == two.keys() and "accuracy" in " ".join(one)
    for name in one:
        np.testing.assert_allclose(one[name]["mean"], two[name]["mean"], rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("count", [nightly(1), 2])
def test_a_checkpoint_of_four_goes_on_with_fewer(store, runs, tmp_path, count):
    workdir = tmp_path / "work"
    shutil.copytree(runs[4], workdir)
    for step in (12, STEPS):
        shutil.rmtree(workdir / "checkpoints" / str(step))
        (workdir / "seals" / f"{step}.json").unlink()
    for status, text in end(start_training(count, store, workdir)):
        assert status == 0 and "falling back" not in text, text
    assert same_bytes(runs[4], workdir, 8) and close(runs[4], workdir)


RESTORE = """
import sys, jax, numpy as np
from pathlib import Path
from helpers.jobs import read_state
from firth.distributed import job
from firth.training import partition
from firth.training.checkpoint import Checkpoints
place, (workdir, step) = job.from_command_line(sys.argv[1:])
job.join(place)
raw = read_state(workdir, int(step))
mesh = partition.create_mesh(dict(data=1, fsdp=-1, tensor=1))
import orbax.checkpoint as ocp
tree = ocp.PyTreeCheckpointer().metadata(Path(workdir) / "checkpoints" / step / "state")
tree = jax.tree.map(lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype), tree.item_metadata.tree)
shapes = partition.placed(tree, partition.shardings_of(tree, mesh))
state, _ = Checkpoints(workdir).restore(shapes, int(step))
cut = 0
for path, leaf in jax.tree.leaves_with_path(state):
    whole = raw[jax.tree_util.keystr(path)]
    cut += not leaf.is_fully_replicated
    for shard in leaf.addressable_shards:
        assert np.asarray(shard.data).tobytes() == whole[shard.index].tobytes(), path
assert cut > 10, cut
"""


def test_what_four_saved_is_restored_to_the_byte_on_two(runs):
    job = start_job(
        2,
        lambda _: ["-c", RESTORE, runs[4], 8],
        PYTHONPATH=os.pathsep.join(
            [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        ),
    )
    for status, text in end(job):
        assert status == 0, text


@pytest.mark.parametrize("who", [nightly(0), 1])
def test_sigterm_to_one_of_two_saves_on_both(store, runs, tmp_path, who):
    job = start_training(2, store, tmp_path)
    until(lambda: newest_step(tmp_path) >= 4, job)
    job[who].send_signal(signal.SIGTERM)
    began = time.monotonic()
    results = end(job)
    assert time.monotonic() - began < 120, "a loaded machine takes its time, but not for ever"
    assert [status for status, _ in results] == [TERMINATED] * 2, results
    stopped = newest_step(tmp_path)
    assert f"stopped by SIGTERM at step {stopped}" in results[0][1] or stopped
    assert 4 < stopped < STEPS, "it was over too soon"
    for status, text in end(start_training(2, store, tmp_path)):
        assert status == 0, text
    assert same_bytes(runs[2], tmp_path) and logged(runs[2]) == logged(tmp_path)


@pytest.mark.parametrize("count", [2, nightly(4)])
def test_a_kill_of_one_ends_all_and_the_restart_ends_the_same(store, runs, tmp_path, count):
    """Every start is ended by a kill after one more checkpoint at most, then all start again."""
    rng, kills, wanted, slowest = random.Random(0), 0, int(os.environ.get("FIRTH_KILLS", 1)), 0.0
    while kills < wanted:
        if newest_step(tmp_path) >= STEPS - 4:
            assert same_bytes_so_far(runs[count], tmp_path)
            shutil.rmtree(tmp_path)  # and once more from the beginning
        tmp_path.mkdir(exist_ok=True)
        job, newest = start_training(count, store, tmp_path), newest_step(tmp_path)
        until(lambda newest=newest: newest_step(tmp_path) > newest, job)
        time.sleep(rng.random())
        who = kills % count
        assert job[who].poll() is None, job[who].communicate()
        job[who].kill()
        began = time.monotonic()
        for process, (status, text) in enumerate(end(job)):
            if process == who:
                continue
            assert status == DIED, (who, process, text)
            assert f"process {who} (" in error_of(text) and " died" in error_of(text)
        slowest = max(slowest, time.monotonic() - began)
        kills += 1
    print(f"{kills} kills; the slowest end of the others: {slowest:.1f} s")
    assert slowest < 60
    for status, text in end(start_training(count, store, tmp_path)):
        assert status == 0, text
    assert same_bytes(runs[count], tmp_path) and logged(runs[count]) == logged(tmp_path)


def same_bytes_so_far(whole, workdir) -> bool:
    return same_bytes(whole, workdir, newest_step(workdir))


@pytest.mark.nightly
def test_a_job_whose_processes_share_a_url_alone(store, runs, tmp_path):
    """Killed and started on other machines, then gone on with by one process, then by two again."""
    far = tmp_path / "bucket" / "run"

    def forget(*steps):
        for step in steps:
            shutil.rmtree(far / "checkpoints" / str(step))
            (far / "seals" / f"{step}.json").unlink()

    job = start_training(2, store, f"file://{far}", tmp_path / "a")
    until(lambda: newest_step(far) >= 4, job)
    job[1].kill()
    status, text = end(job)[0]
    assert status == DIED and "process 1 (" in error_of(text) and newest_step(far) < STEPS, text
    for machines, count, kept in (("b", 2, STEPS), ("c", 1, 8), ("d", 2, 12)):
        forget(*range(kept + 4, STEPS + 4, 4))
        for status, text in end(start_training(count, store, f"file://{far}", tmp_path / machines)):
            assert status == 0 and "falling back" not in text, text
        assert same_bytes(runs[2], far, 8) and close(runs[2], far)
        if machines == "b":
            assert same_bytes(runs[2], far) and logged(runs[2]) == logged(far)
    assert json.loads((far / "goodput.json").read_text())["restarts"] == 3
    assert not list((tmp_path / "d" / "1").rglob("checkpoints"))


def test_a_url_that_cannot_be_written_is_found_by_all(store, tmp_path):
    (tmp_path / "file").touch()
    job = start_training(2, store, f"file://{tmp_path}/file/run", tmp_path / "cache")
    for status, errors in end(job):
        assert status == 2 and f"file://{tmp_path}/file/run" in error_of(errors), errors


def test_what_is_not_one_job_is_refused_by_all(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    corpus, other = make_corpus(folder / "corpus.txt", seed=1), folder / "store"
    options = f"--tokenizer {store}/tokenizer --sentences line --output {other}"
    assert main(f"prepare --input {corpus} {options}".split()) == 0

    def command(process):
        changes = dict(seed=7, data__store=other) if process else {}
        argv = arguments(store, folder / "work", **SMALL | changes)
        return ["-m", "firth", "train", *argv]

    for status, errors in end(start_job(2, command)):
        assert status == 2, errors
        assert "process 1 (" in errors and "store 0 is" in errors
        assert "config.seed is 7, on process 0 0" in errors
    assert not (folder / "work" / "config.json").exists()


def test_a_second_job_and_a_folder_of_ones_own_are_refused_by_all(store, tmp_path):
    from firth.run.workdir import lock_workdir

    with lock_workdir(tmp_path):
        for status, errors in end(start_training(2, store, tmp_path)):
            assert status == 2 and "another run is using" in error_of(errors), errors

    def command(process):
        return ["-m", "firth", "train", *arguments(store, tmp_path / str(process), **SMALL)]

    for status, errors in end(start_job(2, command)):
        assert status == 2 and "not one folder for all" in error_of(errors), errors


def test_a_store_that_changes_under_a_run_is_named(store, tmp_path):
    copy = shutil.copytree(store, tmp_path / "store")
    changes = dict(steps=4000, eval__every=4000, checkpoint__every=20)
    job = start_training(1, copy, tmp_path / "work", **changes)
    until(lambda: newest_step(tmp_path / "work") >= 20, job)
    tokens = (copy / "tokens.npy").read_bytes()
    (copy / "tokens.npy").write_bytes(tokens[:-1] + bytes([tokens[-1] ^ 1]))
    [(status, errors)] = end(job)
    assert status == 2 and "tokens.npy is damaged" in error_of(errors), errors
    assert "the store has changed under this run" in errors
