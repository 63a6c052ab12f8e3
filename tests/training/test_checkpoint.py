"""Checkpoints: equal to the last bit, damage noticed, the right ones kept, nothing half-written."""

import errno
import logging
import os
import resource
import shutil
import subprocess
import time

import jax
import numpy as np
import pytest
from helpers.damage import files_of, flip, truncate
from helpers.states import assert_same_bytes, make_state, mesh, on

from firth.errors import FirthError
from firth.storage.local import digests
from firth.training.checkpoint import Checkpoints, _check_shapes

# Orbax leaves coroutines behind when a save or a restore fails; not ours to await.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

MEGABYTE = 2**20
LEFTOVER = ".orbax-checkpoint-tmp"


SHAPES = on(mesh(), make_state(0))[1]


def save(saves, *steps, metrics=None):
    for step in steps:
        state, _ = on(mesh(), make_state(step))
        saves.save(step, state, {"window": {"loss": [0.1, step]}}, (metrics or {}).get(step))
        saves.wait()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A workdir with checkpoints 1, 2 and 3, to be copied."""
    workdir = tmp_path_factory.mktemp("saved")
    saves = Checkpoints(workdir, keep=3, best="score")
    save(saves, 1, 2, 3, metrics={step: {"score": 0.5} for step in (1, 2, 3)})
    saves.close()
    return workdir


@pytest.fixture
def workdir(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "work")


# ------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("sizes", [(2, 2, 2), (8, 1, 1), (1, 2, 4), (1, 1, 1)])
def test_round_trip_is_exact_onto_any_mesh(saved, sizes):
    _, shapes = on(mesh(*sizes), make_state(0))
    state, meta = Checkpoints(saved, read_only=True).restore(shapes)
    assert_same_bytes(state, make_state(3))
    assert meta == {"window": {"loss": [0.1, 3]}}
    for leaf, shape in zip(jax.tree.leaves(state), jax.tree.leaves(shapes), strict=True):
        assert leaf.sharding == shape.sharding


def test_nothing_saved_is_none(tmp_path):
    saves = Checkpoints(tmp_path)
    assert saves.restore(SHAPES) is None
    assert saves.steps() == [] and saves.best_step() is None
    with pytest.raises(FirthError, match=r"no checkpoint .* there: none"):
        saves.restore_params()


def test_params_alone(saved):
    saves = Checkpoints(saved, read_only=True)
    for asked, step in ((None, 3), (2, 2)):
        found, params = saves.restore_params(asked)
        assert found == step
        assert_same_bytes(params, make_state(step)["params"])
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(params))
    with pytest.raises(FirthError, match=r"no checkpoint 7 under .* there: 1, 2, 3"):
        saves.restore_params(7)


def test_a_given_step(saved):
    saves = Checkpoints(saved, read_only=True)
    assert_same_bytes(saves.restore(SHAPES, step=2)[0], make_state(2))
    with pytest.raises(FirthError, match=r"checkpoints/9"):
        saves.restore(SHAPES, step=9)


def test_a_save_of_the_same_step_changes_nothing(workdir):
    saves = Checkpoints(workdir, keep=3)
    before = digests(workdir)
    state, _ = on(mesh(), make_state(8))
    saves.save(3, state, {})
    saves.close()
    assert digests(workdir) == before


# ------------------------------------------------------------------------------------- damage


def fall_back(workdir, caplog):
    """Restore where the newest checkpoint is damaged; returns what was logged."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "firth"):
        saves = Checkpoints(workdir, keep=3, best="score")
        state, meta = saves.restore(SHAPES)
    saves.close()
    assert_same_bytes(state, make_state(2))
    assert meta["window"]["loss"] == [0.1, 2]
    assert saves.steps() == [1, 2]
    aside = [path.name.split("-")[0] for path in (workdir / "checkpoints-damaged").iterdir()]
    assert aside == ["3"]
    return " ".join(r.getMessage() for r in caplog.records if r.name == "firth")


def test_a_flipped_byte_in_any_file_is_named_and_the_one_before_is_used(saved, tmp_path, caplog):
    names = [path.relative_to(saved) for path in files_of(saved, 3)]
    assert len(names) > 10
    for i, name in enumerate(names):
        copy = shutil.copytree(saved, tmp_path / str(i))
        if not (copy / name).stat().st_size:
            continue
        flip(copy / name)
        said = fall_back(copy, caplog)
        assert "checkpoint 3 is damaged" in said and str(name) in said and "falling back" in said


@pytest.mark.parametrize("harm", [truncate, os.remove])
def test_a_file_cut_or_missing(workdir, caplog, harm):
    victim = max(files_of(workdir, 3), key=lambda path: path.stat().st_size)
    harm(victim)
    assert victim.name in fall_back(workdir, caplog)


def test_damaged_checksums_verify_nothing(workdir, caplog):
    truncate(workdir / "seals" / "3.json")
    assert "seals/3.json is damaged" in fall_back(workdir, caplog)


def test_after_falling_back_the_run_saves_again(workdir, caplog):
    flip(files_of(workdir, 3)[-1])
    fall_back(workdir, caplog)
    saves = Checkpoints(workdir, keep=3)
    save(saves, 3)
    saves.close()
    assert_same_bytes(Checkpoints(workdir).restore(SHAPES)[0], make_state(3))


def test_all_damaged_is_an_error_and_none_is_lost(workdir):
    for step in (1, 2, 3):
        flip(files_of(workdir, step)[-1])
    with pytest.raises(FirthError, match=r"no checkpoint under .* can be read; .*moved"):
        Checkpoints(workdir).restore(SHAPES)
    assert len(list((workdir / "checkpoints-damaged").iterdir())) == 3
    assert Checkpoints(workdir).restore(SHAPES) is None


def test_params_of_a_damaged_checkpoint_are_refused(workdir):
    victim = files_of(workdir, 3)[-1]
    flip(victim)
    with pytest.raises(FirthError, match=victim.name):
        Checkpoints(workdir).restore_params()


def test_killed_before_the_checksums_the_checkpoint_stands_unless_it_is_unreadable(workdir, caplog):
    (workdir / "seals" / "3.json").unlink()
    assert_same_bytes(Checkpoints(workdir, read_only=True).restore(SHAPES)[0], make_state(3))
    for path in files_of(workdir, 3):
        if path.parent.name == "d":
            truncate(path)
    assert "3 is damaged" in fall_back(workdir, caplog)


def test_an_array_without_a_mesh_has_its_shape_checked():
    """Orbax checks those of a mesh alone."""
    state = {"a": np.zeros((2, 3))}
    _check_shapes(state, {"a": jax.ShapeDtypeStruct((2, 3), np.float64)})
    with pytest.raises(ValueError, match=r"\['a'\] has shape \(2, 3\), expected \(3, 2\)"):
        _check_shapes(state, {"a": jax.ShapeDtypeStruct((3, 2), np.float64)})


def test_another_shape_is_not_damage(workdir):
    """Restoring into another model is refused, and the checkpoints stay where they are."""
    before = digests(workdir / "checkpoints")
    _, wider = on(mesh(), make_state(0, width=32))
    renamed = dict(SHAPES, params={"mlp_out": SHAPES["params"]["mlp_in"]})
    for shapes in (wider, renamed):
        with pytest.raises(FirthError, match=r"checkpoints/3 is sound but does not fit"):
            Checkpoints(workdir).restore(shapes)
    assert digests(workdir / "checkpoints") == before
    assert_same_bytes(Checkpoints(workdir).restore(SHAPES)[0], make_state(3))


def test_a_reader_changes_nothing(workdir):
    """Another process may be in the middle of a save; it is not this one's to clean up."""
    shutil.copytree(workdir / "checkpoints" / "3", workdir / "checkpoints" / f"4{LEFTOVER}")
    flip(files_of(workdir, 3)[-1])
    before = digests(workdir)
    saves = Checkpoints(workdir, read_only=True)
    assert_same_bytes(saves.restore(SHAPES)[0], make_state(2))
    assert saves.steps() == [1, 2, 3]
    saves.close()
    assert digests(workdir) == before


# ------------------------------------------------------------------------- what a kill leaves


def test_what_a_killed_save_left_is_ignored_and_cleaned(workdir):
    leftover = shutil.copytree(
        workdir / "checkpoints" / "3", workdir / "checkpoints" / f"9{LEFTOVER}"
    )
    (workdir / "seals" / ".9.json").write_text('{"half a')
    saves = Checkpoints(workdir)
    assert saves.steps() == [1, 2, 3]
    assert_same_bytes(saves.restore(SHAPES)[0], make_state(3))
    save(saves, 4)
    saves.close()
    assert not leftover.exists()
    assert sorted(p.name for p in (workdir / "seals").iterdir()) == ["3.json", "4.json"]
    assert_same_bytes(Checkpoints(workdir).restore(SHAPES)[0], make_state(4))


# ------------------------------------------------------------------------------ what is kept


SCORES = {1: 0.5, 2: 0.9, 3: 0.1, 4: 0.4, 5: 0.6, 6: 0.3}


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (dict(keep=1), [6]),
        (dict(keep=2), [5, 6]),
        (dict(keep=1, every=3), [3, 6]),
        (dict(keep=1, rollback_steps=2), [4, 5, 6]),
        (dict(keep=2, every=2), [2, 4, 5, 6]),
        (dict(keep=1, best="score"), [2, 6]),
        (dict(keep=1, best="score", best_mode="min"), [3, 6]),
        (dict(keep=1, every=4, best="score"), [2, 4, 6]),
    ],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_last_every_and_best_are_kept(tmp_path, options, kept, restarts):
    """Whether one process saves them all, or a new one each (metrics must then come from disk)."""
    saves = Checkpoints(tmp_path, **options)
    for step, score in SCORES.items():
        if restarts:
            saves.close()
            saves = Checkpoints(tmp_path, **options)
        save(saves, step, metrics={step: {"score": score, "other": -score}})
    assert saves.steps() == kept
    best = {"max": 2, "min": 3}[options.get("best_mode", "max")] if "best" in options else 6
    assert saves.best_step() == best
    saves.close()
    reader = Checkpoints(tmp_path, **options, read_only=True)
    assert reader.best_step() == best and reader.restore_params()[0] == best
    assert sorted(int(p.stem) for p in (tmp_path / "seals").iterdir()) == kept


def test_best_among_saves_that_were_not_measured_or_came_out_as_nan(tmp_path):
    """SIGTERM and the clock save between evaluations; a diverged evaluation is never the best."""
    scores = {2: 0.4, 3: np.nan, 5: 0.7, 6: np.nan}
    for mode, best in (("max", 5), ("min", 2)):
        saves = Checkpoints(tmp_path / mode, keep=1, best="score", best_mode=mode)
        save(saves, 1)
        assert saves.best_step() == 1, "nothing measured: the newest"
        save(saves, *range(2, 8), metrics={s: {"score": v} for s, v in scores.items()})
        assert saves.steps() == [best, 7] and saves.best_step() == best
        saves.close()
        assert Checkpoints(tmp_path / mode, best="score", best_mode=mode).best_step() == best


def test_what_is_discarded_lies_after_the_step(tmp_path):
    """Seals too, or a run that goes another way would be told that its save is damaged."""
    saves = Checkpoints(tmp_path, keep=4)
    save(saves, 1, 2, 3, 4)
    saves.discard_after(2)
    assert saves.steps() == [1, 2]
    assert sorted(int(p.stem) for p in (tmp_path / "seals").iterdir()) == [1, 2]
    save(saves, 3)
    assert saves.steps() == [1, 2, 3]
    saves.close()


def test_a_metric_that_is_not_measured_cannot_choose_the_best(tmp_path):
    saves = Checkpoints(tmp_path, best="dev/acuracy")
    with pytest.raises(FirthError, match=r"checkpoint\.best='dev/acuracy'.*dev/accuracy"):
        save(saves, 1, metrics={1: {"dev/accuracy": 0.5, "dev/loss": 1.0}})
    with pytest.raises(FirthError, match="best_mode='most'"):
        Checkpoints(tmp_path, best="a", best_mode="most")


def test_when_a_save_is_due(tmp_path, monkeypatch):
    saves = Checkpoints(tmp_path, minutes=1.0, every=10)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 59)
    assert not saves.overdue()
    assert [step for step in range(1, 31) if saves.due(step)] == [10, 20, 30]
    assert saves.due(7, last=True)
    monkeypatch.setattr(time, "monotonic", lambda: now + 62)
    assert saves.overdue() and not saves.due(7)
    save(saves, 7)
    assert not saves.overdue()
    assert not Checkpoints(tmp_path, minutes=1.0, every=0).due(10)
    saves.close()


# -------------------------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(tmp_path):
    """(folder, what is wrong there): on a file system of one megabyte, or with files that short.

    To mount one takes a right that few users have; the limit on a process's own files is for all.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTE}", "tmpfs", str(folder)]
    if shutil.which("mount") and subprocess.run(mount, check=False).returncode == 0:
        yield folder, "the disk is full"
        subprocess.run(["umount", "-l", str(folder)], check=True)
    else:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, before[1]))
        yield folder, "File too large"
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_named_and_earlier_checkpoints_stay(small_disk):
    small_disk, reason = small_disk
    saves = Checkpoints(small_disk, keep=2)
    save(saves, 1, 2)
    large, _ = on(mesh(), make_state(3, width=40_000))
    with pytest.raises(FirthError, match=rf"checkpoints/3 .*{reason}.*newest.* one is 2;"):
        saves.save(3, large, {})
        saves.wait()
    assert saves.steps() == [1, 2]
    saves.close()
    saves = Checkpoints(small_disk, keep=2)
    assert saves.steps() == [1, 2]
    assert_same_bytes(saves.restore(SHAPES)[0], make_state(2))
    save(saves, 3)  # what the failed save left was cleared away
    assert saves.steps() == [2, 3]
    saves.close()


@pytest.mark.parametrize(
    "fails", [OSError(errno.ENOSPC, "No space left on device"), ValueError("x")]
)
def test_a_save_that_fails_at_once_is_named(workdir, monkeypatch, fails):
    saves = Checkpoints(workdir, keep=3)

    def broken(*args, **kwargs):
        raise fails

    monkeypatch.setattr(saves.manager, "save", broken)
    reason = "the disk is full" if isinstance(fails, OSError) else "ValueError: x"
    with pytest.raises(FirthError, match=f"checkpoints/4 could not be written: {reason}; .* is 3"):
        save(saves, 4)
    monkeypatch.undo()
    save(saves, 4)
    assert saves.steps() == [2, 3, 4]
    saves.close()


def test_a_failure_in_the_background_is_raised_by_the_next_call(workdir, monkeypatch):
    saves = Checkpoints(workdir, keep=3)
    monkeypatch.setattr("firth.training.checkpoint.digests", lambda _: 1 / 0)
    state, _ = on(mesh(), make_state(4))
    saves.save(4, state, {})
    with pytest.raises(FirthError, match=r"checkpoints/4 could not be written: ZeroDivisionError"):
        saves.save(5, state, {})
    saves.close()
