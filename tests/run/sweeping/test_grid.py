"""The runs of a grid: their settings, seeds, folders and arguments."""

from pathlib import Path

from firth.recipe import read_recipe
from firth.run.sweeping.grid import make_runs


def test_every_setting_has_every_seed_and_a_folder_of_its_own():
    over = ["--config.data.store=s"]
    runs = make_runs("bert.py:tiny", Path("w"), ["lr=1e-3,5e-5", "batch=8,16", "seeds=3,7"], over)
    assert len({run.workdir for run in runs}) == len(runs) == 8
    assert [run.setting for run in runs[::2]] == [
        {"lr": 1e-3, "batch": 8},
        {"lr": 1e-3, "batch": 16},
        {"lr": 5e-5, "batch": 8},
        {"lr": 5e-5, "batch": 16},
    ]
    last = runs[-1]
    assert last.workdir == Path("w/lr=5e-05_batch=16/seed-7") and last.seed == 7
    assert last.log == Path("w/lr=5e-05_batch=16/seed-7.log")
    assert last.arguments == (
        "--config=bert.py:tiny",
        "--workdir=w/lr=5e-05_batch=16/seed-7",
        "--config.data.store=s",
        "--config.schedule.lr=5e-05",
        "--config.batch_size=16",
        "--config.seed=7",
    )


def test_a_folder_has_no_comma_and_a_tuple_is_for_the_recipe_to_read():
    runs = make_runs("logistic.py", Path("w"), ["l2=1,3", "iterations=5"], [])
    assert [run.workdir for run in runs] == [
        Path(f"w/l2={value}_iterations=5/seed-0") for value in (1, 3)
    ]
    assert read_recipe("logistic.py", runs[1].arguments[2:]).l2 == (3,)


def test_a_number_of_seeds_and_none():
    assert [run.seed for run in make_runs("bert.py:tiny", Path("w"), ["seeds=3"], [])] == [0, 1, 2]
    (run,) = make_runs("bert.py:tiny", Path("w"), ["lr=1e-3"], [])
    assert run.seed == 0
    (run,) = make_runs("ngram.py:2", Path("w"), ["smoothing=mle"], [])
    assert run.seed is None and run.workdir.name == "seed-0"
    assert not any("seed" in argument for argument in run.arguments[2:])
