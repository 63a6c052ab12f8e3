"""What one sees of a run: its announcement, its picture, its row in the table, TensorBoard."""

import re

import pytest
from helpers.runs import arguments

from firth.cli import main
from firth.display.runs import read_run

STEPS = 16


@pytest.fixture(scope="module")
def seen(store, tmp_path_factory):
    """(workdir, lines on stderr) of a short run that shows everything."""
    workdir = tmp_path_factory.mktemp("runs") / "seen"
    argv = arguments(store, workdir, progress=True, curves=True, steps=STEPS, eval__every=STEPS)
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("firth.progress.Progress.say", lambda self, line: lines.append(line))
        assert main(["train", *argv]) == 0
    return workdir, lines


def test_it_says_what_it_takes(seen):
    first, second, *_ = seen[1]
    assert first.startswith(f"{STEPS} steps of 8 x 32 tokens, {STEPS * 8 * 32:,} in all; memory")
    assert re.fullmatch(r"about \d+ s for the other 5 steps at [\d.e-]+ s a step, .*", second)


def test_it_leaves_a_picture_and_a_row(seen, capsys):
    workdir, _ = seen
    assert (workdir / "curves.png").read_bytes().startswith(b"\x89PNG")
    run = read_run(workdir)
    assert (run.state, run.step, run.steps) == ("finished", STEPS, STEPS)
    assert run.metric == "heldout/mlm_loss" and run.last and run.best and run.speed
    assert main(["runs", str(workdir.parent)]) == 0
    assert " mlm_loss " in capsys.readouterr().out
