"""Several seeds: a run each, the best checkpoint of each measured, and what they make together."""

import json

import pytest
from ml_collections import ConfigDict

from firth.errors import FirthError
from firth.run import seeds


@pytest.fixture
def trained(monkeypatch):
    """[(folder, config)] of the runs; a run's accuracy is its seed, and its best step ten times."""
    runs = []

    def evaluate(folder):
        _, config = next(run for run in runs if run[0] == folder)
        return {"step": 10 * config.seed, "dev/accuracy": float(config.seed), "dev/loss": 1.0}

    monkeypatch.setattr(seeds, "evaluate", evaluate)
    return runs


def test_every_seed_is_a_run_of_its_own_and_all_are_told_of(trained, tmp_path, capsys):
    config = ConfigDict({"seed": 9, "seeds": "0,1,5", "steps": 3})
    found = seeds.train_seeds(config, tmp_path, lambda c, folder: trained.append((folder, c)))
    assert [(folder.name, c.seed, c.seeds, c.steps) for folder, c in trained] == [
        ("seed-0", 0, "", 3),
        ("seed-1", 1, "", 3),
        ("seed-5", 5, "", 3),
    ]
    assert (config.seed, config.seeds) == (9, "0,1,5")
    assert found == json.loads((tmp_path / "summary.json").read_text())
    assert found.keys() == {"dev/accuracy", "dev/loss"}
    accuracy = found["dev/accuracy"]
    assert accuracy["values"] == {"0": 0.0, "1": 1.0, "5": 5.0}
    assert (accuracy["mean"], accuracy["median"], accuracy["seeds"]) == (2.0, 1.0, 3)
    assert accuracy["std"] == pytest.approx(7**0.5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["dev/accuracy", "2.0000", "2.6458", "1.0000"]


def test_seeds_that_are_no_numbers_are_refused(tmp_path):
    with pytest.raises(FirthError, match="seeds='0;1' should read 0,1,2"):
        seeds.train_seeds(ConfigDict({"seed": 0, "seeds": "0;1"}), tmp_path, None)
