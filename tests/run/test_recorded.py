"""Which commands go on in a workdir: longer ones, and what older recipes spelled otherwise."""

from pathlib import Path

import pytest

from firth import recipe
from firth.errors import FirthError
from firth.run import recorded

LATER = {"freeze", "lora", "patience"}  # fields of before


def config_of(**changes):
    """A fine-tuning config with these fields, `data__kind` for data.kind; None leaves one out."""
    fields = {k.replace("__", "."): v for k, v in changes.items()}
    config = recipe.with_fields(recipe.read_recipe("finetune.py:init=x"), fields)
    for name, value in fields.items():
        if value is None:
            with config.unlocked():
                del config.data[name.removeprefix("data.")]
    return config


@pytest.fixture
def begun(tmp_path):
    """A workdir with a checkpoint."""
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    return tmp_path


def test_a_run_may_become_longer_and_no_shorter(begun):
    for epochs in (3.0, 5.0):
        recorded.record(config_of(epochs=epochs), begun)
        assert recipe.read(begun).epochs == epochs
    for changes, message in (
        (dict(epochs=4.0), r"epochs: 5\.0 there, 4\.0 now"),
        (dict(epochs=5.0, steps=100), "steps: 0 there, 100 now"),
    ):
        with pytest.raises(FirthError, match=message):
            recorded.record(config_of(**changes), begun)
    assert recipe.read(begun).epochs == 5.0


def test_more_epochs_do_not_count_where_steps_are_set(begun):
    for steps in (10, 12):
        recorded.record(config_of(steps=steps), begun)
    said = r"epochs=4 does not count, since steps=12 is set; .*--config\.steps=N"
    with pytest.raises(FirthError, match=said):
        recorded.record(config_of(epochs=4.0, steps=12), begun)
    with pytest.raises(FirthError, match="steps: 12 there, 10 now"):
        recorded.record(config_of(steps=10), begun)
    with pytest.raises(FirthError, match="steps: 12 there, 0 now"):
        recorded.record(config_of(steps=0), begun)


@pytest.mark.parametrize("name", ["sst2", "custom"])
def test_what_older_fine_tuning_called_otherwise_is_the_same_run(name, begun):
    """The task of one's own files had to be named, or was called sst2; kinds were not found."""
    before = dict(data__task=name, data__kind="classification", data__dev_fraction=None)
    recorded.record(config_of(**before), begun)
    recorded.record(config_of(), begun)
    recorded.record(config_of(data__task="custom"), begun)
    for changes in (dict(data__kind="regression"), dict(data__dev_fraction=0.2)):
        with pytest.raises(FirthError, match="holds a run of another config"):
            recorded.record(config_of(**changes), begun)


def read(*argv):
    return recipe.from_command_line(list(argv), prog="firth train")


@pytest.mark.parametrize("name", ["finetune.py", "squad.py"])
def test_what_older_fine_tuning_lacks_is_off_in_it(name, begun):
    config = recipe.read_recipe(f"{name}:init=x")
    before = config.copy_and_resolve_references()
    with before.unlocked():
        for field in LATER & set(before.keys()):
            del before[field]
        if name == "finetune.py":
            data = before.data
            del before.objective.class_weights, data.packed, data.tasks, data.task_power
    recorded.record(before, begun)
    recorded.record(config, begun)
    with pytest.raises(FirthError, match=r"lora\.rank: 0 there, 8 now"):
        recorded.record(recipe.with_fields(config, {"lora.rank": 8}), begun)


def test_a_run_on_ones_own_file_has_a_usual_workdir(caplog):
    caplog.set_level("INFO", "firth")
    own = ["--config=finetune.py:init=x", "--config.data.train=data/reviews.csv.gz"]
    assert read(*own)[1] == Path("runs/finetune-reviews")
    assert "runs/finetune-reviews" in caplog.text
    assert read(*own, "--workdir=w")[1] == Path("w")
    tfds = ["--config=finetune.py:task=tfds:a/b", "--config.data.train=train[:9%]"]
    for other in (["--config=finetune.py:task=rte"], ["--config=bert.py:tiny"], tfds):
        with pytest.raises(FirthError, match="--workdir is required"):
            read(*other)
