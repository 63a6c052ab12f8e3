"""Runs that heed their held-out loss: they halve, average and end, and resume to the same bytes."""

import jax
import numpy as np
import pytest
from helpers.cases import nightly
from helpers.runs import arguments, assert_same_bytes, finish, logged, struck

from firth.cli import main
from firth.training.checkpoint import Checkpoints

EVERY, STEPS = 5, 20
OTHERS = ("max_length", "num_heads", "intermediate_size", "attention_dropout")
CHANGES = {f"model.{name}": None for name in OTHERS} | {
    "optimizer.b2": None,
    "optimizer.bias_correction": None,
    "schedule.warmup": None,
    "model.hidden_size": 16,
    "batch_size": 8,
    "steps": STEPS,
    "log_every": 1,
    "eval.every": EVERY,
    "eval.batch_size": 8,
    "checkpoint.every": 0,
}
RNN = CHANGES | {"model.num_layers": 1, "model.dropout": None, "schedule.lr": 1.0}
AWD = CHANGES | {
    "model.embedding_size": 8,
    "schedule.lr": 5.0,
    "plateau.from_start": True,
    "plateau.patience": 50,
}
RUNS = {"rnn": ("rnn.py:tiny,length=8", RNN), "awd": ("awd_lstm.py:tiny,length=8", AWD)}


def command(store, workdir, name, **more):
    recipe, changes = RUNS[name]
    return arguments(store, workdir, recipe, **changes | more)


def rates(workdir):
    return {e["step"]: e["train/learning_rate"] for e in logged(workdir) if "train/loss" in e}


def test_the_rate_is_halved_and_the_run_ends(store, tmp_path, capsys, caplog):
    """No loss is a hundredth of that before: the second evaluation halves, the third ends."""
    argv = command(store, tmp_path / "a", "rnn", plateau__improvement=100.0)
    assert main(["train", *argv]) == 0
    assert rates(tmp_path / "a") == {n: 1.0 if n <= 2 * EVERY else 0.5 for n in range(1, 16)}
    before = logged(tmp_path / "a")
    with caplog.at_level("INFO", "firth"):
        assert main(["train", *argv]) == 0
    assert "has stopped at step 15 (the held-out loss no longer falls)" in caplog.text
    assert logged(tmp_path / "a") == before
    changed = command(store, tmp_path / "a", "rnn", plateau__improvement=100.0, eval__every=4)
    assert main(["train", *changed]) == 2
    assert "eval.every: 5 there, 4 now" in capsys.readouterr().err


@pytest.mark.parametrize("name", [nightly("awd"), "rnn"])
def test_a_run_in_two_parts_ends_with_the_same_bytes(store, tmp_path, name):
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    more = dict(plateau__improvement=1.5) if name == "rnn" else {}
    assert main(["train", *command(store, whole, name, **more)]) == 0
    for until in (7, 0):
        assert main(["train", *command(store, parts, name, until=until, **more)]) == 0
    last = max(int(path.name) for path in (whole / "checkpoints").iterdir())
    assert_same_bytes(whole, parts, last)
    assert rates(whole) == rates(parts)


def test_the_mean_is_saved_and_measured(store, tmp_path):
    assert main(["train", *command(store, tmp_path / "a", "awd")]) == 0
    saves = Checkpoints(tmp_path / "a", keep=2, every=0, read_only=True)
    step, mean = saves.restore_params()
    assert step == STEPS
    assert main(["train", *command(store, tmp_path / "b", "awd", plateau__from_start=False)]) == 0
    _, own = Checkpoints(tmp_path / "b", keep=2, every=0, read_only=True).restore_params()
    differing = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), mean, own)
    assert min(jax.tree.leaves(differing)) > 1e-4
    one, other = (
        [e["eval/heldout/lm_loss"] for e in logged(tmp_path / run) if "eval/heldout/lm_loss" in e]
        for run in "ab"
    )
    assert len(one) == len(other) == STEPS // EVERY and one != other


def test_there_must_be_a_held_out_text(store, tmp_path, capsys):
    argv = command(store, tmp_path / "a", "rnn", data__heldout=0.0)
    assert main(["train", *argv]) == 2
    assert (
        "plateau.name='halving' heeds a held-out loss, but there is no" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_killed_run_that_averages_ends_with_the_same_bytes(store, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    struck(command(store, killed, "awd"), killed, STEPS)
    for workdir in (whole, killed):
        finish(command(store, workdir, "awd"))
    assert_same_bytes(whole, killed, STEPS)
    assert logged(whole) == logged(killed)
