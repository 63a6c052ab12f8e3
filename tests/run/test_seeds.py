"""Several seeds: a run each, the best checkpoint of each, and what they make together."""

import json

import numpy as np
import pytest
from ml_collections import ConfigDict

from firth.errors import FirthError
from firth.run import seeds
from firth.training.checkpoint import Checkpoints

CONFIG = {"seed": 9, "steps": 3, "checkpoint": {"best": "task", "keep": 2}}
ENTRIES = [  # of the steps 1 to 3; the second is the best, and the end alone measures test
    {"eval/dev/accuracy": 0.5, "eval/dev/loss": 3.0},
    {"eval/dev/accuracy": 0.75, "eval/dev/loss": 1.0},
    {"eval/dev/accuracy": 0.6, "eval/dev/loss": 2.0, "train/loss": 1.0},
]


@pytest.fixture
def runs():
    """[(folder, config)] of the runs, and a `train` for them: a seed adds itself to what it has."""
    found = []

    def train(config, folder):
        found.append((folder, config))
        folder.mkdir()
        (folder / "model.json").write_text(json.dumps({"best": "dev/accuracy"}))
        saves = Checkpoints(folder, keep=2, best="dev/accuracy")
        lines = []
        for step, entry in enumerate(ENTRIES, 1):
            measured = {k: v + config.seed for k, v in entry.items() if "eval/" in k}
            dev = {name.removeprefix("eval/"): value for name, value in measured.items()}
            saves.save(step, {"params": {"w": np.zeros(2)}}, {}, dev)
            lines.append({"step": step, **entry, **measured})
        saves.close()
        loss = None if config.seed == 5 else 1.5  # one that is no number is null in a journal
        lines.append({"step": 3, "eval/test/accuracy": 0.8, "eval/test/loss": loss})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))

    return found, train


def test_every_seed_is_a_run_of_its_own_and_all_are_told_of(runs, tmp_path, capsys):
    trained, train = runs
    config = ConfigDict(CONFIG | {"seeds": "0,1,5"})
    found = seeds.train_seeds(config, tmp_path, train)
    assert [(folder.name, c.seed, c.seeds, c.steps) for folder, c in trained] == [
        ("seed-0", 0, "", 3),
        ("seed-1", 1, "", 3),
        ("seed-5", 5, "", 3),
    ]
    assert (config.seed, config.seeds) == (9, "0,1,5")
    assert found == json.loads((tmp_path / "summary.json").read_text())
    assert list(found) == ["dev/accuracy", "dev/loss", "test/accuracy", "test/loss"]
    accuracy = found["dev/accuracy"]
    assert accuracy["values"] == {"0": 0.75, "1": 1.75, "5": 5.75}
    assert (accuracy["mean"], accuracy["median"], accuracy["seeds"]) == (2.75, 1.75, 3)
    assert accuracy["std"] == pytest.approx(7**0.5)
    assert found["dev/loss"]["values"] == {"0": 1.0, "1": 2.0, "5": 6.0}  # of the best
    assert found["test/accuracy"]["values"] == {"0": 0.8, "1": 0.8, "5": 0.8}
    assert found["test/loss"]["values"] == {"0": 1.5, "1": 1.5} and found["test/loss"]["seeds"] == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["dev/accuracy", "2.7500", "2.6458", "1.7500"]


def test_seeds_that_are_no_numbers_are_refused(tmp_path):
    with pytest.raises(FirthError, match="seeds='0;1' should read 0,1,2"):
        seeds.train_seeds(ConfigDict({"seed": 0, "seeds": "0;1"}), tmp_path, None)
