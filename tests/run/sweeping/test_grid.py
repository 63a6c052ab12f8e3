"""The runs of a grid: their settings, seeds, folders and arguments."""

from pathlib import Path

import pytest

from firth.errors import FirthError
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


def test_a_name_that_is_no_field_is_an_argument_of_the_recipe():
    recipe, over = "finetune.py:task=rte,init=minilm", ["--config.data.dir=glue"]
    runs = make_runs(recipe, Path("w"), ["frozen=true,false", "lr=1e-3", "seeds=2"], over)
    assert [run.workdir for run in runs[::2]] == [
        Path(f"w/frozen={value}_lr=0.001/seed-0") for value in ("true", "false")
    ]
    assert runs[-1].setting == {"frozen": "false", "lr": 1e-3}
    assert runs[-1].arguments == (
        f"--config={recipe},frozen=false",
        "--workdir=w/frozen=false_lr=0.001/seed-1",
        *over,
        "--config.schedule.lr=0.001",
        "--config.seed=1",
    )
    (first, _) = make_runs("bert.py", Path("w"), ["size=tiny,mini"], ["--config.data.store=s"])
    assert first.arguments[0] == "--config=bert.py:size=tiny"


OWN = """from firth.configs import bert
from firth.errors import FirthError
from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, wide=False, more=0)
    if arg.more and not arg.wide:
        raise FirthError("more is for wide ones")
    return bert.get_config("tiny")
"""


def test_an_argument_may_need_another_of_the_grid(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    over = ["--config.data.store=s"]
    runs = make_runs(f"{tmp_path}/own.py", Path("w"), ["more=1,2", "wide=true"], over)
    assert [run.arguments[0] for run in runs] == [
        f"--config={tmp_path}/own.py:more={more},wide=true" for more in (1, 2)
    ]
    with pytest.raises(FirthError, match=r"^'more=1,wide=false': more is for wide ones$"):
        make_runs(f"{tmp_path}/own.py", Path("w"), ["more=1", "wide=false"], over)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("frzen=true", "no field 'frzen'; did you mean 'freeze'.*'frzen'; did you mean 'frozen'"),
        ("frozen=maybe", r"^'frozen=maybe': recipe argument frozen='maybe' is not a bool$"),
        ("frozen=true,true", "'frozen=true,true': true is given twice"),
    ],
)
def test_what_is_neither_is_refused(item, said):
    with pytest.raises(FirthError, match=said):
        make_runs("finetune.py:task=rte,init=minilm", Path("w"), [item], [])


def test_a_number_of_seeds_and_none():
    assert [run.seed for run in make_runs("bert.py:tiny", Path("w"), ["seeds=3"], [])] == [0, 1, 2]
    (run,) = make_runs("bert.py:tiny", Path("w"), ["lr=1e-3"], [])
    assert run.seed == 0
    (run,) = make_runs("ngram.py:2", Path("w"), ["smoothing=mle"], [])
    assert run.seed is None and run.workdir.name == "seed-0"
    assert not any("seed" in argument for argument in run.arguments[2:])
