"""Random corruption, all of it noticed and named (full counts: experiments/survival)."""

import shutil

import jax
import numpy as np
import pytest
from helpers.damage import harm_a_checkpoint, harm_a_store, make_checkpoints, shape_of, state_of
from helpers.runs import make_store

from firth.training.checkpoint import Checkpoints

# Orbax leaves coroutines behind when a restore fails; not ours to await.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_damaged_checkpoint_is_named_and_never_restored(tmp_path):
    saved, rng = make_checkpoints(tmp_path / "saved"), np.random.default_rng(0)
    found = set()
    for _ in range(25):
        done, came = harm_a_checkpoint(saved, tmp_path / "copy", rng)
        assert came in ("fell back", "refused", "sound"), f"{done}: {came}"
        shutil.rmtree(tmp_path / "copy")
        found.add(came)
    assert "fell back" in found


def test_a_damaged_store_is_named_and_refused(tmp_path):
    store, rng = make_store(tmp_path), np.random.default_rng(0)
    for _ in range(200):
        done, came = harm_a_store(store, rng)
        assert came == "refused", f"{done}: {came}"


def test_a_file_without_a_checksum_is_damage(tmp_path, caplog):
    make_checkpoints(tmp_path)
    (tmp_path / "checkpoints" / "3" / "state" / "extra").write_text("more")
    shapes = jax.tree.map(shape_of, state_of(0))
    with caplog.at_level("WARNING", "firth"):
        state, _ = Checkpoints(tmp_path).restore(shapes)
    assert int(state["step"]) == 2 and "3/state/extra has no checksum" in caplog.text
