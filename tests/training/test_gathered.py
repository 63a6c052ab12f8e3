"""Checkpoints by way of process 0: the same files as any, to the byte, on any devices.

Here process 0 is the only one; jobs of several are in tests/test_remote_runs.py.
"""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_checkpoint import SHAPES, assert_same_bytes, files_of, flip, make_state, mesh, on

from firth.errors import FirthError
from firth.training import hosts
from firth.training.checkpoint import Checkpoints
from firth.training.gathered import Gathered, open_checkpoints
from firth.training.mirror import mirrored

# Orbax leaves coroutines behind when a restore fails; not ours to await.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def save(saves, *steps):
    for step in steps:
        saves.save(step, on(mesh(), make_state(step))[0], {"window": {"loss": [0.1, step]}})
        saves.wait()
    saves.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A workdir with checkpoints 1 to 3, to be copied."""
    workdir = tmp_path_factory.mktemp("saved")
    save(Gathered(workdir, keep=3), 1, 2, 3)
    return workdir


@pytest.fixture
def workdir(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "work")


@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 1, 1)])
def test_what_one_gathered_all_restore(saved, sizes):
    shapes = on(mesh(*sizes), make_state(0))[1]
    for kind in (Checkpoints, Gathered):
        state, meta = kind(saved, read_only=True).restore(shapes)
        assert_same_bytes(state, make_state(3))
        assert meta == {"window": {"loss": [0.1, 3]}}
        for leaf, shape in zip(jax.tree.leaves(state), jax.tree.leaves(shapes), strict=True):
            assert leaf.sharding == shape.sharding
    params = Checkpoints(saved, read_only=True).restore_params(2)[1]
    assert_same_bytes(params, make_state(2)["params"])


def test_what_all_saved_is_gathered(tmp_path):
    save(Checkpoints(tmp_path), 4)
    state, _ = Gathered(tmp_path).restore(SHAPES)
    assert_same_bytes(state, make_state(4))
    assert Gathered(tmp_path / "empty").restore(SHAPES) is None


def test_damage_and_another_model_are_told_apart(workdir, caplog):
    other = on(mesh(), make_state(0, width=32))[1]
    with pytest.raises(FirthError, match=r"checkpoints/3 is sound but does not fit this model"):
        Gathered(workdir).restore(other)
    for path in files_of(workdir, 3):
        flip(path)
    saves = Gathered(workdir)
    assert_same_bytes(saves.restore(SHAPES)[0], make_state(2))
    assert "checkpoint 3 is damaged" in caplog.text and saves.steps() == [1, 2]
    saves.discard_after(1)
    assert saves.steps() == [1]


def test_when_a_save_is_due(tmp_path):
    saves = Gathered(tmp_path, every=3, minutes=0)
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
    assert_same_bytes(hosts.spread(tree, shapes), tree)


def test_only_a_copy_of_several_processes_is_gathered(tmp_path, monkeypatch):
    monkeypatch.setenv("FIRTH_CACHE", str(tmp_path / "cache"))
    with mirrored("memory://gathered/run") as copy:
        assert isinstance(open_checkpoints(copy), Checkpoints)
        monkeypatch.setattr(hosts, "count", lambda: 2)
        for place in (copy, copy / "seed-0"):
            place.mkdir(exist_ok=True)
            assert isinstance(open_checkpoints(place), Gathered)
        monkeypatch.setattr(hosts, "number", lambda: 1)
        second = open_checkpoints(copy)
        assert second.first is None and second.steps() == [] and not second.overdue()
        monkeypatch.setattr(hosts, "gather", lambda text="": [json.dumps([False, None]), text])
        assert second.restore(SHAPES) is None
        monkeypatch.undo()
