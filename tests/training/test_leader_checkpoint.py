"""Checkpoints by way of process 0: the same files as any, to the byte, on any devices.

Here process 0 is the only one; whole runs of several are in tests/train/test_jobs.py.
"""

import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.damage import files_of, flip
from helpers.jobs import end, start_job
from helpers.states import assert_same_bytes, make_state, mesh, on

from firth.distributed import job
from firth.errors import FirthError
from firth.training.checkpoint import Checkpoints
from firth.training.leader_checkpoint import LeaderCheckpoints, open_checkpoints
from firth.training.remote_workdir import local_workdir

# Orbax leaves coroutines behind when a restore fails; not ours to await.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SHAPES = on(mesh(), make_state(0))[1]


def save(saves, *steps):
    for step in steps:
        saves.save(step, on(mesh(), make_state(step))[0], {"window": {"loss": [0.1, step]}})
        saves.wait()
    saves.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A workdir with checkpoints 1 to 3, to be copied."""
    workdir = tmp_path_factory.mktemp("saved")
    save(LeaderCheckpoints(workdir, keep=3), 1, 2, 3)
    return workdir


@pytest.fixture
def workdir(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "work")


@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 1, 1)])
def test_what_process_0_wrote_all_restore(saved, sizes):
    shapes = on(mesh(*sizes), make_state(0))[1]
    for kind in (Checkpoints, LeaderCheckpoints):
        state, meta = kind(saved, read_only=True).restore(shapes)
        assert_same_bytes(state, make_state(3))
        assert meta == {"window": {"loss": [0.1, 3]}}
        for leaf, shape in zip(jax.tree.leaves(state), jax.tree.leaves(shapes), strict=True):
            assert leaf.sharding == shape.sharding
    params = Checkpoints(saved, read_only=True).restore_params(2)[1]
    assert_same_bytes(params, make_state(2)["params"])


def test_what_all_saved_process_0_restores(tmp_path):
    save(Checkpoints(tmp_path), 4)
    state, _ = LeaderCheckpoints(tmp_path).restore(SHAPES)
    assert_same_bytes(state, make_state(4))
    assert LeaderCheckpoints(tmp_path / "empty").restore(SHAPES) is None


def test_damage_and_another_model_are_told_apart(workdir, caplog):
    other = on(mesh(), make_state(0, width=32))[1]
    with pytest.raises(FirthError, match=r"checkpoints/3 is sound but does not fit this model"):
        LeaderCheckpoints(workdir).restore(other)
    for path in files_of(workdir, 3):
        flip(path)
    saves = LeaderCheckpoints(workdir)
    assert_same_bytes(saves.restore(SHAPES)[0], make_state(2))
    assert "checkpoint 3 is damaged" in caplog.text and saves.steps() == [1, 2]
    saves.discard_after(1)
    assert saves.steps() == [1]


def test_when_a_save_is_due(tmp_path):
    saves = LeaderCheckpoints(tmp_path, every=3, minutes=0)
    assert [saves.due(step) for step in (2, 3)] == [False, True] and saves.due(2, last=True)
    assert saves.overdue()


def test_the_bytes_of_any_array_come_through():
    """Odd numbers of bytes, none, and values that a sum of floats would change."""
    values = np.array([-0.0, np.nan, 1e-45, np.inf, 3.0], np.float32)
    tree = [
        values,
        np.int32(-7),
        np.zeros((0, 3), np.int8),
        values.astype(jnp.bfloat16),
        np.array([True]),
    ]
    tree = [np.asarray(leaf) for leaf in tree]
    sharding = jax.sharding.NamedSharding(mesh(), jax.sharding.PartitionSpec())
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for a in tree]
    assert_same_bytes(job.broadcast(tree, shapes), tree)


def test_only_a_local_copy_of_several_processes_has_one_writer(tmp_path, monkeypatch):
    monkeypatch.setenv("FIRTH_CACHE", str(tmp_path / "cache"))
    with local_workdir("memory://leader/run") as copy:
        assert isinstance(open_checkpoints(copy), Checkpoints)
        monkeypatch.setattr(job, "count", lambda: 2)
        for place in (copy, copy / "seed-0"):
            place.mkdir(exist_ok=True)
            assert isinstance(open_checkpoints(place), LeaderCheckpoints)
        assert isinstance(open_checkpoints(tmp_path / "shared"), Checkpoints)
        monkeypatch.setattr(job, "number", lambda: 1)
        second = open_checkpoints(copy)
        assert second.checkpoints is None and second.steps() == [] and not second.overdue()
        monkeypatch.setattr(job, "all_gather", lambda text="": [json.dumps([False, None]), text])
        assert second.restore(SHAPES) is None
        monkeypatch.undo()


TWO = """
import sys
import jax
from helpers.states import assert_same_bytes, make_state, on
from firth.distributed import job
from firth.training import partition
from firth.training.leader_checkpoint import LeaderCheckpoints, open_checkpoints
from firth.training.remote_workdir import local_workdir

def check(saves, step):
    state, meta = saves.restore(shapes)
    assert meta == {"step": step}
    spread = 0
    for path, leaf in jax.tree.leaves_with_path(state):
        [shard] = leaf.addressable_shards
        whole = dict(jax.tree.leaves_with_path(make_state(step)))[path]
        assert_same_bytes(shard.data, whole[shard.index])
        spread += not leaf.is_fully_replicated
    assert spread == 2, spread  # the kernel and its moment

place, (url,) = job.from_command_line(sys.argv[1:])
job.join(place)
over = partition.create_mesh(dict(data=1, fsdp=2, tensor=1))
shapes = on(over, make_state(0))[1]
with local_workdir(url) as workdir:
    (workdir / "config.json").write_text("{}")
    saves = open_checkpoints(workdir, keep=3)
    assert isinstance(saves, LeaderCheckpoints) and saves.restore(shapes) is None
    for step in (1, 2, 3):
        saves.save(step, on(over, make_state(step))[0], {"step": step})
    saves.wait()
    check(saves, 3)
    saves.discard_after(2)
    check(saves, 2)
    saves.close()
job.all_gather()
check(open_checkpoints(url, read_only=True), 2)
job.all_gather()
"""


@pytest.mark.slow
def test_two_processes_with_a_url_between_them(tmp_path):
    folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(folders)
    url = f"file://{tmp_path}/far/run"
    for status, text in end(
        start_job(2, lambda _: ["-c", TWO, url], tmp_path / "c", PYTHONPATH=path)
    ):
        assert status == 0, text
    saves = Checkpoints(tmp_path / "far" / "run", read_only=True)
    assert saves.steps() == [1, 2]
    assert_same_bytes(saves.restore(SHAPES)[0], make_state(2))
